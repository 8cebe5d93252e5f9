"""One request's life inside the scheduler.

QUEUED → [PULLING] → RUNNING (prefill, then decode) ⇄ PREEMPTED (recompute) → FINISHED;
a remote prefill goes RUNNING → LEASED → FINISHED, its blocks held until the lease ends.
"""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from argosy_engine.core.sampling import SamplingParams

__all__ = [
    "Emission",
    "ErrorCode",
    "FinishReason",
    "NewRequest",
    "Sequence",
    "State",
    "client_id",
]

FinishReason = Literal["stop", "length", "abort", "error"]
ErrorCode = Literal["internal_error", "queue_timeout"]

_ADDED = re.compile(r"(\.[0-9a-f]{8})?(#[0-9]+)?\Z")


def client_id(request_id: str) -> str:
    """The `x-request-id` in an engine's own id, without what made it unique; for log lines.

    Of an `x-request-id` with more than 119 characters, the first 119.
    """
    return _ADDED.sub("", request_id, count=1)


class State(Enum):
    QUEUED = "queued"
    PULLING = "pulling"
    RUNNING = "running"
    PREEMPTED = "preempted"
    LEASED = "leased"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """What enters the scheduler; validated by `Scheduler.refusal`."""

    request_id: str  # unique among the unfinished
    token_ids: list[int]
    sampling: SamplingParams
    arrival_s: float
    attempt: int = 1
    candidates: tuple[str, ...] = ()  # prefill engines to pull from; empty: compute here
    lease_s: float | None = None  # set: a remote prefill that ends LEASED
    priority: int = 0  # lower runs first
    deadline_s: float = float("inf")  # to be admitted by


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and its progress. `tokens` is the prompt with the output so far."""

    request: NewRequest
    tokens: list[int]
    arrival_index: int  # breaks ties of arrival
    state: State = State.QUEUED
    num_computed: int = 0  # tokens whose KV is in `blocks`
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # of the full blocks of `tokens`, lazily
    committed: int = 0  # how many of them the pool knows
    cached_tokens: int = 0  # prefix hit at the first admission
    preemptions: int = 0
    last_step: int = 0
    wait_deadline_s: float = float("inf")
    pull_cancelled: bool = False  # it is never pulled again
    scheduled_s: float | None = None  # first admission
    first_token_s: float | None = None
    last_token_s: float | None = None
    reason: FinishReason | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def sampling(self) -> SamplingParams:
        return self.request.sampling

    @property
    def n_prompt(self) -> int:
        return len(self.request.token_ids)

    @property
    def n_output(self) -> int:
        return len(self.tokens) - len(self.request.token_ids)

    @property
    def remaining(self) -> int:
        """Tokens whose KV is missing. One, with output: a decode. Otherwise: a prefill."""
        return len(self.tokens) - self.num_computed

    @property
    def decoding(self) -> bool:
        count = len(self.tokens)
        return count - self.num_computed == 1 and count > len(self.request.token_ids)

    @property
    def rank(self) -> tuple[int, float, int]:
        """Order of admission; a preempted request keeps its arrival."""
        return (self.request.priority, self.request.arrival_s, self.arrival_index)

    def stamp_admission(self, now: float) -> None:
        """Note the first admission and its prefix hit; a readmission changes neither."""
        if self.scheduled_s is None:
            self.scheduled_s = now
            self.cached_tokens = self.num_computed

    def stamp_token(self, now: float) -> float | None:
        """Note the time of a new token; seconds since the previous one, None for the first."""
        last, self.last_token_s = self.last_token_s, now
        if self.first_token_s is None:
            self.first_token_s = now
        return None if last is None else now - last

    def finish_reason(
        self, token_id: int, eos: frozenset[int], max_model_len: int
    ) -> FinishReason | None:
        """Whether the token just appended is the last: min_tokens, then eos, stop ids, length."""
        sampling, produced = self.request.sampling, self.n_output
        if produced >= sampling.min_tokens:
            if token_id in eos and not sampling.ignore_eos:
                return "stop"
            if token_id in sampling.stop_token_ids:
                return "stop"
        if produced >= sampling.max_tokens or len(self.tokens) >= max_model_len:
            return "length"
        return None

    def max_total(self, max_model_len: int) -> int:
        """Tokens whose KV this request may ever need here."""
        if self.request.lease_s is not None:
            return self.n_prompt  # its first token's KV is written by the peer
        return min(self.n_prompt + self.sampling.max_tokens, max_model_len)


# Not frozen: one is made for each token, and freezing would double its cost.
@dataclass(slots=True)
class Emission:
    """Something that its client must learn: a token, an end, or both."""

    sequence: Sequence
    token_id: int | None = None
    gap_s: float | None = None  # since this sequence's previous token
    reason: FinishReason | None = None
    message: str = ""  # with reason "error"
    code: ErrorCode = "internal_error"
    leased: bool = False  # a remote prefill is ready to be pulled
