"""The seam between the engine loop and the KV service (its own thread, asyncio, TCP port 8002).

Decode side: the loop calls `PullPort`; the service posts `PullEvent`s into the loop's inbox.
Prefill side: the service calls `PrefillPort`; the loop calls the given `on_event` with
`LeaseReady` or `PrefillRefused`. Every method of both ports may be called from another thread and
returns at once. Frames and bytes are the service's business (`argosy_engine.transfer`), blocks and
sequences are the loop's.

`argosy_engine.transfer.service` offers `KvService(*, config: EngineConfig, runner: Runner,
prefill: PrefillPort, post: Callable[[PullEvent], None])`, which is a `TransferService`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from argosy_engine.core.sampling import SamplingParams

__all__ = [
    "LeaseKey",
    "LeaseReady",
    "PrefillEvent",
    "PrefillPort",
    "PrefillRefused",
    "PullCause",
    "PullDone",
    "PullEvent",
    "PullFailed",
    "PullJob",
    "PullPort",
    "PullReady",
    "RemotePrefill",
    "TransferService",
]


@dataclass(frozen=True, slots=True, order=True)
class LeaseKey:
    """Names one prefilled prompt on one life of one engine; a recycled id can never match."""

    request_id: str
    attempt: int
    engine_epoch: str


# ------------------------------------------------------------------ decode side


@dataclass(frozen=True, slots=True, kw_only=True)
class PullJob:
    """Fetch a prompt's KV. `block_ids` cover the whole prompt, in order; the first
    `have_tokens` (a multiple of the block size) are here already and must not be written."""

    request_id: str
    attempt: int
    token_ids: Sequence[int]
    sampling: SamplingParams
    candidates: tuple[str, ...]  # "ip:port", tried in order
    block_ids: tuple[int, ...]
    have_tokens: int
    timeout_s: float  # for the whole pull, all candidates together


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReady:
    """The prompt is computed on `prefill_pod`; `first_token` may be streamed at once."""

    request_id: str
    attempt: int
    first_token: int
    prefill_pod: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PullDone:
    """All blocks are written and verified. The service never touches them again."""

    request_id: str
    attempt: int
    bytes_moved: int
    seconds: float  # from the PULL frame to the last byte


PullCause = Literal[
    "connect", "refused", "fingerprint", "timeout", "broken", "corrupt", "cancelled", "suspended"
]
"""The last candidate's; `suspended` when none was asked, because each one failed lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullFailed:
    """The last candidate failed, the time is over, or `cancel_pull` took effect.

    The service never touches the blocks again. `cause` is a metric label, `message` is for logs:
    the request falls back to a local prefill.
    """

    request_id: str
    attempt: int
    cause: PullCause
    message: str


PullEvent = PullReady | PullDone | PullFailed


class PullPort(Protocol):
    """Decode's side of the service."""

    def start_pull(self, job: PullJob) -> None:
        """Ends in exactly one PullDone or PullFailed; at most one PullReady comes before."""
        ...

    def cancel_pull(self, request_id: str, attempt: int) -> None:
        """Stop soon. PullFailed (or a PullDone under way) still comes; then blocks are freed."""
        ...


# ------------------------------------------------------------------ prefill side


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePrefill:
    """A PREFILL frame, validated. `max_tokens` is the client's; one token is drawn here."""

    request_id: str
    attempt: int
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReady:
    """The prompt is computed and its blocks are held under `key` for `lease_s` from now."""

    key: LeaseKey
    first_token: int
    n_tokens: int
    block_ids: tuple[int, ...]  # ceil(n_tokens / block_size) of them
    queue_s: float
    prefill_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRefused:
    """Not admitted, or failed. `reason`: a `Refusal`'s code, or failed."""

    request_id: str
    attempt: int
    reason: str
    message: str


PrefillEvent = LeaseReady | PrefillRefused


class PrefillPort(Protocol):
    """The engine as the KV server sees it. Thread-safe; never blocks longer than a short lock."""

    @property
    def engine_epoch(self) -> str:
        """Random at each start of the process; part of every lease key, sent in ACCEPTED."""
        ...

    def submit_remote_prefill(
        self, prefill: RemotePrefill, on_event: Callable[[PrefillEvent], None]
    ) -> None:
        """Queue the prompt. `on_event` is called exactly once, on the engine's thread."""
        ...

    def abort_remote_prefill(self, request_id: str, attempt: int) -> None:
        """The peer is gone: stop before the lease, or release it when it exists. Idempotent."""
        ...

    def begin_send(self, key: LeaseKey) -> tuple[int, ...]:
        """Pin the lease's blocks and return their ids; expiry waits for `end_send`.

        Raises LeaseGoneError.
        """
        ...

    def end_send(self, key: LeaseKey) -> None:
        """Undo one `begin_send`."""
        ...

    def observe_send(self, *, bytes_moved: int, seconds: float) -> None:
        """A prompt's KV went out, for the metrics: bytes, and seconds from PULL to the last."""
        ...

    def renew(self, key: LeaseKey, lease_s: float) -> None:
        """Let the lease live `lease_s` from now. Raises LeaseGoneError."""
        ...

    def release(self, key: LeaseKey) -> None:
        """The peer has everything: free the blocks (they stay in the prefix cache). Idempotent."""
        ...


class TransferService(PullPort, Protocol):
    """The KV service's life."""

    def start(self) -> None:
        """Bind the port and start the thread; OSError when the port is taken."""
        ...

    def close(self) -> None:
        """Close connections (peers' leases end) and join the thread."""
        ...
