"""Windows of time that raise a role's minimum or lower its maximum, put into the goals of a round.

`core.steps.goals` makes `Window`s of `spec.autoscaling.schedules`, the simulator of its
flag. The law itself knows no calendar: it gets the bounds that are in force. Times are seconds
since the epoch. Days on which clocks change are read as Debian's cron reads them (cronsim): a start
in the hour that is left out comes after it, one in the hour that comes twice comes once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import floor
from zoneinfo import ZoneInfo

from cronsim import CronSim

from argosy_law.goals import Goals, RoleGoal, Windows, cold_start_s
from argosy_law.observe import RoleName, RoleSupply


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a window asks of one role. None: nothing."""

    role: RoleName
    min: int | None
    max: int | None


@dataclass(frozen=True, slots=True)
class Window:
    """One of `spec.autoscaling.schedules`."""

    name: str
    start: str
    """When it opens: five cron fields."""
    duration_s: float
    zone: str
    """IANA name of the time zone of `start`."""
    bounds: tuple[Bounds, ...]

    def open_at(self, now: float, ahead_s: float = 0.0) -> bool:
        """Whether the window is open, or opens within `ahead_s` seconds."""
        begun = self._start(now + ahead_s, back=True)
        return begun is not None and now < begun + self.duration_s

    def changes_in(self, now: float, ahead_s: float) -> Iterator[float]:
        """Seconds until the window opens, opens less `ahead_s`, or closes; what is over is out."""
        begun = self._start(now + ahead_s, back=True)
        coming = self._start(now + ahead_s, back=False)
        times = [] if coming is None else [coming - ahead_s]
        times += [] if begun is None else [begun, begun + self.duration_s]
        yield from (at - now for at in times if at > now)

    def _start(self, at: float, *, back: bool) -> float | None:
        """The last start until `at`, or the first after it; None if there is none."""
        second = floor(at) + (1 if back else 0)
        moment = datetime.fromtimestamp(second, ZoneInfo(self.zone))
        found = next(CronSim(self.start, moment, reverse=back), None)
        return None if found is None else found.timestamp()


Ahead = Mapping[RoleName, float]
"""Seconds before a window's start from which its minimum holds, per role: a cold start."""


def ahead(supply: Iterable[RoleSupply], windows: Windows) -> Ahead:
    """What a role needs from the decision to add a replica until that serves."""
    return {role.role: cold_start_s(role, windows) + windows.interval_s for role in supply}


def in_force(goals: Goals, windows: Iterable[Window], now: float, ahead: Ahead) -> Goals:
    """The goals with the bounds of the windows that are open.

    A minimum holds `ahead` of the window, so that its replicas are ready when it opens. The highest
    minimum and the lowest maximum count, and a minimum over the maximum of another window.
    """
    roles = {goal.role: goal for goal in goals.roles}
    for window in windows:
        for bounds in window.bounds:
            if bounds.role in roles:
                goal = roles[bounds.role]
                roles[bounds.role] = _bounded(goal, window, bounds, now, ahead[bounds.role])
    return replace(goals, roles=tuple(_agreeing(goal) for goal in roles.values()))


def _bounded(goal: RoleGoal, window: Window, of: Bounds, now: float, ahead_s: float) -> RoleGoal:
    # A minimum that is the role's own raises nothing, but keeps the fleet from going to zero.
    raises = of.min is not None and of.min > goal.min - (not goal.min_schedule)
    if of.min and raises and window.open_at(now, ahead_s):
        least = goal.least
        goal = replace(goal, min=of.min, min_schedule=window.name, unscheduled_min=least)
    if of.max is not None and of.max < goal.max and window.open_at(now):
        goal = replace(goal, max=of.max, max_schedule=window.name)
    return goal


def _agreeing(goal: RoleGoal) -> RoleGoal:
    """A maximum of one window never takes what another one has raised."""
    if goal.max >= goal.min:
        return goal
    return replace(goal, max=goal.min, max_schedule=goal.min_schedule)


def keeps_pods(windows: Iterable[Window], now: float, ahead: Ahead) -> bool:
    """Whether a window with a minimum is open: the fleet does not go to zero in it."""
    return any(
        bounds.min and window.open_at(now, ahead.get(bounds.role, 0.0))
        for window in windows
        for bounds in window.bounds
    )


def next_change_s(windows: Iterable[Window], now: float, ahead: Ahead) -> float | None:
    """Seconds until the bounds that are in force may change; None without windows."""
    return min(
        (
            after
            for window in windows
            for bounds in window.bounds
            for after in window.changes_in(now, ahead.get(bounds.role, 0.0))
        ),
        default=None,
    )
