"""What a decision says: sentences, numbers and durations, to the letter."""

from dataclasses import replace

from argosy_law import explain
from argosy_law.decision import (
    Rule,
    bounded,
    lacks_metrics,
    why_bounded,
)
from argosy_law.goals import (
    RoleGoal,
    Windows,
    cold_start_s,
    forecast_horizon_s,
    removal_hold_s,
)
from argosy_law.observe import (
    NOT_ASKED,
    FleetMetrics,
    Observations,
    RoleSupply,
    unknown_metrics,
)
from tests.scaling import known

NOW = known.START


# --- sentences ------------------------------------------------------------------------------------


def test_without_metrics_only_minimum_and_maximum_act() -> None:
    pods = (RoleSupply("prefill", 9, 9), RoleSupply("decode", 2, 2))
    roles = (RoleGoal("prefill", 1, 4), RoleGoal("decode", 1, 4))
    goals = replace(known.goals(), roles=roles)
    away = Observations(unknown_metrics(NOW, "Away: no answer"), pods)
    found = explain.held(away, goals, NOW, "Away: no answer")
    assert [(t.replicas, t.demanded, t.rule) for t in found.targets] == [
        (4, 4, Rule.MAX_REPLICAS),
        (2, 2, Rule.METRICS_UNAVAILABLE),
    ]
    assert (found.rule, found.active, found.reachable) == (Rule.METRICS_UNAVAILABLE, False, True)
    assert found.message == (
        "prefill 9 → 4 (MaxReplicas: bounded by spec.roles.prefill.replicas.max); metrics are "
        "unknown, stale or incomplete: nothing is removed (Away: no answer)"
    )
    not_due = Observations(FleetMetrics(NOW, NOT_ASKED), pods)
    assert explain.held(not_due, goals, NOW, "x").message == (
        "prefill 9 → 4 (MaxReplicas: bounded by spec.roles.prefill.replicas.max)"
    )
    assert lacks_metrics(found)
    assert not lacks_metrics(replace(found, active=True))
    assert not lacks_metrics(replace(found, rule=Rule.NO_SLO))
    assert not lacks_metrics(None)


def test_bounds_of_the_user_or_of_a_schedule_hold_and_are_named() -> None:
    goal = RoleGoal("decode", 2, 5)
    day = replace(goal, min_schedule="day", max_schedule="night")
    assert bounded(5, Rule.HOLD, goal) == (5, Rule.HOLD)
    assert bounded(6, Rule.HOLD, goal) == (5, Rule.MAX_REPLICAS)
    assert bounded(6, Rule.HOLD, day) == (5, Rule.SCHEDULE)
    assert bounded(2, Rule.HOLD, goal) == (2, Rule.HOLD)
    assert bounded(1, Rule.HOLD, goal) == (2, Rule.MIN_REPLICAS)
    assert bounded(1, Rule.HOLD, day) == (2, Rule.SCHEDULE)
    assert why_bounded(Rule.SCHEDULE, day, 2) == "schedule day asks for at least 2"
    assert why_bounded(Rule.SCHEDULE, day, 5) == "schedule night allows at most 5"
    only = replace(goal, max_schedule="night")
    assert why_bounded(Rule.SCHEDULE, only, 2) == "schedule night allows at most 5"
    assert why_bounded(Rule.MIN_REPLICAS, goal, 2) == ("bounded by spec.roles.decode.replicas.min")


# --- durations and numbers ------------------------------------------------------------------------


def test_every_duration_of_a_law_follows_from_those_of_the_spec() -> None:
    windows = Windows(scrape_s=10.0, rate_s=50.0, interval_s=20.0, down_hold_s=200.0)
    assert (windows.fresh_s, windows.lengths_s, windows.attainment_s) == (30.0, 150.0, 200.0)
    assert replace(windows, down_hold_s=10.0).attainment_s == 100.0
    assert (windows.idle_s, windows.forget_s) == (200.0, 8000.0)
    assert replace(windows, down_hold_s=10.0).idle_s == 50.0
    assert windows.stale_reason == (
        "Stale: the newest sample is older than three scrape intervals (30 s)"
    )


def test_a_cold_start_is_the_ninetieth_percentile_of_the_newest_twenty() -> None:
    windows = Windows(scrape_s=10.0, interval_s=20.0, down_hold_s=60.0, cold_start_s=90.0)
    none = RoleSupply("decode", 1, 1)
    assert cold_start_s(none, windows) == 90.0
    assert cold_start_s(replace(none, cold_starts_s=(7.0,)), windows) == 7.0
    many = replace(none, cold_starts_s=(900.0, *map(float, range(20, 0, -1))))
    assert cold_start_s(many, windows) == 18.0
    eleven = replace(none, cold_starts_s=tuple(map(float, range(11))))
    assert cold_start_s(eleven, windows) == 9.0
    six = replace(none, cold_starts_s=tuple(map(float, range(6))))
    assert cold_start_s(six, windows) == 5.0, "half is rounded up"
    assert forecast_horizon_s((none, many), windows) == 90.0 + 20.0 + 10.0
    assert removal_hold_s(many, windows) == 60.0
    assert removal_hold_s(none, windows) == 90.0
