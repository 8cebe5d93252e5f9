"""What a decision says: sentences, numbers and durations, to the letter."""

from dataclasses import replace

import pytest

from argosy_law import explain
from argosy_law.decision import (
    Decision,
    Lack,
    RoleTarget,
    Rule,
    bounded,
    lacks_metrics,
    why_bounded,
)
from argosy_law.estimate import capacity
from argosy_law.estimate.demand import Demand
from argosy_law.goals import (
    Inputs,
    Profile,
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
    RoleMetrics,
    RoleSupply,
    Unknown,
    Value,
    plausible,
    unknown_metrics,
)
from argosy_law.size.pools import DecodeModel, PrefillModel
from argosy_law.size.sizing import Size
from argosy_law.size.work import alike
from argosy_law.state import Lengths, RoleState, ScalingState, idle
from tests.scaling import known

NOW = known.START
QUEUE = PrefillModel(((0.2, 1.0),), 0.2, 1.0, 1.0)
STEPS = DecodeModel(0.03, 0.0003, alike(101), held_sequences=1e9, limit_s=0.0336)
DEMAND = Demand(rate=4.0, error=0.5, forecast=4.3, margin=1.1, bins=40, dispersion=1.0)


def size(up: int = 2, down: int = 3, **more: object) -> Size:
    whole = Size(up, down, Rule.DEMAND, QUEUE, 4.73, True)
    return replace(whole, **more)  # type: ignore[arg-type]


def target(current: int = 2, replicas: int = 2, demanded: int = 2, **more: object) -> RoleTarget:
    whole = RoleTarget("prefill", current, replicas, demanded, Rule.DEMAND, "why")
    return replace(whole, **more)  # type: ignore[arg-type]


def inputs(**metrics: object) -> Inputs:
    seen = known.metrics(NOW, 4.0, {"prefill": 2, "decode": 3})
    pods = (
        RoleSupply("prefill", 2, 2, gpus_per_replica=4),
        RoleSupply("decode", 3, 3, gpus_per_replica=2),
    )
    observed = Observations(replace(seen, **metrics), pods)  # type: ignore[arg-type]
    return Inputs(observed, known.goals(), known.USUAL, NOW)


STATE = ScalingState(
    lengths=Lengths(prompt=1000.0, variation=1.0, output=200.0, transfer_s=0.0, context=1100.0)
)


# --- sentences ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "of", "sentence"),
    [
        (target(2, 2), None, "prefill stays 2 (Demand: why)"),
        (target(2, 3), None, "prefill 2 → 3 (Demand: why)"),
        (
            target(2, 1, 1),
            size(1, 1),
            "prefill 2 → 1 (Demand: why; 1 replica needed for 4.73 requests/s)",
        ),
        (
            target(3, 3, 2),
            size(2, 3),
            "prefill stays 3 (Demand: why; 2 replicas needed for 4.73 requests/s, 3 for 15% more "
            "before one is removed)",
        ),
        (
            target(3, 3, 2),
            size(2, 2),
            "prefill stays 3 (Demand: why; 2 replicas needed for 4.73 requests/s)",
        ),
        (
            target(2, 2, 2),
            size(2, 3),
            "prefill stays 2 (Demand: why; 2 replicas needed for 4.73 requests/s)",
        ),
    ],
)
def test_a_target_is_a_sentence(one: RoleTarget, of: Size | None, sentence: str) -> None:
    assert explain._sentence(one, of) == sentence


def decided(*targets: RoleTarget, **more: object) -> Decision:
    return explain.decided(targets, {"prefill": size()}, DEMAND, STATE, inputs(**more))


def test_a_decision_is_named_by_the_first_role_that_moves() -> None:
    stays = target(rule=Rule.HOLD)
    moves = replace(target(1, 2), role="decode")
    assert decided(stays, moves).rule is Rule.DEMAND
    assert decided(stays, replace(moves, replicas=1)).rule is Rule.HOLD
    hopeless = replace(moves, replicas=1, rule=Rule.SLO_UNREACHABLE)
    assert decided(stays, hopeless).rule is Rule.SLO_UNREACHABLE
    both = decided(target(), replace(target(1, 2), role="decode"))
    assert both.message == (
        "prefill stays 2 (Demand: why; 2 replicas needed for 4.73 requests/s); decode 1 → 2 "
        "(Demand: why)"
    )
    assert (both.at, both.active, both.lack) == (NOW, True, None)


