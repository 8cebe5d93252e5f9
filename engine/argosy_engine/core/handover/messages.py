"""What the engine loop and the KV service say to each other.

The KV service has its own thread, on asyncio, and TCP port 8002. On a decode engine the loop calls
`PullPort`, and the service posts a `PullEvent` into the loop's inbox. On a prefill engine the
service calls `PrefillPort`, and the loop calls the given `on_event` with `PrefillProgress`,
`LeaseReady` or `PrefillRefused`. Every method of both ports may be called from another thread and
returns at once. The service handles frames and bytes (`argosy_engine.transfer`), the loop blocks
and sequences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from argosy_engine.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True, order=True)
class LeaseKey:
    """Names one prefilled prompt of one process."""

    request_id: str
    attempt: int

    engine_epoch: str
    """Random at each start of the process, so that a key from before a restart never matches."""


# ------------------------------------------------------------------ decode side


@dataclass(frozen=True, slots=True, kw_only=True)
class PullJob:
    """Fetch a prompt's KV."""

    request_id: str
    attempt: int

    token_ids: Sequence[int]
    """The prompt."""

    sampling: SamplingParams

    candidates: tuple[str, ...]
    """Prefill engines, "ip:port" or "ip:port/uid of the pod", tried in order."""

    block_ids: tuple[int, ...]
    """Blocks of the whole prompt, in its order."""

    have_tokens: int
    """Leading tokens whose KV is here, a multiple of the block size; their blocks must not be
    written."""

    timeout_s: float
    """How long it may show no progress before READY, all candidates together."""

    priority: int = 0
    """The request's; the prefill engine's queue goes by it, too."""

    first_has_kv: bool = False
    """The first candidate has the KV already: it generated this text before."""

    def has_kv(self, candidate: str) -> bool:
        """Whether this candidate has the KV already."""
        return self.first_has_kv and candidate == self.candidates[0]


class FailedPrefill(NamedTuple):
    """A prefill engine that was asked for a prompt and did not hand it over."""

    address: str
    """As the gateway named it."""

    reason: str
    """REFUSED's reason, or else a `PullCause`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAlive:
    """A prefill engine makes progress with the prompt."""

    request_id: str
    attempt: int

    lasts_s: float
    """The service gives the pull up by itself if nothing more happens for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReady:
    """The prompt is computed on `prefill_pod`; `first_token` may be streamed at once."""

    request_id: str
    attempt: int
    first_token: int
    prefill_pod: str

    failed: tuple[FailedPrefill, ...] = ()
    """Candidates that were asked before."""

    lasts_s: float
    """The service gives the pull up by itself within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullDone:
    """All blocks are written and verified. The service never touches them again."""

    request_id: str
    attempt: int
    bytes_moved: int

    seconds: float
    """From each PULL frame to its last byte, added up."""

    exposed_s: float
    """From READY to the last byte."""


PullCause = Literal[
    "connect",
    "refused",
    "fingerprint",
    "timeout",
    "broken",
    "corrupt",
    "cancelled",
    "suspended",
    "shortage",
]
"""Why the last candidate failed; `suspended` if none was asked, because all failed lately;
`shortage` if this engine has no file descriptor, which is no candidate's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullFailed:
    """The last candidate failed, the time is over, or `cancel_pull` took effect.

    The service never touches the blocks again. `after_failure` says what becomes of the request.
    """

    request_id: str
    attempt: int

    cause: PullCause
    """A label of the metrics."""

    message: str
    """For the log."""

    reason: str = ""
    """REFUSED's, if the last candidate refused."""

    failed: tuple[FailedPrefill, ...] = ()
    """All candidates that were asked."""

    verified: int = 0
    """Blocks from the prompt's first one on that are here and of this prompt. 0 unless READY was
    checked and the peer broke off or was too slow after it."""


PullEvent = PullAlive | PullReady | PullDone | PullFailed


