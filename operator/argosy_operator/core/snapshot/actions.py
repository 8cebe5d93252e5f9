"""What a plan may ask for: small frozen actions, which `shell/execute.py` carries out in order.

An action holds no connection and no clock. The executor matches actions with assert_never, so the
type check refuses a new kind of action that it does not carry out. An `Outcome` comes back for each
action that was tried; `plan.conclude` and `core/status` read it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from argosy_operator.api.conditions import ConditionType
from argosy_operator.api.v1alpha1 import API_VERSION, ServingDeployment
from argosy_operator.api.v1alpha1.status import Condition, ServingDeploymentStatus
from argosy_operator.core.snapshot.objects import Object, digest


class ErrorKind(StrEnum):
    """What kind of error a call to the API server ended in. The next step depends on it."""

    CONFLICT = "Conflict"  # another client wrote first: look again at once
    EXISTS = "AlreadyExists"
    NOT_FOUND = "NotFound"
    GONE = "Gone"
    THROTTLED = "Throttled"  # wait as long as the server says
    TRANSPORT = "Unreachable"  # try again, more slowly each time
    FAILED = "Failed"  # the server answers, but not this call: a webhook fails, or it is too slow
    UNAUTHORIZED = "Unauthorized"
    FORBIDDEN = "Forbidden"  # an administrator must add a rule
    QUOTA = "QuotaExceeded"
    TERMINATING = "NamespaceTerminating"
    INVALID = "Invalid"
    FOREIGN = "ForeignObject"  # another owner's object has this name
    NOT_LEADER = "NotLeader"


@dataclass(frozen=True, slots=True)
class Create:
    """Create the object with its replicas. An object of that name that is not ours is not touched;
    one that is ours keeps its replicas."""

    obj: Object


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply."""

    obj: Object
    uid: str | None = None
    """Forced, and only on the object with this uid. None: the object did not exist in the
    snapshot."""


@dataclass(frozen=True, slots=True)
class KeepReplicas:
    """Own a Deployment's replicas as a second field manager, at the number that it has. An apply
    that stops sending a field which no other manager owns sets it to its default, 1 pod."""

    name: str
    uid: str
    replicas: int
    resource_version: str
    """Only if the object still has this version: another writer may scale at this moment."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Write replicas through /scale."""

    kind: str
    name: str
    replicas: int
    resource_version: str | None = None
    """Only if the object still has this version; None: in any case."""
    after: str | None = None
    """The key of an action of the same plan that must succeed before."""


@dataclass(frozen=True, slots=True)
class Delete:
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AnnotatePod:
    """Set annotations of a pod, and remove those whose value is None."""

    name: str
    uid: str
    values: Mapping[str, str | None]
    after: str | None = None
    """The key of an action of the same plan that must succeed before."""


@dataclass(frozen=True, slots=True)
class AnnotateRole:
    """Set annotations of a ServingRole."""

    name: str
    uid: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FlipRole:
    """Give a pod the labels of the other role, by which another ReplicaSet takes it over."""

    name: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Write the fleet's status.refused, or remove it."""

    name: str
    uid: str
    resource_version: str
    """Only if the fleet still has this version: a person may write a mark at this moment."""
    mark: Object | None
    """None: remove it."""


@dataclass(frozen=True, slots=True)
class HastenDrain:
    """Order the engine to take no more work for a while. The pod's annotation is what counts; the
    order only speeds the drain up, and is repeated before it expires."""

    pod: str
    ip: str
    uid: str = field(default="", compare=False)
    """Of the pod that is meant: the address may belong to another one by now."""


@dataclass(frozen=True, slots=True)
class TakeWorkAgain:
    """Order an engine that drains to take work again."""

    pod: str
    ip: str
    uid: str = field(default="", compare=False)
    """Of the pod that is meant: the address may belong to another one by now."""


Action = (
    Create
    | Apply
    | KeepReplicas
    | Scale
    | Delete
    | AnnotatePod
    | AnnotateRole
    | FlipRole
    | Refuse
    | HastenDrain
    | TakeWorkAgain
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action ended in."""

    action: Action
    error: ErrorKind | None = None
    """None: it succeeded."""
    message: str = ""
    """The server's words about the error."""
    applied: Object | None = None
    """The object as the server returned it, after a Create or an Apply."""


def target(action: Action) -> str:
    """The object that an action is about, as kubectl writes it: Deployment/chat-decode-1a2b3c4d."""
    match action:
        case Create(obj) | Apply(obj):
            return f"{obj['kind']}/{obj['metadata']['name']}"
        case KeepReplicas():
            return f"Deployment/{action.name}"
        case Scale() | Delete():
            return f"{action.kind}/{action.name}"
        case AnnotatePod() | FlipRole():
            return f"Pod/{action.name}"
        case AnnotateRole():
            return f"ServingRole/{action.name}"
        case Refuse():
            return f"ServingDeployment/{action.name}"
        case HastenDrain() | TakeWorkAgain():
            return f"Pod/{action.pod}"


def key_of(action: Action) -> str:
    """Identifies an action over rounds that repeat it: Scale Deployment/chat-decode-1a2b3c4d."""
    return f"{type(action).__name__} {target(action)}"


def keys_of(actions: Iterable[Action]) -> str:
    """The keys in one text, for messages."""
    return ", ".join(map(key_of, actions))


def needs(action: Action) -> str | None:
    """The key of the action that must succeed before this one; None if there is none.

    An engine is ordered to drain, or to take work again, only after its pod's annotation was
    written, which the gateway and the next round read. A RoleBinding needs its Role.
    Other actions say what they need in `after`.
    """
    match action:
        case HastenDrain() | TakeWorkAgain():
            return f"AnnotatePod Pod/{action.pod}"
        case Scale() | AnnotatePod():
            return action.after
        case Create(obj) | Apply(obj) if obj["kind"] == "RoleBinding":
            return f"Apply Role/{obj['roleRef']['name']}"
    return None


def is_write(action: Action) -> bool:
    """Whether the action changes an object of the API server. Calls to engines do not."""
    return not isinstance(action, HastenDrain | TakeWorkAgain)


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
    GOING_BACK = "GoingBack"  # a rollout has failed, and an earlier revision takes its place
    REFUSAL_DROPPED = "RefusalDropped"  # status.refused has no effect, and was removed


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
