"""What one simulated pod holds: its queue, its batch, and the counters that its exporter shows.

`fleet.World` changes them; `scrape` reads them. Requests are numbers, the rows of a trace. Times
are seconds of the simulation.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from argosy_law.sim.world.machine import steps_s, steps_within

Request = int
"""Place of a request in the trace."""


@dataclass(slots=True, eq=False, kw_only=True)
class Pod:
    """What pods of both roles have."""

    name: str
    created_at: float
    ready_at: float
    gone_at: float = inf
    drain_at: float = inf
    """When it began to leave; inf while it is wanted."""
    becomes: Literal["prefill", "decode"] | None = None
    """Its next role: while it leaves, what it will be once it is empty. None: it ends then."""
    flipped: bool = False
    """Whether it had another role before."""
    revision: int = 0
    """Place of its revision in the world's list."""
    slowness: float = 1.0
    """How many times as long its steps take as those of the first revision."""
    fails_at: float = inf
    """When it says that it does not start; inf: it starts."""
    open: int = 0
    """Requests that were sent here and have not left."""
    link_free_at: float = 0.0
    """When the KV that is on its link now, and what queues for the link, has been moved."""
    steps: int = 0
    seconds: float = 0.0
    """Time in steps."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of prompts that have their first token, and what a prefix cache had of them."""

    @property
    def draining(self) -> bool:
        return self.drain_at < inf

    @property
    def gone(self) -> bool:
        return self.gone_at < inf


@dataclass(slots=True, eq=False, kw_only=True)
class PrefillPod(Pod):
    """Computes prompts first in, first out, in steps of a bounded number of tokens."""

    queue: deque[Request] = field(default_factory=deque)
    """Prompts that are not computed; the first may be computed in part."""
    computed: int = 0
    """Tokens of the first prompt that are computed."""
    tokens: int = 0
    """Tokens of the prompts in `queue` that are to be computed, the computed part included."""
    batch: list[tuple[Request, int]] = field(default_factory=list)
    """Prompts of the running step with their tokens in it; empty while the pod is idle."""
    whole: int = 0
    """How many prompts of the step, from the first on, are computed when it ends."""
    prefill_tokens: int = 0
    prefill_requests: int = 0
    """Prompts in a step, summed over the steps."""

    @property
    def outstanding_tokens(self) -> int:
        return self.tokens - self.computed


@dataclass(slots=True, eq=False, kw_only=True)
class DecodePod(Pod):
    """Steps a batch. Between two events the batch is the same, so its steps have a closed form."""

    kv_free: int
    """Tokens of KV that no sequence has reserved."""
    waiting: deque[tuple[Request, Pod]] = field(default_factory=deque)
    """Computed prompts for whose KV and answer there is no room yet, and where their KV is."""
    landing: deque[tuple[float, Request, float]] = field(default_factory=deque)
    """When the KV of a sequence is here, the sequence, and how long it took; earliest first."""
    ends: list[tuple[int, Request]] = field(default_factory=list)
    """Heap of the batch: the value of `steps` at which a sequence has its last token."""
    context: int = 0
    """Tokens of context of the batch in its next step."""
    jump: int = 0
    """Steps until the next event of this pod; 0 while it is idle."""
    jump_at: float = 0.0
    first_s: float = 0.0
    growth_s: float = 0.0
    """See `machine.steps_s`."""
    version: int = 0
    """Of the plan: an event of an earlier plan is void."""
    decode_sequences: int = 0
    context_tokens: int = 0
    """Of each step, summed over the steps."""
    transfers: int = 0
    transfer_s: float = 0.0

    def end_steps(self, steps: int) -> None:
        """Count so many steps of the jump as done."""
        batch, context = len(self.ends), self.context
        self.steps += steps
        sequences, pairs = steps * batch, steps * (steps - 1) // 2
        self.seconds += steps * self.first_s + self.growth_s * pairs
        self.decode_sequences += sequences
        self.context_tokens += steps * context + batch * pairs
        self.context = context + sequences

    def edge_after(self, now: float, further: int = 0) -> float:
        """When its running step ends, and so many `further` ones of its batch; now while it is
        idle."""
        if not self.jump:
            return now
        done = steps_within(self.first_s, self.growth_s, now - self.jump_at)
        return self.jump_at + steps_s(self.first_s, self.growth_s, done + 1 + further)

    def counted(self, now: float) -> tuple[float, int, int, int]:
        """(seconds, steps, sequences, context tokens) of the steps that have ended by now."""
        done = 0
        if self.jump:
            done = min(steps_within(self.first_s, self.growth_s, now - self.jump_at), self.jump)
        batch = len(self.ends)
        return (
            self.seconds + steps_s(self.first_s, self.growth_s, done),
            self.steps + done,
            self.decode_sequences + done * batch,
            self.context_tokens + done * self.context + batch * (done * (done - 1) // 2),
        )


def least_tokens(pods: Sequence[PrefillPod]) -> PrefillPod | None:
    """The first of those with the fewest tokens to compute; None of none.

    A loop over a few pods takes half of the time of `min` with a key.
    """
    found, least = None, inf
    for pod in pods:
        if pod.tokens < least:
            found, least = pod, pod.tokens
    return found


def least_open(pods: Sequence[DecodePod]) -> DecodePod | None:
    """The first of those with the fewest requests; None of none."""
    found, least = None, inf
    for pod in pods:
        if pod.open < least:
            found, least = pod, pod.open
    return found


@dataclass(slots=True, eq=False, kw_only=True)
class ColocatedPod(DecodePod):
    """Computes prompts beside its batch, or between its steps; the sequences stay here."""

    queue: deque[Request] = field(default_factory=deque)
    """Prompts that are not computed; the first may be computed in part."""
    computed: int = 0
    """Tokens of the first prompt that are computed. From its first ones on it has its KV."""
    tokens: int = 0
    """Tokens of the prompts in `queue` that are to be computed, the computed part included."""
    batch: list[tuple[Request, int]] = field(default_factory=list)
    """Prompts of the running step with their tokens in it."""
    stalled: bool = False
    """The running step has prompts alone: decodes stand still."""
    prompt_steps: int = 0
    """Such steps so far; `steps` has the others."""
    prefill_tokens: int = 0
    prefill_requests: int = 0
    """Prompts in a step, summed over the steps."""
