"""Capacity policies: may the next waiting sequence be admitted?

The names are TensorRT-LLM's. GUARANTEED_NO_EVICT reserves blocks for the longest possible output
and never preempts. MAX_UTILIZATION admits what fits now, and preempts when that was too much.
Example with 100 available blocks and 80 that the admitted sequences may still ask for: a request
with 10 blocks of prompt and 20 of growth needs 110 under the first and waits; it needs 10 and the
headroom under the second and enters.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from argosy_engine.core.request import Sequence

__all__ = [
    "Candidate",
    "CapacityPolicy",
    "GuaranteedNoEvict",
    "MaxUtilization",
    "Pressure",
    "blocked_by",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The sequence at the head of the queue."""

    prompt_blocks: int
    """Available blocks that it takes at admission, for its whole prompt."""

    growth_blocks: int
    """Blocks that it may need afterwards, up to its longest possible end."""

    preemptions: int
    """How often it was preempted."""


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


class CapacityPolicy(Protocol):
    """Decides about one candidate at a time; may learn from preemptions."""

    def admits(self, candidate: Candidate, pressure: Pressure) -> bool:
        """Whether the candidate enters now."""
        ...

    def preempted(self, step: int) -> None:
        """A sequence was preempted before this step."""
        ...


class GuaranteedNoEvict:
    """Admits when the longest possible ends of all admitted sequences fit. Never preempts."""

    def admits(self, candidate: Candidate, pressure: Pressure) -> bool:
        need = candidate.prompt_blocks + candidate.growth_blocks + pressure.growth_blocks
        return need <= pressure.available

    def preempted(self, step: int) -> None:
        raise AssertionError(f"step {step} preempted although every end was reserved")


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


def blocked_by(
    policy: CapacityPolicy, candidate: Candidate, pressure: Pressure, leased: Iterable[Sequence]
) -> Literal["kv", "lease"] | None:
    """What keeps the candidate out; "lease" if it could enter were it not for the leased blocks."""
    if policy.admits(candidate, pressure):
        return None
    held = sum(len(sequence.blocks) for sequence in leased)
    if held and policy.admits(candidate, replace(pressure, available=pressure.available + held)):
        return "lease"
    return "kv"
