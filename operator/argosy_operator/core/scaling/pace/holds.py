"""Holds and steps: what keeps a right answer from being taken too often or too fast.

`Memory` is one role's past wants; `settle` turns wants into a number and names the rule. Called by
`decide` with all durations from `goals.Windows`.
"""

from dataclasses import dataclass
from math import ceil

from argosy_operator.core.scaling.decision import Rule
from argosy_operator.core.scaling.goals import RoleGoal, StepLimits


@dataclass(frozen=True, slots=True)
class Want:
    at: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Memory:
    """`highs`: wants for going down, only those no later want exceeds (their first is the maximum
    over the hold window). `lows`: the same for going up, with the minimum. `raised_at`: last up."""

    highs: tuple[Want, ...] = ()
    lows: tuple[Want, ...] = ()
    raised_at: float | None = None


def note(memory: Memory, up: int, down: int, now: float, up_s: float, down_s: float) -> Memory:
    """Add the wants of now, drop those that left their windows."""
    highs = (w for w in memory.highs if w.replicas > down and w.at > now - down_s)
    lows = (w for w in memory.lows if w.replicas < up and w.at > now - up_s)
    return Memory((*highs, Want(now, down)), (*lows, Want(now, up)), memory.raised_at)


def settle(
    memory: Memory, current: int, demanded_by: Rule, kept_by: Rule | None, limits: StepLimits
) -> tuple[int, Rule]:
    """The number after holds and steps, and the rule that bound it.

    `kept_by` names why nothing may be removed now, None if removal is allowed.
    """
    up, down = memory.lows[0].replicas, memory.highs[0].replicas
    if up > current:
        most = current + max(ceil(current * limits.up_percent / 100), limits.up_pods)
        return (most, Rule.STEP_LIMIT) if up > most else (up, demanded_by)
    if down >= current:
        wanted_now = memory.highs[-1].replicas
        return current, demanded_by if wanted_now >= current else Rule.HOLD
    if kept_by is not None:
        return current, kept_by
    least = current - limits.down_pods
    return (least, Rule.STEP_LIMIT) if down < least else (down, demanded_by)


def clamp(replicas: int, rule: Rule, goal: RoleGoal) -> tuple[int, Rule]:
    """min and max are the user's word: honoured at once, over every hold."""
    if replicas > goal.max:
        return goal.max, Rule.MAX_REPLICAS
    if replicas < goal.min:
        return goal.min, Rule.MIN_REPLICAS
    return replicas, rule
