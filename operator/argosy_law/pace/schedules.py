"""Schedules that bound the replicas of a role, and when an idle fleet goes to zero replicas.

`core.steps.goals` makes `Window`s of `spec.autoscaling.schedules`, the simulator of its flag. The
law itself knows no calendar: it gets the bounds that are in force. Times are seconds since the
epoch. Days on which clocks change are read as Debian's cron reads them (cronsim): a start in the
hour that is left out comes after it, one in the hour that comes twice comes once.

`decide` asks `judge_zero` before it sizes anything: the answer rests on what the gateways say
themselves (`observe.Front`), so it needs neither an SLO nor Prometheus. A fleet is at zero if each
role is asked for 0 replicas; that is written in the cluster and outlives the operator.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import floor
from zoneinfo import ZoneInfo

from cronsim import CronSim

from argosy_law.decision import Rule
from argosy_law.goals import Goals, RoleGoal, Windows, cold_start_s
from argosy_law.observe import Observations, RoleName, RoleSupply


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
                roles[bounds.role] = _bound(goal, window, bounds, now, ahead[bounds.role])
    return replace(goals, roles=tuple(_agree(goal) for goal in roles.values()))


def _bound(goal: RoleGoal, window: Window, of: Bounds, now: float, ahead_s: float) -> RoleGoal:
    # A minimum that is the role's own raises nothing, but keeps the fleet from going to zero.
    raises = of.min is not None and of.min > goal.min - (not goal.min_schedule)
    if of.min and raises and window.open_at(now, ahead_s):
        least = goal.least
        goal = replace(goal, min=of.min, min_schedule=window.name, unscheduled_min=least)
    if of.max is not None and of.max < goal.max and window.open_at(now):
        goal = replace(goal, max=of.max, max_schedule=window.name)
    return goal


def _agree(goal: RoleGoal) -> RoleGoal:
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


UNHEARD_S = 30.0
"""So long a Ready gateway may be silent while the fleet is at zero. After that the fleet starts,
because requests may wait in that gateway. Long enough for a gateway that restarts."""


@dataclass(frozen=True, slots=True)
class Zero:
    """The answer for all roles: none, or the fewest that serve."""

    rule: Rule
    why: str


def judge_zero(seen: Observations, goals: Goals) -> Zero | None:
    """Zero replicas, or the start from there; None: the law sizes the roles as ever."""
    after_s = goals.zero_after_s
    if after_s is None:
        return None
    schedule = next((goal.min_schedule for goal in goals.roles if goal.min_schedule), None)
    if not any(supply.desired for supply in seen.supply):
        if schedule is not None:
            return Zero(Rule.WAKING, f"schedule {schedule} asks for replicas")
        return _stay_or_wake(seen)
    front = seen.front
    if schedule is not None:
        return None
    # A fleet that does not serve yet, or is being replaced, has not had its chance to be used.
    steady = all(supply.ready > 0 and not supply.rolling for supply in seen.supply)
    if not steady or front.in_flight or front.idle_s is None or front.idle_s < after_s:
        return None
    why = f"no gateway has had a request for {after_s:g} s (spec.autoscaling.scaleToZero.after)"
    return Zero(Rule.SCALED_TO_ZERO, why)


def _stay_or_wake(seen: Observations) -> Zero:
    front = seen.front
    if front.in_flight:
        return Zero(Rule.WAKING, "requests wait in the gateways")
    if front.unheard_s > UNHEARD_S:
        why = f"a ready gateway has not answered the operator for more than {UNHEARD_S:g} s"
        return Zero(Rule.WAKING, f"{why}, and requests may wait there")
    return Zero(Rule.SCALED_TO_ZERO, "no request waits in the gateways")
