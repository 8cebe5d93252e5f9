"""One request's life inside the scheduler: what enters, its progress, and what leaves.

    QUEUED → RUNNING (prefill, then decode) → FINISHED
    QUEUED → PULLING (a peer computes the prompt) → ARRIVED → RUNNING → FINISHED
    RUNNING → PREEMPTED (computed again later, or swapped back) → RUNNING
    RUNNING → LEASED (a remote prefill, or a stream that goes on elsewhere: its blocks are held for
                      the peer) → FINISHED

The HTTP server and the engine loop make a `NewRequest`. The scheduler keeps a `Sequence` for it and
returns an `Emission` for each token and for the end.
"""

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from argosy_engine.core.sampling import Likely, SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]
ErrorCode = Literal[
    "internal_error", "queue_timeout", "kv_transfer_failed", "context_length_exceeded", "invalid"
]

_ADDED = re.compile(r"(\.[0-9a-f]{8})?(#[0-9]+)?\Z")
"""What makes ids unique: the HTTP server adds `.` and random digits, a prefill engine `#` and the
attempt."""


def client_id(request_id: str) -> str:
    """The client's `x-request-id` within an engine's id of a request; for log lines.

    The engine appends what makes its own ids unique, and cuts the client's to 119 characters.
    """
    return _ADDED.sub("", request_id, count=1)


class State(Enum):
    QUEUED = "queued"
    """Waits for admission; has no blocks."""

    PULLING = "pulling"
    """It has blocks but no place in the batch; a peer computes the prompt. The state of the pull is
    `PullState`."""

    ARRIVED = "arrived"
    """Its pull is over; it waits for a place in the batch."""

    RUNNING = "running"
    """Admitted; computed here, step by step."""

    PREEMPTED = "preempted"
    """Waits for readmission with its tokens, without blocks; its KV is in the host pool or gone."""

    LEASED = "leased"
    """A remote prefill with its first token, one that was ended on the way, or a stream that goes
    on at another engine; its blocks stay until `free_lease`, because a peer may read them."""

    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """What enters the scheduler; checked by `Scheduler.refusal`."""

    request_id: str
    """Unique among the unfinished ones."""

    token_ids: list[int]
    """The prompt."""

    sampling: SamplingParams

    arrival_s: float
    """Time of arrival in seconds, on the clock of `Scheduler.schedule`'s `now`."""

    attempt: int = 1
    """Counts up when the gateway sends the same request again, so that late events of
    an earlier attempt are recognised."""

    candidates: tuple[str, ...] = ()
    """Prefill engines ("ip:port") that may compute the prompt, the best first. Empty: it is
    computed here."""

    first_has_kv: bool = False
    """The first candidate is a decode engine that holds the KV of this text: it served the stream
    before."""

    lease_s: float | None = None
    """Set for a remote prefill: it ends LEASED, and its blocks are held this many seconds."""

    priority: int = 0
    """Lower leaves the queue first."""

    cache_salt: str = ""
    """Requests find only the prefixes of requests with the same salt."""

    deadline_s: float = float("inf")
    """Latest time of admission; later, it fails with `queue_timeout`."""

    tpot_limit_s: float = 0.0
    """What its caller wants at most per output token; 0 if it said nothing."""

    accepted: bool = False
    """Another choice of a prompt that was accepted: neither a full queue nor the length of a step
    refuses it any more."""

    first_token_by_s: float = 0.0
    """Until this time a first token that a peer drew may wait for the sequence to join a batch, on
    the clock of `arrival_s`; 0: it is emitted at once."""


BlockTable: TypeAlias = "array[int]"
"""Numbers of KV blocks as 32-bit integers, which a runner copies as memory: reading a list of
Python's integers one by one takes longer than all else that the host does for a long step."""


def to_table(blocks: Iterable[int]) -> BlockTable:
    """A table of these blocks; OverflowError for a number that 32 bits do not hold."""
    return array("i", blocks)


