"""Events as values, and how often one is published.

The steps of the plan make them, and `stalled` makes one from a status that changed. `unpublished`
leaves out those that were published within the last hour, so that a lasting problem does not fill
the namespace with Events. `shell/report.py` sends what `manifest` makes of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from argosy_operator.api.conditions import ConditionType
from argosy_operator.api.v1alpha1 import API_VERSION, ServingDeployment
from argosy_operator.api.v1alpha1.status import Condition, ServingDeploymentStatus
from argosy_operator.core.fleet.objects import Object, digest

REPEAT_S = 3600.0
"""How long the same event is not published again. Kubernetes keeps Events for an hour by default.
"""


class EventReason(StrEnum):
    """The reasons of the operator's Events. `stalled` uses those of conditions instead."""

    SCALED = "Scaled"  # a decision changed replicas
    DRAINING = "Draining"  # pods were chosen for removal
    CALLED_BACK = "CalledBack"  # a draining pod is needed again
    RECYCLED = "Recycled"  # a pod is replaced, because its handovers fail
    GPU_TYPE = "GPUType"  # a role goes to another GPU type
    FLIPPED = "Flipped"  # a pod got the other role
    PUT_BACK = "PutBack"  # another writer changed a field that we own
    CREATED_AGAIN = "CreatedAgain"  # another writer deleted a child
    OUT_OF_BOUNDS = "OutOfBounds"  # a ServingRole asks for more or fewer than the spec allows
    LEARNT_UNREADABLE = "LearntUnreadable"  # what was kept over a restart cannot be used
    ROLLED_OUT = "RolledOut"  # the last pod of an old revision is gone


@dataclass(frozen=True, slots=True)
class Event:
    """One Event about the fleet, before it is published."""

    reason: str
    message: str
    warning: bool = False
    after: frozenset[str] = frozenset()
    """Keys of actions. The event is true only if one of them succeeded; empty: it is true now."""

    @property
    def key(self) -> str:
        """Events with the same key say the same."""
        return f"{self.reason}: {self.message}"


def unpublished(
    events: Iterable[Event], published: Mapping[str, float], now: float
) -> tuple[tuple[Event, ...], dict[str, float]]:
    """The events that were not published within `REPEAT_S`, and `published` with them added.

    `published`: when each key was published last; like `now`, seconds on the monotonic clock. A
    change of replicas is always published: the same words before were about another change.
    """
    known = {key: at for key, at in published.items() if now - at < REPEAT_S}
    new: list[Event] = []
    for event in events:
        if event.key not in known or event.reason == EventReason.SCALED:
            known[event.key] = now
            new.append(event)
    return tuple(new), known


def stalled(before: ServingDeploymentStatus, after: ServingDeploymentStatus) -> Event | None:
    """An event for a fleet that has just become Stalled, or is Stalled for another reason than
    before. Reason and message are the condition's."""
    old, new = _stalled(before), _stalled(after)
    if new is None or (old is not None and old.reason == new.reason):
        return None
    return Event(new.reason, new.message, warning=True)


def handovers_fail(before: ServingDeploymentStatus, after: ServingDeploymentStatus) -> Event | None:
    """An event for a fleet of which a pair of pods has just stopped handing over KV caches."""
    old, new = (
        next((c for c in status.conditions if c.type == ConditionType.KV_TRANSFER_HEALTHY), None)
        for status in (before, after)
    )
    if new is None or new.status != "False" or (old is not None and old.status == "False"):
        return None
    return Event(new.reason, new.message, warning=True)


def _stalled(status: ServingDeploymentStatus) -> Condition | None:
    about = (c for c in status.conditions if c.type == ConditionType.STALLED)
    return next((c for c in about if c.status == "True"), None)


def manifest(fleet: ServingDeployment, event: Event, now: float, reporter: str) -> Object:
    """The Event object (events.k8s.io/v1). `now` is in seconds since the epoch.

    Its name depends on content and time, so that sending it twice after a lost answer makes one
    Event.
    """
    suffix = digest([fleet.metadata.uid, event.key, int(now)])
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{fleet.name}.{suffix}", "namespace": fleet.namespace},
        "eventTime": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": "serving.argosy.dev/operator",
        "reportingInstance": reporter[:128],
        "action": "Reconcile",
        "reason": event.reason,
        "type": "Warning" if event.warning else "Normal",
        # The API server refuses a longer note, and counts bytes.
        "note": event.message.encode()[:1024].decode(errors="ignore"),
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": "ServingDeployment",
            "name": fleet.name,
            "namespace": fleet.namespace,
            "uid": fleet.metadata.uid,
        },
    }
