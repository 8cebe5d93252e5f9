"""Messages that other threads post to the engine thread; they take effect between two steps."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from argosy_engine.core.handover.messages import (
    FailedPrefill,
    LeaseKey,
    PrefillEvent,
    PullEvent,
    RemotePrefill,
)
from argosy_engine.core.limits import Refusal
from argosy_engine.core.request import Emission, FinishReason, NewRequest, client_id


class Sink(Protocol):
    """Where the tokens of one client's request go; called on the HTTP thread."""

    prefill_pod: str
    """The pod that computed the prompt, if it was pulled; set on the engine thread."""

    failed_prefills: tuple[FailedPrefill, ...]
    """Prefill engines that were asked and failed; set on the engine thread."""

    pull_whole: bool | None
    """Whether the pull brought all; None until it has ended. Set on the engine thread, last."""

    def emit(self, *emissions: Emission) -> None:
        """Take tokens that came together, in their order."""
        ...

    def refuse(self, refusal: Refusal) -> None: ...


@dataclass(frozen=True, slots=True)
class Submit:
    """A client's request, from the HTTP thread."""

    request: NewRequest
    sink: Sink


@dataclass(frozen=True, slots=True)
class SubmitRemote:
    """A decode engine's prompt, from the KV thread."""

    prefill: RemotePrefill
    on_event: Callable[[PrefillEvent], None]
    arrival_s: float


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request: its client left, has what it wanted, or a peer gave up."""

    request_id: str
    reason: FinishReason = "abort"

    lease: LeaseKey | None = None
    """A remote prefill's key. Its lease may be granted while this message waits, and is released
    then."""


@dataclass(frozen=True, slots=True)
class Keep:
    """The gateway is about to move a stream to another engine: when its connection closes, its KV
    is held for that engine."""

    client_id: str
    """The request's id without what this engine added."""


@dataclass(frozen=True, slots=True)
class LetGo:
    """A stream for which `Keep` came no longer needs its KV: it goes on elsewhere, or has ended."""

    client_id: str
    """As in `Keep`."""


@dataclass(frozen=True, slots=True)
class SetLimits:
    """Other limits, from the admin port."""

    sent: object
    """What the client sent; see `core.live.change`."""

    done: "Future[None]"
    """Done when they hold; ValueError with what to write instead."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget the prefix cache."""

    done: "Future[bool]"
    """False while requests run."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Nothing to do but to look at the leases and deadlines again."""


Message = Submit | SubmitRemote | Abort | Keep | LetGo | SetLimits | Reset | Wake | PullEvent


def log_subject(message: Message | NewRequest) -> dict[str, object]:
    """The keys of a log line about one request."""
    match message:
        case Submit(request):
            return log_subject(request)
        case SubmitRemote(prefill):
            return {"request_id": client_id(prefill.request_id), "attempt": prefill.attempt}
        case Abort(request_id):
            return {"request_id": client_id(request_id)}
        case Keep(request_id) | LetGo(request_id):
            return {"request_id": request_id}
        case Wake() | SetLimits() | Reset():
            return {}
        case _:
            return {"request_id": client_id(message.request_id), "attempt": message.attempt}