# Not frozen: the scheduler moves the chunk of a decode on from step to step.
@dataclass(slots=True, kw_only=True)
class Chunk:
    """One sequence's share of a step: compute tokens [start, start + count) and write their KV.

    `tokens` and `block_table` are the sequence's own lists, not copies. Nothing in a chunk changes
    until `update` of the same step; the chunk of a decode is used again after it.
    """

    request_id: str

    tokens: list[int]
    """Prompt and output so far."""

    block_table: BlockTable
    """KV blocks in the order of the text."""

    start: int
    count: int

    samples: bool
    """The chunk reaches the sequence's last token, so the next one is drawn."""

    decode: bool
    """One token that was itself an output; False for prompt tokens and recomputed ones."""

    sampling: SamplingParams

    n_prompt: int = 0
    """How many of `tokens` are the prompt."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and its progress."""

    request: NewRequest

    tokens: list[int]
    """The prompt and the output so far."""

    arrival_index: int
    """Breaks ties of equal arrival times."""

    state: State = State.QUEUED

    num_computed: int = 0
    """Number of leading tokens whose KV is in `blocks`."""

    blocks: BlockTable = field(default_factory=lambda: to_table(()))
    """KV blocks in the order of the text."""

    hashes: list[bytes] = field(default_factory=list)
    """Chained hashes of the full blocks of `tokens`, as far as they were needed."""

    committed: int = 0
    """Number of leading blocks that are in the prefix cache."""

    cached_tokens: int = 0
    """Tokens found in the prefix cache at the first admission."""

    preemptions: int = 0

    swapped: list[int] = field(default_factory=list)
    """Slots of the host pool with the KV of its `num_computed` tokens, while it is PREEMPTED."""

    last_step: int = 0
    """Index of the last step that computed some of it."""

    decode_chunk: Chunk | None = None
    """Its share of the steps in which it decodes."""

    wait_deadline_s: float = float("inf")
    """Latest time of admission while it is QUEUED; none once it was admitted."""

    handover_saved: bool = False
    """A peer could compute the prompt, and it is computed here because that costs less."""

    pull_cancelled: bool = False
    """Its pull was cancelled; it is never pulled again."""

    scheduled_s: float | None = None
    """Time of the first admission."""

    arrived_s: float | None = None
    """When the last byte of its pulled KV came."""

    joined_s: float | None = None
    """When it joined the batch with pulled KV, if it had to wait for a place."""

    first_token_s: float | None = None

    first_token_held_s: float = 0.0
    """How long its first token was held; see `FirstTokens`."""

    drawn_by_peer: bool = False
    """A peer computed the prompt and drew the first token."""

    last_token_s: float | None = None

    n_prompt: int = field(init=False)
    """Tokens of the prompt."""

    prompt_likely: dict[int, Likely] = field(default_factory=dict)
    """What is told of the prompt's tokens, by position, if the request asks for it."""

    reason: FinishReason | None = None
    """Why it ended; None before. A PULLING sequence may have one before it is FINISHED: its blocks
    stay until the KV service lets go of them."""

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def sampling(self) -> SamplingParams:
        return self.request.sampling

    def __post_init__(self) -> None:
        self.n_prompt = len(self.request.token_ids)

    @property
    def n_output(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def remaining(self) -> int:
        """Tokens whose KV is missing."""
        return len(self.tokens) - self.num_computed

    @property
    def decoding(self) -> bool:
        """Only the KV of its last output token is missing; otherwise it is in prefill."""
        count = len(self.tokens)
        return count - self.num_computed == 1 and count > self.n_prompt

    @property
    def rank(self) -> tuple[int, float, int]:
        """Place in the queue, lowest first; a preempted request keeps its arrival."""
        return (self.request.priority, self.request.arrival_s, self.arrival_index)

    def stamp_admission(self, now: float) -> None:
        """Record the first admission and its prefix hit; a readmission changes neither."""
        if self.scheduled_s is None:
            self.scheduled_s = now
            self.cached_tokens = self.num_computed

    def join(self, now: float | None) -> None:
        """Go into the batch with pulled KV; None: as soon as that came."""
        self.state, self.joined_s = State.RUNNING, now

    def stamp_token(self, now: float) -> float | None:
        """Record the time of a new token; seconds since the previous one, None for the first."""
        last, self.last_token_s = self.last_token_s, now
        if self.first_token_s is None:
            self.first_token_s = now
        return None if last is None else now - last

    def finish_reason(
        self, token_id: int, eos: frozenset[int], max_model_len: int
    ) -> FinishReason | None:
        """Whether the token just appended is the last: min_tokens, then eos, stop ids, length."""
        sampling, length = self.request.sampling, len(self.tokens)
        produced = length - self.n_prompt
        # An answer that a grammar ends is whole, however short it is.
        if produced >= sampling.min_tokens or sampling.grammar:
            if token_id in eos and not sampling.ignore_eos:
                return "stop"
            if token_id in sampling.stop_token_ids:
                return "stop"
        if produced >= sampling.max_tokens or length >= max_model_len:
            return "length"
        return None

    def max_total(self, max_model_len: int) -> int:
        """The most tokens whose KV this engine may need for it."""
        if self.request.lease_s is not None:
            return self.n_prompt  # the peer computes the KV of the first token
        return min(self.n_prompt + self.sampling.max_tokens, max_model_len)


# Not frozen: one is made for each token, and freezing would double its cost.
@dataclass(slots=True)
class Emission:
    """What a client must learn: a token, an end, or both."""

    sequence: Sequence

    token_id: int | None = None

    gap_s: float | None = None
    """Seconds since the sequence's previous token; None for the first."""

    reason: FinishReason | None = None
    """Set with the last token, or alone when the request failed."""

    message: str = ""
    """What went wrong, with reason "error"."""

    code: ErrorCode = "internal_error"

    leased: bool = False
    """A remote prefill is computed and can be pulled."""

    likely: Likely = ()
    """What is told of the token, if the request asks for it."""