def test_a_decision_carries_what_was_silent_unknown_or_is_learnt_again() -> None:
    prefill, decode = (capacity.begin(role, None, known.USUAL) for role in known.POOLS)
    roles = (RoleState("prefill", replace(prefill, renewed=True)), RoleState("decode", decode))
    state = replace(STATE, roles=roles)
    seen = inputs(silent_gateways=("g",), clock_skew_s=3.0, attainment=Unknown("x"))
    found = explain.decided((target(),), {"prefill": size()}, DEMAND, state, seen)
    assert (found.silent_gateways, found.clock_skew_s) == (("g",), 3.0)
    assert found.relearning == ("prefill",)
    assert found.message.endswith(
        "; what was learnt about a replica (prefill) was not usable and is measured again: until "
        "then nothing is removed"
    )
    assert found.unknown == ("prefill attainment", "decode attainment")


def test_what_a_budget_took_is_lacking_in_gpus() -> None:
    found = decided(target(over_budget=2), replace(target(over_budget=1), role="decode"))
    assert found.lack == Lack(2 * 4 + 1 * 2, "object")
    assert found.numbers["gpus_missing"] == 10.0
    assert "gpus_missing" not in decided(target()).numbers


def test_the_numbers_around_the_answer_are_weighed() -> None:
    def weighed(replicas: int, demanded: int) -> list[int]:
        one = target(2, replicas, demanded)
        return [
            c.replicas for c in explain._weighed(one, {"prefill": size()}, inputs().observations)
        ]

    assert weighed(2, 2) == [1, 2, 3]
    assert weighed(1, 1) == [1, 2]
    assert weighed(3, 6) == [2, 3, 4, 5, 6, 7]
    assert weighed(3, 15) == list(range(2, 17))
    assert weighed(3, 16) == [2, 3, 4, 15, 16, 17]
    (first, *_) = explain._weighed(target(), {"prefill": size()}, inputs().observations)
    assert (first.role, first.gpus) == ("prefill", 4)
    assert first.attainment == round(QUEUE.attainment(1, 4.73), 4)


def test_the_numbers_of_a_decision_are_those_that_were_used() -> None:
    sizes = {"prefill": size(backlog_s=1.5), "decode": size(model=STEPS, rate=4.0)}
    found = explain.decided(
        (target(),), sizes, DEMAND, STATE, inputs(attainment=Value(0.9876543, NOW))
    )  # type: ignore[arg-type]
    assert found.numbers == {
        "arrivals_per_s": 4.0,
        "arrivals_error_per_s": 0.5,
        "forecast_per_s": 4.3,
        "margin": 1.1,
        "dispersion": 1.0,
        "bins": 40.0,
        "prompt_tokens": 1000.0,
        "cached_share": 0.0,
        "output_tokens": 200.0,
        "context_tokens": 1100.0,
        "attainment": 0.987654,
        "ttft_attainment": 1.0,
        "tpot_attainment": 1.0,
        "ttft_reachable": 1.0,
        "tpot_reachable": 1.0,
        "prefill_planned_per_s": 4.73,
        "prefill_load_replicas": 0.946,
        "prefill_service_s": 0.2,
        "prefill_backlog_s": 1.5,
        "decode_planned_per_s": 4.0,
        "decode_load_replicas": 1.12,
        "decode_batch_limit": 12.0,
        "decode_step_base_s": 0.03,
    }
    season = explain.decided((target(),), {}, replace(DEMAND, season=4.4), STATE, inputs())
    assert season.numbers["season_per_s"] == 4.4
    assert "prompt_tokens" not in season.numbers
    assert "ttft_reachable" not in season.numbers


