"""What a plan may ask for: small frozen orders, carried out one after the other by the executor.

An order names what it does and why; it holds no connection and no clock. `shell/execute.py` matches
them with assert_never, so a new kind of order that nobody carries out does not pass the type check.
`Outcome` comes back, and status speaks about it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from argosy_operator.core.fleet.objects import Object


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
    """Create the object as it is, replicas included; an object of that name is left untouched
    unless it is ours already."""

    obj: Object


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply. With `uid`: forced, and only on the object that has this uid. Without:
    the object is believed not to exist."""

    obj: Object
    uid: str | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """Write replicas through /scale. With `resource_version`: only if it was not written
    since. `after`: the key of the order that must have succeeded before, where it is given in the
    same plan."""

    kind: str
    name: str
    replicas: int
    resource_version: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AnnotatePod:
    """Set annotations of a pod, remove those whose value is None. `after` as for Scale."""

    name: str
    uid: str
    values: Mapping[str, str | None]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class HastenDrain:
    """Tell the engine to take no more work for a while. The annotation is what counts; this only
    hastens, and is repeated before it wears off."""

    pod: str
    ip: str


@dataclass(frozen=True, slots=True)
class TakeWorkAgain:
    """Tell a called-back engine to take work again."""

    pod: str
    ip: str


Action = Create | Apply | Scale | Delete | AnnotatePod | HastenDrain | TakeWorkAgain


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order. `error` None: done. `applied` is the object as the server has it
    after a Create or an Apply."""

    action: Action
    error: ErrorKind | None = None
    message: str = ""
    applied: Object | None = None


def target(action: Action) -> str:
    """The object that an order is about, as people write it: Deployment/chat-decode-1a2b3c4d."""
    match action:
        case Create(obj) | Apply(obj):
            return f"{obj['kind']}/{obj['metadata']['name']}"
        case Scale() | Delete():
            return f"{action.kind}/{action.name}"
        case AnnotatePod():
            return f"Pod/{action.name}"
        case HastenDrain() | TakeWorkAgain():
            return f"Pod/{action.pod}"


def key_of(action: Action) -> str:
    """What stays the same while an order is repeated: Scale Deployment/chat-decode-1a2b3c4d."""
    return f"{type(action).__name__} {target(action)}"


def needs(action: Action) -> str | None:
    """The key of the order without which this one must not be carried out, or cannot be.

    An engine is told to drain, or to take work again, only when its pod says so too: the annotation
    is what the gateway sees and what the next round goes on from. A binding is refused while its
    Role is missing. Everything else stands alone or says so in `after`.
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
    """Does the order change an object of the API server? Calls to engines do not."""
    return not isinstance(action, HastenDrain | TakeWorkAgain)