class PullPort(Protocol):
    """The KV service as a decode engine's loop sees it."""

    def start_pull(self, job: PullJob) -> None:
        """Ends in exactly one PullDone or PullFailed; at most one PullReady comes before, and any
        number of PullAlive before that."""
        ...

    def cancel_pull(self, request_id: str, attempt: int) -> None:
        """Stop soon. PullFailed (or a PullDone under way) still comes; then blocks are freed."""
        ...


# ------------------------------------------------------------------ prefill side


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePrefill:
    """A valid PREFILL frame: compute the prompt, draw one token, hold the KV."""

    request_id: str
    attempt: int
    token_ids: tuple[int, ...]

    sampling: SamplingParams
    """The client's, with its `max_tokens`; only one token is drawn here."""

    lease_s: float
    """How long the blocks are held, unless the peer renews the lease."""

    priority: int = 0
    """Lower leaves the queue first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillProgress:
    """More blocks may be sent."""

    n_ready: int
    """Blocks from the prompt's first one on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReady:
    """The prompt is computed and its blocks are held under `key` for `lease_s` from now."""

    key: LeaseKey
    first_token: int

    n_tokens: int
    """Length of the prompt."""

    n_blocks: int
    """ceil(n_tokens / block_size)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRefused:
    """The prompt is not computed."""

    request_id: str
    attempt: int

    reason: str
    """A `Refusal`'s code, or "failed"."""

    message: str


PrefillEvent = PrefillProgress | LeaseReady | PrefillRefused


class PrefillPort(Protocol):
    """The engine as the KV service sees it. Thread-safe; waits for a short lock at most."""

    @property
    def engine_epoch(self) -> str:
        """Random at each start of the process; part of every lease key, sent in ADMITTED."""
        ...

    @property
    def computed_steps(self) -> int:
        """Steps since the start: an engine that hangs counts no further."""
        ...

    def submit_remote_prefill(
        self, prefill: RemotePrefill, on_event: Callable[[PrefillEvent], None]
    ) -> str:
        """Queue the prompt and return the ticket of its lease. Raises LeaseTakenError.

        `on_event` is called on the engine's thread, any number of times with PrefillProgress and
        then once with LeaseReady or PrefillRefused.
        """
        ...

    def find_lease(self, ticket: str) -> LeaseKey:
        """Raises LeaseGoneError."""
        ...

    def abort_remote_prefill(self, request_id: str, attempt: int) -> None:
        """The peer is gone: stop before the lease, or release it when it exists. Idempotent."""
        ...

    def begin_send(self, key: LeaseKey) -> tuple[int, ...]:
        """Pin the lease's blocks and return the ids of those that are ready.

        Expiry waits for `end_send`. Raises LeaseGoneError.
        """
        ...

    def end_send(self, key: LeaseKey) -> None:
        """Undo one `begin_send`."""
        ...

    def observe_send(self, *, bytes_moved: int, seconds: float) -> None:
        """For the metrics: KV was sent over a connection; `seconds` are those of its sends."""
        ...

    def renew(self, key: LeaseKey, lease_s: float) -> None:
        """Let the lease live `lease_s` from now. Raises LeaseGoneError."""
        ...

    def release(self, key: LeaseKey) -> None:
        """The peer has everything: free the blocks (they stay in the prefix cache). Idempotent."""
        ...


class TransferService(PullPort, Protocol):
    """The KV service, which `argosy_engine.transfer.service.KvService` implements."""

    def start(self) -> None:
        """Bind the port and start the thread; OSError when the port is taken."""
        ...

    def close(self) -> None:
        """Close connections (peers' leases end) and join the thread."""
        ...


def refuse_tp(*, prefill: int, decode: int) -> str | None:
    """Why engines of these tensor-parallel sizes cannot exchange KV; None if they can.

    Each rank holds a share of the KV heads. Shares can be cut and joined when one size divides the
    other.
    """
    if max(prefill, decode) % min(prefill, decode) == 0:
        return None
    return (
        f"prefill splits its KV heads over {prefill} ranks and decode over {decode}: use sizes of "
        "which one divides the other"
    )