def test_costs_are_told_if_those_of_all_roles_are_known() -> None:
    """Two replicas of four GPUs at 2.5 an hour, three of two at 1: 26 an hour."""
    both = (target(), replace(target(3, 3), role="decode"))
    seen = inputs(attainment=Value(0.5, NOW))
    roles = (
        RoleGoal("prefill", 1, 9, gpu_cost_per_hour=2.5),
        RoleGoal("decode", 1, 9, gpu_cost_per_hour=1.0),
    )
    priced = replace(seen, goals=replace(seen.goals, roles=roles))
    costs = explain._costs(both, {"prefill": size()}, DEMAND, STATE, priced)
    assert costs["cost_per_hour"] == 26.0
    assert costs["cost_per_million_tokens"] == pytest.approx(26 / 3600 / 800 * 1e6, rel=1e-5)
    assert costs["cost_per_thousand_good"] == pytest.approx(26 / 3600 / 2 * 1e3, rel=1e-5)
    assert explain._costs(both, {}, DEMAND, STATE, priced) == {"cost_per_hour": 26.0}
    half = replace(priced, goals=replace(priced.goals, roles=(roles[0], RoleGoal("decode", 1, 9))))
    assert explain._costs(both, {"prefill": size()}, DEMAND, STATE, half) == {}
    assert (priced.goals.price("prefill"), priced.goals.price("decode")) == (2.5, 1.0)
    assert half.goals.price("prefill") == 1.0


@pytest.mark.parametrize(
    ("share", "scored", "met"), [(0.9, 20.0, True), (0.9, 19.0, False), (0.899, 20.0, False)]
)
def test_an_slo_that_was_met_is_reachable_whatever_the_model_says(
    share: float, scored: float, met: bool
) -> None:
    hopeless = {"prefill": size(model=replace(QUEUE, limit_s=0.1))}
    seen = inputs(attainment=Value(share, NOW), scored=scored)
    assert explain.reachable(hopeless, seen) is met  # type: ignore[arg-type]
    assert explain.reachable({"prefill": size()}, seen)


@pytest.mark.parametrize(
    ("more", "whose", "words"),
    [
        ({"gpu_budget": 8}, "object", "spec.autoscaling.gpuBudget.max is 8"),
        ({"gpu_budget": 8, "gpu_cap": 8}, "object", "spec.autoscaling.gpuBudget.max is 8"),
        (
            {"gpu_budget": 8, "gpu_cap": 6},
            "operator",
            "the operator's GPU budget for all fleets leaves 6 GPUs to this one",
        ),
        (
            {"gpu_cap": 6, "gpu_cap_of": "namespace"},
            "namespace",
            "the GPU budget of the namespace leaves 6 GPUs to this fleet",
        ),
    ],
)
def test_the_budget_that_binds_is_named(more: dict[str, object], whose: str, words: str) -> None:
    goals = replace(known.goals(), **more)  # type: ignore[arg-type]
    assert goals.gpus_of == whose
    assert explain.budget_in_force(goals) == words
    assert known.goals().gpus is None


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
    assert removal_hold_s(none, windows) == 180.0


def test_a_profile_gives_the_time_of_a_step() -> None:
    profile = Profile(0.1, 0.001, 0.01, 0.0005, 1e-6, per_prompt_token_squared_s=1e-7)
    assert profile.prefill_s(1000) == pytest.approx(0.1 + 1.0 + 0.1)
    assert profile.step_s(10, 5000) == pytest.approx(0.01 + 0.005 + 0.005)


@pytest.mark.parametrize(
    ("number", "possible"),
    [(0.0, True), (1e15, True), (1.1e15, False), (-1e-9, False), (float("nan"), False)],
)
def test_a_measurement_is_finite_and_not_negative(number: float, possible: bool) -> None:
    assert plausible(number) is possible


def test_a_role_that_was_not_asked_about_is_empty() -> None:
    seen = known.metrics(NOW, 1.0, {"prefill": 2})
    assert seen.role("prefill").pods_reporting == 2
    assert seen.role("decode") == RoleMetrics("decode")
    assert unknown_metrics(5.0, "why") == FleetMetrics(5.0, Unknown("why"))


def test_a_fleet_is_idle_after_a_whole_window_without_requests() -> None:
    windows = Windows(down_hold_s=300.0)
    assert not idle(ScalingState(), windows, NOW)
    assert not idle(ScalingState(busy_at=NOW - 299.9), windows, NOW)
    assert idle(ScalingState(busy_at=NOW - 300.0), windows, NOW)
