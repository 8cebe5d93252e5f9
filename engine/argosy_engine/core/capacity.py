"""Capacity policies: may the next waiting sequence be admitted?

MAX_UTILIZATION admits what fits now, and preempts when that was too much. The others look ahead:

    GUARANTEED_NO_EVICT  reserves blocks for the longest possible output of every sequence
    PAST_FUTURE          reserves the most that all are expected to hold at one time: sequences that
                         end give their blocks back before the others have grown to their ends

Example with 100 available blocks and 80 that the admitted sequences may still ask for: a request
with 10 blocks of prompt and 20 of growth needs 110 under GUARANTEED_NO_EVICT and waits; it needs 10
and the headroom under MAX_UTILIZATION and enters.

The first two names are TensorRT-LLM's; PAST_FUTURE is LightLLM's scheduler (arXiv 2507.10150).
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Literal, NamedTuple, Protocol

from argosy_engine.core.handover.messages import PullJob
from argosy_engine.core.handover.pulls import PullShare
from argosy_engine.core.request import Sequence, State
from argosy_engine.core.step import BlockedBy


class Hold(NamedTuple):
    """What one sequence holds of the pool, and what it may still ask for."""

    blocks: int
    """With those that it shares."""

    end_blocks: int
    """At its longest possible end."""

    left: int
    """Output tokens until then."""

    produced: int
    """Output tokens so far."""

    decodes: bool
    """It grows by one token in each step from now on. False while its prompt is missing or its KV
    on the way: nobody knows when it will begin to grow."""


def hold_of(sequence: Sequence, blocks: int, block_size: int, max_model_len: int) -> Hold:
    """Of a sequence that has so many blocks, or will have them once it is admitted."""
    longest = sequence.max_total(max_model_len)
    return Hold(
        blocks=blocks,
        end_blocks=max(blocks, -(-longest // block_size)),
        left=max(0, longest - len(sequence.tokens)),
        produced=sequence.n_output,
        decodes=sequence.state is State.RUNNING and sequence.decoding,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The sequence at the head of the queue."""

    prompt_blocks: int
    """Available blocks that it takes at admission, for its whole prompt."""

    growth_blocks: int
    """Blocks that it may need afterwards, up to its longest possible end."""

    preemptions: int
    """How often it was preempted."""

    hold: Hold
    """What it would hold once it is admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """The pool, and what the admitted sequences may still ask of it."""

    available: int
    """Blocks that are free, or cached and not in use."""

    growth_blocks: int
    """Blocks that the admitted sequences may still need, up to their longest possible ends."""

    admitted: int
    """Sequences that run or pull."""

    step: int
    """Index of the next step."""

    room: int
    """Blocks that are not held by leases and lost pulls."""

    block_size: int

    holds: Callable[[], list[Hold]]
    """Of each admitted sequence. Policies that need no list do not pay for one."""


class CapacityPolicy(Protocol):
    """Decides about one candidate at a time; may learn from preemptions and ends."""

    def admits(self, candidate: Candidate, pressure: Pressure) -> bool:
        """Whether the candidate enters now."""
        ...

    def preempted(self, step: int) -> None:
        """A sequence was preempted before this step."""
        ...

    def finished(self, produced: int) -> None:
        """A sequence ended by itself, after so many output tokens."""
        ...


class GuaranteedNoEvict:
    """Admits when the longest possible ends of all admitted sequences fit. Never preempts what it
    admitted itself; what another policy admitted before it may still have to go."""

    def admits(self, candidate: Candidate, pressure: Pressure) -> bool:
        need = candidate.prompt_blocks + candidate.growth_blocks + pressure.growth_blocks
        return need <= pressure.available

    def preempted(self, step: int) -> None:
        """Nothing to learn."""

    def finished(self, produced: int) -> None:
        """Nothing to learn."""


class MaxUtilization:
    """Admits when the whole prompt and some headroom fit.

    The headroom starts at 1 block, doubles with each preemption that follows another within
    QUIET_STEPS, and halves after QUIET_STEPS without one. A sequence that was preempted PATIENCE
    times enters only with a full reservation, so that it ends.
    """

    QUIET_STEPS = 64
    PATIENCE = 3

    def __init__(self) -> None:
        self._headroom = 1
        self._last_step = 0

    def admits(self, candidate: Candidate, pressure: Pressure) -> bool:
        if not pressure.admitted:
            return candidate.prompt_blocks <= pressure.available
        if pressure.step - self._last_step > self.QUIET_STEPS:
            self._headroom = max(1, self._headroom // 2)
            self._last_step = pressure.step
        need = candidate.prompt_blocks + self._headroom
        if candidate.preemptions >= self.PATIENCE:
            need = candidate.prompt_blocks + candidate.growth_blocks + pressure.growth_blocks
        return need <= pressure.available

    def preempted(self, step: int) -> None:
        self._headroom *= 2 if step - self._last_step <= self.QUIET_STEPS else 1
        self._last_step = step

    def finished(self, produced: int) -> None:
        """Nothing to learn."""


class PastFuture(MaxUtilization):
    """Admits when the expected ends of all admitted sequences fit; may preempt.

    A sequence is expected to produce as many tokens as the median of the last WINDOW outputs that
    were longer than its own so far. With fewer than ENOUGH of them, or with none that was longer,
    it is expected to reach its longest possible end.
    """

    WINDOW = 1000
    ENOUGH = 30
    SHARE = 0.5
    """The quantile. 0.5 served 91 to 96 % of MAX_UTILIZATION's tokens in simulations, with next to
    no preemptions; larger ones serve less."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: deque[int] = deque()
        self._lengths: list[int] = []  # the same, sorted

    def admits(self, candidate: Candidate, pressure: Pressure) -> bool:
        if not super().admits(candidate, pressure):
            return False
        if not pressure.admitted:
            return True
        holds = [self._expected(hold, pressure) for hold in (candidate.hold, *pressure.holds())]
        return peak_blocks(holds, pressure.block_size) <= pressure.room

    def finished(self, produced: int) -> None:
        if len(self._newest) == self.WINDOW:
            oldest = self._newest.popleft()
            del self._lengths[bisect_right(self._lengths, oldest) - 1]
        self._newest.append(produced)
        insort(self._lengths, produced)

    def _expected(self, hold: Hold, pressure: Pressure) -> Hold:
        left = min(hold.left, self._expected_left(hold))
        grown = hold.blocks + -(-left // pressure.block_size)
        return hold._replace(left=left, end_blocks=min(hold.end_blocks, grown))

    def _expected_left(self, hold: Hold) -> int:
        shorter = bisect_right(self._lengths, hold.produced)
        longer = len(self._lengths) - shorter
        if len(self._lengths) < self.ENOUGH or not longer:
            return hold.left
        return self._lengths[shorter + ceil(self.SHARE * longer) - 1] - hold.produced


@dataclass(slots=True)
class Admission:
    """What one round has admitted so far."""

    share: PullShare
    blocked: BlockedBy | None
    """Why no other request enters; None while one may."""

    pull_jobs: list[PullJob] = field(default_factory=list)
    passed: int = 0
    """Requests at the head of the queue that wait although there is room; requests behind them may
    enter."""

    passed_by: BlockedBy | None = None
    """What the first of them waits for."""

    def pass_by(self, why: BlockedBy) -> None:
        self.passed += 1
        self.passed_by = self.passed_by or why


POLICIES: dict[str, Callable[[], CapacityPolicy]] = {
    "MAX_UTILIZATION": MaxUtilization,
    "GUARANTEED_NO_EVICT": GuaranteedNoEvict,
    "PAST_FUTURE": PastFuture,
}
"""By the name that users write."""


def peak_blocks(holds: Iterable[Hold], block_size: int) -> int:
    """The most blocks that these sequences can hold at one time, if none ends early.

    Never too small, if each decode gets one token a step. Blocks that several share count for each
    of them.
    """
    waiting = 0
    decodes: list[tuple[int, int]] = []
    for hold in holds:
        if hold.decodes:
            decodes.append((hold.left, hold.blocks))
        else:
            waiting += hold.end_blocks
    decodes.sort(reverse=True)
    peak = held = 0
    for count, (left, blocks) in enumerate(decodes, 1):
        held += blocks
        peak = max(peak, held + count * -(-left // block_size))
    return waiting + peak


def blocked_by(
    policy: CapacityPolicy, candidate: Candidate, pressure: Pressure, leased: Iterable[Sequence]
) -> Literal["kv", "lease"] | None:
    """What keeps the candidate out; "lease" if it could enter were it not for the leased blocks."""
    if policy.admits(candidate, pressure):
        return None
    held = sum(len(sequence.blocks) for sequence in leased)
    if not held:
        return "kv"
    free = replace(pressure, available=pressure.available + held, room=pressure.room + held)
    return "lease" if policy.admits(candidate, free) else "kv"
