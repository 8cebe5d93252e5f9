"""Events as values: what is told to people, and how often.

A Note is built by the steps of the plan, where `fresh` keeps back what was said a short while ago,
or by a status that turned; so a lasting problem does not fill the namespace with Events.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from argosy_operator.api.conditions import ConditionType
from argosy_operator.api.v1alpha1 import API_VERSION, ServingDeployment
from argosy_operator.api.v1alpha1.status import Condition, ServingDeploymentStatus
from argosy_operator.core.fleet.ownership import digest

REPEAT_S = 3600.0


class EventReason(StrEnum):
    """All reasons that the operator puts into Events, beside those of conditions."""

    SCALED = "Scaled"  # a decision changed replicas
    DRAINING = "Draining"  # pods were chosen to leave
    CALLED_BACK = "CalledBack"  # a pod that drained serves on
    PUT_BACK = "PutBack"  # a field that we own was changed by somebody
    CREATED_AGAIN = "CreatedAgain"  # a child was deleted by somebody
    OUT_OF_BOUNDS = "OutOfBounds"  # a ServingRole asks for more or fewer than the spec allows
    ROLLED_OUT = "RolledOut"  # the last pod of an old revision is gone


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to tell about the fleet. `after`: keys of orders; it is true only when one of them
    succeeded."""

    reason: str
    message: str
    warning: bool = False
    after: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        return f"{self.reason}: {self.message}"


def fresh(
    notes: Iterable[Note], said: Mapping[str, float], now: float
) -> tuple[tuple[Note, ...], dict[str, float]]:
    """The notes that were not said within the last hour, and what has been said then. A change of
    replicas is always said: the same words an hour ago were about another change."""
    known = {key: at for key, at in said.items() if now - at < REPEAT_S}
    new: list[Note] = []
    for note in notes:
        if note.key not in known or note.reason == EventReason.SCALED:
            known[note.key] = now
            new.append(note)
    return tuple(new), known


def stalled(before: ServingDeploymentStatus, after: ServingDeploymentStatus) -> Note | None:
    """For a fleet that has just come to need a person, or needs one for another reason now. The
    reason and the sentence are the condition's own."""
    old, new = _stalled(before), _stalled(after)
    if new is None or (old is not None and old.reason == new.reason):
        return None
    return Note(new.reason, new.message, warning=True)


def _stalled(status: ServingDeploymentStatus) -> Condition | None:
    about = (c for c in status.conditions if c.type == ConditionType.STALLED)
    return next((c for c in about if c.status == "True"), None)


def event(fleet: ServingDeployment, note: Note, now: float, reporter: str) -> dict[str, Any]:
    """The Event object (events.k8s.io/v1). Its name depends on content and time: sending it twice
    after a lost answer makes one Event."""
    suffix = digest([fleet.metadata.uid, note.key, int(now)])
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{fleet.name}.{suffix}", "namespace": fleet.namespace},
        "eventTime": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": "serving.argosy.dev/operator",
        "reportingInstance": reporter[:128],
        "action": "Reconcile",
        "reason": note.reason,
        "type": "Warning" if note.warning else "Normal",
        "note": note.message[:1024],
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": "ServingDeployment",
            "name": fleet.name,
            "namespace": fleet.namespace,
            "uid": fleet.metadata.uid,
        },
    }


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
