"""Capacity policies: may one more sequence enter, given what the others may still need?

TensorRT-LLM's two names: GUARANTEED_NO_EVICT reserves the longest possible output and never
preempts; MAX_UTILIZATION admits on what the next steps need, and preempts when that was too much.
All numbers are blocks.
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
    """The sequence that wants in."""

    prompt_blocks: int  # taken from the available ones now, for its whole prompt
    growth_blocks: int  # further ones until its longest possible end
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """What is inside already."""

    available: int
    growth_blocks: int  # still to come, of those inside
    inside: int  # sequences
    step: int


class CapacityPolicy(Protocol):
    """One decision, and what it should learn from a preemption."""

    def admits(self, candidate: Candidate, pressure: Pressure) -> bool: ...

    def preempted(self, step: int) -> None: ...


class GuaranteedNoEvict:
    """Everybody's longest end fits: no preemption, ever."""

    def admits(self, candidate: Candidate, pressure: Pressure) -> bool:
        need = candidate.prompt_blocks + candidate.growth_blocks + pressure.growth_blocks
        return need <= pressure.available

    def preempted(self, step: int) -> None:
        raise AssertionError(f"step {step} preempted although every end was reserved")


class MaxUtilization:
    """The whole prompt and some head-room fit. The head-room doubles with each preemption soon
    after another and halves in quiet times; who was preempted three times gets a full reservation.
    """

    QUIET_STEPS = 64
    PATIENCE = 3

    def __init__(self) -> None:
        self._headroom = 1
        self._last_step = 0

    def admits(self, candidate: Candidate, pressure: Pressure) -> bool:
        if not pressure.inside:
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
