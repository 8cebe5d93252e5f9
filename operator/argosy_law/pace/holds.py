"""Holds and steps: they keep a right number from being applied too often or too fast.

`record` adds what a role wants now to its `HoldState`; `apply` turns the wants into a number and
names the rule that bound it. `decide` calls both with durations from `goals.Windows`.
"""

from dataclasses import dataclass
from math import ceil, floor

from argosy_law.decision import Rule
from argosy_law.goals import StepLimits
from argosy_law.state import HoldState, Want


@dataclass(frozen=True, slots=True)
class HoldWindows:
    """How long a want must last before it is applied, in seconds."""

    up_s: float
    down_s: float


def record(state: HoldState, up: int, down: int, now: float, windows: HoldWindows) -> HoldState:
    """Add the wants of now and drop those that have left their windows.

    `up` is needed for the planned load, `down` is enough even for more load (`sizing.HYSTERESIS`).
    """
    highs = (w for w in state.highs if w.replicas > down and w.at > now - windows.down_s)
    lows = (w for w in state.lows if w.replicas < up and w.at > now - windows.up_s)
    return HoldState((*highs, Want(now, down)), (*lows, Want(now, up)), state.raised_at)


def apply(
    state: HoldState, current: int, demanded_by: Rule, blocked_by: Rule | None, limits: StepLimits
) -> tuple[int, Rule]:
    """The number of replicas after holds and step limits, and the rule that bound it.

    `blocked_by` is the rule that forbids a removal now; None if removal is allowed.
    """
    up, down = state.lows[0].replicas, state.highs[0].replicas
    if up > current:
        most = current + max(ceil(current * limits.up_percent / 100), limits.up_pods)
        return (most, Rule.STEP_LIMIT) if up > most else (up, demanded_by)
    if down >= current:
        wanted_now = state.highs[-1].replicas
        return current, demanded_by if wanted_now >= current else Rule.HOLD
    if blocked_by is not None:
        return current, blocked_by
    least = current - max(limits.down_pods, floor(current * (limits.down_percent or 0.0) / 100))
    return (least, Rule.STEP_LIMIT) if down < least else (down, demanded_by)
