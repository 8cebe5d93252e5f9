"""Windows of time: when they are open, and what they make of a role's bounds."""

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.decide import decide
from argosy_law.decision import Rule
from argosy_law.goals import Goals, RoleGoal
from argosy_law.observe import (
    NOT_ASKED,
    FleetMetrics,
    Observations,
)
from argosy_law.pace import schedules
from argosy_law.pace.schedules import Bounds, Window
from argosy_law.state import ScalingState
from tests.scaling import known

BERLIN = "Europe/Berlin"
AHEAD = {"prefill": 100.0, "decode": 100.0}


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def window(
    start: str = "0 8 * * MON-FRI",
    hours: float = 10,
    zone: str = "UTC",
    *,
    name: str = "day",
    least: int | None = 4,
    most: int | None = None,
) -> Window:
    return Window(name, start, hours * 3600, zone, (Bounds("prefill", least, most),))


def prefill(windows: tuple[Window, ...], now: float, goals: Goals | None = None) -> RoleGoal:
    return schedules.in_force(goals or known.goals(), windows, now, AHEAD).role("prefill")


@pytest.mark.parametrize(
    ("when", "is_open"),
    [
        ("2026-03-02T07:59:59", False),
        ("2026-03-02T08:00:00", True),
        ("2026-03-02T17:59:59", True),
        ("2026-03-02T18:00:00", False),
        ("2026-03-07T12:00:00", False),  # a Saturday
    ],
)
def test_a_window_is_open_from_its_start_to_before_its_end(when: str, is_open: bool) -> None:
    assert window().open_at(at(when)) is is_open


def test_a_window_over_midnight_is_open_on_the_next_day() -> None:
    night = window("0 22 * * FRI", 8)
    assert night.open_at(at("2026-03-07T05:59:59"))
    assert not night.open_at(at("2026-03-07T06:00:00"))


def test_the_time_zone_is_that_of_the_start_and_follows_summer_time() -> None:
    day = window("0 8 * * *", 1, BERLIN)
    assert day.open_at(at("2026-03-28T07:00:00"))
    assert not day.open_at(at("2026-03-28T06:59:59"))
    assert day.open_at(at("2026-03-30T06:00:00"))
    assert not day.open_at(at("2026-03-30T07:00:00"))


def test_a_start_in_the_hour_that_the_clock_leaves_out_comes_after_it() -> None:
    early = window("30 2 * * *", 1, BERLIN)
    assert early.open_at(at("2026-03-29T01:00:00"))  # 3:00 in Berlin
    assert not early.open_at(at("2026-03-29T00:59:59"))


def test_a_start_in_the_hour_that_comes_twice_comes_once() -> None:
    early = window("30 2 * * *", 0.5, BERLIN)
    assert early.open_at(at("2026-10-25T00:30:00"))
    assert not early.open_at(at("2026-10-25T01:30:00"))


def test_a_minimum_holds_a_cold_start_ahead_and_a_maximum_only_from_the_start() -> None:
    both = (window(least=3, most=5),)
    start = at("2026-03-02T08:00:00")
    assert prefill(both, start - 101) == RoleGoal("prefill", 1, 1000)
    early = prefill(both, start - 100)
    assert (early.min, early.max, early.min_schedule, early.max_schedule) == (3, 1000, "day", "")
    opened = prefill(both, start)
    assert (opened.min, opened.max, opened.max_schedule) == (3, 5, "day")


def test_of_several_windows_the_highest_minimum_and_the_lowest_maximum_count() -> None:
    several = (
        window(name="a", least=3, most=9),
        window(name="b", least=5, most=7),
        window(name="c", least=2, most=8),
    )
    goal = prefill(several, at("2026-03-02T09:00:00"))
    assert (goal.min, goal.min_schedule, goal.max, goal.max_schedule) == (5, "b", 7, "b")
    assert goal.unscheduled_min == goal.least == 1


@given(
    hours=st.integers(1, 168),
    cron=st.sampled_from(
        ["0 8 * * *", "30 2 * * SUN", "*/20 * * * *", "0 0 29 2 *", "15 9-17/2 1,15 * MON"]
    ),
    zone=st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe"]),
    when=st.integers(1_700_000_000, 1_900_000_000),
    ahead_s=st.integers(0, 3600),
)
def test_nothing_changes_before_the_time_of_the_next_change(
    hours: int, cron: str, zone: str, when: int, ahead_s: int
) -> None:
    one, ahead = window(cron, hours, zone), {"prefill": float(ahead_s)}
    change = schedules.next_change_s((one,), when, ahead)
    assert change is None or change > 0
    until = when + min(change or 1e9, 200_000.0)
    early = {one.open_at(t, ahead_s) for t in (when, (when + until) / 2, until - 1)}
    opened = {one.open_at(t) for t in (when, (when + until) / 2, until - 1)}
    assert len(early) == len(opened) == 1


# --- what the law makes of them -----------------------------------------------------------------


def scheduled(goal: RoleGoal, *, policy: str = "Goodput") -> Goals:
    plain = known.goals()
    return replace(plain, roles=(goal, plain.role("decode")), policy=policy)  # type: ignore[arg-type]


RAISED = RoleGoal("prefill", 4, 1000, min_schedule="day", unscheduled_min=1)
LOWERED = RoleGoal("prefill", 1, 2, max_schedule="night")


def test_between_two_decisions_a_window_raises_the_replicas_at_once() -> None:
    seen = Observations(
        FleetMetrics(known.START, NOT_ASKED), known.supply({"prefill": 1, "decode": 1})
    )
    _, decision = decide(ScalingState(), seen, scheduled(RAISED), known.START)
    target = known.target(decision, "prefill")
    assert (target.replicas, target.rule) == (4, Rule.SCHEDULE)
    assert decision.message == "prefill 1 → 4 (Schedule: schedule day asks for at least 4)"


@pytest.mark.parametrize(
    ("goal", "have", "want", "why"),
    [
        (RAISED, 1, 4, "schedule day asks for at least 4"),
        (RAISED, 4, 4, "schedule day asks for at least 4"),
        (LOWERED, 5, 2, "schedule night allows at most 2"),
    ],
)
def test_the_law_says_which_schedule_bounds_a_role(
    goal: RoleGoal, have: int, want: int, why: str
) -> None:
    supply = {"prefill": have, "decode": 1}
    rounds = [(known.metrics(now, 1.0, supply), supply) for now in known.times(30)]
    _, decision = known.play(scheduled(goal), rounds)
    target = known.target(decision, "prefill")
    assert (target.replicas, target.rule) == (want, Rule.SCHEDULE)
    assert why in target.message
