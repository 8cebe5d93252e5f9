"""The rules of other autoscalers, by numbers worked out by hand."""

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from argosy_law.decision import Decision, RoleTarget, Rule
from argosy_law.estimate.capacity import PRESETS
from argosy_law.goals import SLO, Profile, RoleGoal
from argosy_law.observe import (
    Bin,
    FleetMetrics,
    Idle,
    Observations,
    RoleMetrics,
    RoleSupply,
    Signal,
    StepDelta,
    Unknown,
    Value,
)
from argosy_law.sim.laws import LAWS, dynamo, hpa, keda, law, wva
from argosy_law.sim.laws.dynamo import Dynamo, Engine, Kalman, Throughput
from argosy_law.sim.laws.hpa import HorizontalPodAutoscaler
from argosy_law.sim.laws.keda import Keda
from argosy_law.sim.laws.wva import Load, Wva
from tests.scaling.known import goals

START = 1000.0
EASY = Profile(
    prefill_base_s=0.01,
    per_prompt_token_s=1e-4,
    decode_base_s=0.02,
    per_sequence_s=2e-4,
    per_context_token_s=0.0,
    kv_tokens=100_000,
)
"""A prompt of 1,000 tokens takes 0.11 s; a step of 100 sequences 40 ms."""
GOALS = goals(SLO(1.0, 0.04), prior=EASY)
ENGINE = Engine(EASY)
UNKNOWN = Unknown("QueryFailed: Prometheus does not answer")
EMPTY = Unknown("NoSamples")
PODS = RoleSupply("prefill", 3, 3)
OTHERS = sorted(LAWS.keys() - {"goodput"})


def seen_at(
    now: float,
    rate: Signal | float = 0.0,
    *,
    prefill: int = 2,
    decode: int = 2,
    pending: int = 0,
    queued: Signal | float = 0.0,
    running: Signal | float = 0.0,
    prompt: Signal | float = 1000.0,
    output: Signal | float = 100.0,
    prefill_steps: tuple[StepDelta, ...] = (),
    decode_steps: tuple[StepDelta, ...] = (),
) -> Observations:
    """A round with so many replicas, of which all but `pending` of each role report."""

    def signal(of: Signal | float) -> Signal:
        return Value(of, now) if isinstance(of, int | float) else of

    count = 15 * rate if isinstance(rate, int | float) else 0.0
    metrics = FleetMetrics(
        at=now,
        arrivals=signal(rate) if rate else Idle(now),
        bins=tuple(Bin(now - 15 * i, count) for i in range(20, -1, -1)),
        prompt_tokens=signal(prompt),
        output_tokens=signal(output),
        roles=(
            RoleMetrics(
                "prefill",
                prefill - pending,
                steps=prefill_steps,
                running=Value(0.0, now),
                outstanding_prompt_tokens=signal(queued),
            ),
            RoleMetrics(
                "decode",
                decode - pending,
                steps=decode_steps,
                running=signal(running),
                kv_capacity_tokens=Value(100_000.0, now),
            ),
        ),
    )
    supply = (
        RoleSupply("prefill", prefill, prefill - pending, pending),
        RoleSupply("decode", decode, decode - pending, pending),
    )
    return Observations(metrics, supply)


def decided(of: Any, *rounds: Observations, state: Any = None) -> tuple[Any, Decision]:
    """The last decision over rounds that follow each other, each at the time of its metrics."""
    state = of.start if state is None else state
    for one in rounds:
        state, decision = of.decide(state, one, GOALS, one.metrics.at)
    return state, decision


def replicas(decision: Decision) -> list[int]:
    return [target.replicas for target in decision.targets]


def decode_row(pods: int, sequences: float, context: float) -> tuple[StepDelta, ...]:
    """A hundred steps of each pod with so many sequences of so much context."""
    row = StepDelta(
        START, 4.0, 100, decode_sequences=100 * sequences, context_tokens=100 * sequences * context
    )
    return (row,) * pods


# --- what all of them keep ----------------------------------------------------------------------


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_number_that_cannot_be_true_moves_nothing(name: str, bad: float) -> None:
    rate = Value(bad, START)
    one = seen_at(START, rate, prefill=3, decode=3, queued=bad, running=bad, prompt=bad)
    _, decision = decided(LAWS[name], one)
    assert replicas(decision) == [3, 3]


@pytest.mark.parametrize("name", OTHERS)
def test_no_target_is_above_the_largest_number_of_replicas(name: str) -> None:
    few = replace(GOALS, roles=tuple(replace(role, max=4) for role in GOALS.roles))
    steps = tuple(
        StepDelta(START, 15.0, 100, prefill_tokens=1e6, prefill_requests=100) for _ in range(2)
    )
    one = seen_at(START, queued=1e9, running=1e6, prefill_steps=steps, decode_steps=steps)
    _, decision = LAWS[name].decide(LAWS[name].start, one, few, START)
    assert all(t.replicas <= 4 for t in decision.targets)


def test_a_number_within_its_bounds_is_the_answer_and_one_beyond_says_so() -> None:
    few = replace(GOALS, roles=(RoleGoal("prefill", 2, 5), RoleGoal("decode", 1, 5)))
    assert law.target(PODS, few, "why", 4) == RoleTarget("prefill", 3, 4, 4, Rule.DEMAND, "why")
    most = law.target(PODS, few, "why", 9)
    assert (most.replicas, most.demanded, most.rule) == (5, 9, Rule.MAX_REPLICAS)
    stepped = law.target(PODS, few, "why", 4, Rule.STEP_LIMIT, wanted=8)
    assert (stepped.replicas, stepped.demanded, stepped.rule) == (4, 8, Rule.STEP_LIMIT)
    unknown = law.keep_unknown(PODS, GOALS, "the metric")
    assert (unknown.replicas, unknown.rule) == (3, Rule.METRICS_UNAVAILABLE)


def test_a_decision_is_named_by_the_first_role_that_moves() -> None:
    stays = RoleTarget("prefill", 2, 2, 2, Rule.HOLD, "a")
    moves = RoleTarget("decode", 2, 3, 3, Rule.DEMAND, "b")
    found = law.decision(5.0, (one for one in (stays, moves)), lag_s=1.5)
    assert (found.at, found.rule, found.active, found.reachable) == (5.0, Rule.DEMAND, True, True)
    assert found.message == "prefill 2 → 2 (a); decode 2 → 3 (b)"
    assert found.numbers == {"lag_s": 1.5}
    assert law.decision(5.0, (stays, replace(moves, replicas=2))).rule is Rule.HOLD


# --- signals ------------------------------------------------------------------------------------


def test_a_pod_without_a_step_counts_as_idle_and_eight_pods_stand_for_more() -> None:
    row = StepDelta(START, seconds=9.0, steps=100, decode_sequences=300)
    few = RoleMetrics("decode", 3, steps=(row, row))
    assert law.busy(few, GOALS.windows) == pytest.approx(18 / 15 / 3)
    many = RoleMetrics("decode", 20, steps=(row,) * 8)
    assert law.busy(many, GOALS.windows) == pytest.approx(0.6)
    full = replace(few, pods_reporting=1, steps=(replace(row, seconds=15.4),))
    assert law.busy(full, GOALS.windows) == 1.0


def test_nothing_is_known_of_pods_that_do_not_report() -> None:
    role = RoleMetrics("prefill", 0, outstanding_prompt_tokens=Value(5.0, START))
    assert law.queued(role) is None
    assert law.busy(role, GOALS.windows) is None


def test_a_source_that_says_idle_has_seen_no_request() -> None:
    assert law.requests_per_s(FleetMetrics(START, Idle(START))) == 0.0
    assert law.requests_per_s(FleetMetrics(START, Value(2.5, START))) == 2.5
    assert law.requests_per_s(FleetMetrics(START, UNKNOWN)) is None


def test_step_counters_give_context_and_the_time_of_a_prompt_token() -> None:
    rows = (
        StepDelta(START, 2.0, 10, prefill_tokens=100, decode_sequences=30, context_tokens=6000),
        StepDelta(START, 4.0, 10, prefill_tokens=200, decode_sequences=10, context_tokens=2000),
    )
    role = RoleMetrics("colocated", 2, steps=rows)
    assert law.context(role) == 200.0
    assert law.prefill_token_s(role) == pytest.approx(0.02)
    idle = RoleMetrics("colocated", 2)
    assert (law.context(idle), law.prefill_token_s(idle)) == (None, None)


# --- the HPA ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "total", "reporting", "wanted"),
    [
        (3, 120.0, 3, 4),  # 40 a replica: ratio 1.25
        (3, 105.6, 3, 3),  # 1.1 exactly
        (3, 106.0, 3, 4),
        (3, 90.0, 3, 3),  # 0.94, within the tolerance
        (3, 64.0, 3, 2),
        (3, 192.0, 3, 6),
        (3, 0.0, 3, 0),
        (4, 160.0, 2, 5),  # 80 a pod; two that do not report count as 0: 40 of 32
        (4, 80.0, 2, 4),  # 40 a pod, but 20 of all: the direction turns round
        (4, 32.0, 2, 3),  # 16 a pod; the others count as the target: 24 of 32
        (4, 57.0, 2, 4),  # 0.89, and 0.95 with the others
        (1000, 38_400.9, 1000, 1200),  # a mean is a whole number of thousandths
    ],
)
def test_the_documented_formula_of_the_hpa(
    current: int, total: float, reporting: int, wanted: int
) -> None:
    assert hpa.recommendation(current, total, reporting, 32.0) == wanted


def test_the_hpa_scales_each_role_by_its_own_queue() -> None:
    of = HorizontalPodAutoscaler(prefill=4000.0, decode=30.0)
    state, decision = decided(of, seen_at(START, queued=12_000.0, running=90.0))
    assert replicas(decision) == [3, 3]  # 6000 and 45 a pod: ratio 1.5
    assert decision.rule is Rule.DEMAND
    assert state.keys() == {"prefill", "decode"}


def test_the_hpa_adds_at_most_four_or_as_many_as_there_are() -> None:
    of = HorizontalPodAutoscaler(prefill=1000.0, decode=10.0)
    one = seen_at(START, prefill=2, decode=10, queued=100_000.0, running=1000.0)
    _, decision = decided(of, one)
    assert replicas(decision) == [6, 20]
    assert {t.rule for t in decision.targets} == {Rule.STEP_LIMIT}


def test_a_new_hpa_removes_nothing_for_five_minutes() -> None:
    of = HorizontalPodAutoscaler()
    rounds = [seen_at(START + 15 * i, prefill=5, decode=5) for i in range(21)]
    state, before = decided(of, *rounds[:20])
    assert replicas(before) == [5, 5]
    assert before.rule is Rule.HOLD
    _, after = decided(of, rounds[20], state=state)
    assert replicas(after) == [1, 1]


@pytest.mark.parametrize("of", [HorizontalPodAutoscaler(), Keda()], ids=["hpa", "keda"])
def test_a_role_whose_metric_is_unknown_leaves_the_other_its_answer(of: Any) -> None:
    state, decision = decided(of, seen_at(START, queued=UNKNOWN, running=640.0))
    assert decision.targets[0].rule is Rule.METRICS_UNAVAILABLE
    assert decision.replicas("decode") > 2
    assert "prefill" not in state


# --- KEDA ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "total", "wanted"),
    [
        (3, 120.0, 4),  # 3.75
        (3, 105.0, 3),  # 1.09 times what three replicas may have
        (3, 86.5, 3),  # 0.90
        (3, 86.0, 3),  # 0.896, below the tolerance, and ceil(2.69)
        (9, 120.0, 4),  # starting replicas count: no more is asked for
        (1, 35.2, 1),  # the edge of the tolerance
        (0, 1.0, 1),
        (3, 0.0, 0),
    ],
)
def test_keda_divides_the_sum_by_its_threshold(current: int, total: float, wanted: int) -> None:
    assert keda.recommendation(current, total, 32.0) == wanted


def test_keda_reads_an_empty_answer_as_nothing_to_do() -> None:
    rounds = [seen_at(START + 15 * i, prefill=5, decode=5, running=EMPTY) for i in range(21)]
    _, decision = decided(Keda(), *rounds)
    assert decision.replicas("decode") == 1


def test_keda_keeps_replicas_when_the_query_fails() -> None:
    rounds = [seen_at(START + 15 * i, prefill=5, decode=5, running=UNKNOWN) for i in range(30)]
    _, decision = decided(Keda(), *rounds)
    assert decision.replicas("decode") == 5


# --- Dynamo -------------------------------------------------------------------------------------


def test_long_prompts_take_full_steps_and_a_rest() -> None:
    assert ENGINE.prefill_s(1000) == pytest.approx(0.11)
    assert ENGINE.prefill_s(2048) == pytest.approx(0.01 + 0.2048)
    assert ENGINE.prefill_s(5000) == pytest.approx(3 * 0.01 + 0.5)
    assert ENGINE.prefill_s(0) == 0.0


def test_the_profile_of_the_simulator_is_what_planners_are_given() -> None:
    llama = Engine(PRESETS["llama-70b-h100-tp4"])
    assert llama.best_batch(1100.0, 0.06) == 80  # (60 - 28.8)/(0.2825 + 0.1034)


def test_the_gain_of_the_second_measurement_by_hand() -> None:
    state = Kalman(0.0).predicted()
    assert state.level_variance == 2001.0
    assert state.covariance == 1000.0
    after = state.measured(10.0)
    assert after.level == pytest.approx(10 * 2001 / 2011)
    assert after.trend == pytest.approx(10 * 1000 / 2011)
    assert after.level_variance == pytest.approx(2001 * 10 / 2011)
    assert after.trend_variance == pytest.approx(1000.1 - 1000 * 1000 / 2011)


def planned(*rounds: Observations, itl: float = 1.0) -> Any:
    plan = None
    for one in rounds:
        plan = Throughput(itl).plan(plan, one, GOALS, one.metrics.at)
    return plan


def test_throughput_mode_plans_at_the_end_of_each_interval() -> None:
    rounds = [seen_at(START + 15 * i, 100.0) for i in range(13)]
    assert planned(*rounds[:12]).replicas == {}
    plan = planned(*rounds)
    # 100/s · 0.11 s = 11 busy prefill pods. A context of 1,050 has room for 95 sequences, whose
    # step takes 39 ms: 95/(100 · 0.039) = 24.4 requests/s.
    assert plan.replicas == {"prefill": 11, "decode": ceil(100 * 100 * 0.039 / 95)}
    assert plan.at == START + 180


def test_throughput_mode_aims_below_the_limit_if_told_so() -> None:
    rounds = [seen_at(START + 180 * i, 100.0, prompt=200.0) for i in range(2)]
    assert planned(*rounds, itl=0.75).replicas["decode"] == ceil(100 * 100 * 0.030 / 50)


def test_prefill_is_added_where_a_prompt_alone_misses_the_limit() -> None:
    rounds = [seen_at(START + 180 * i, 0.1, prompt=25_000.0) for i in range(2)]
    assert planned(*rounds).replicas["prefill"] == 3  # 13 steps: 2.63 s at a limit of 1 s


def test_what_has_grown_is_expected_to_grow_on() -> None:
    """After 100 and 200 the filter expects 100 + 100 · (2001 + 1000)/2011 = 249."""
    rounds = [seen_at(START + 180 * i, rate) for i, rate in enumerate((100.0, 100.0, 200.0))]
    assert planned(*rounds).replicas["prefill"] == 28  # 249/s · 0.11 s


def test_missing_bins_are_made_up_for() -> None:
    few = FleetMetrics(START, Value(1.0, START), bins=tuple(Bin(START, 30.0) for _ in range(6)))
    assert dynamo.arrived(few, 15.0) == 360.0
    many = replace(few, bins=tuple(Bin(START, 30.0) for _ in range(50)))
    assert dynamo.arrived(many, 15.0) == 360.0
    assert dynamo.arrived(replace(few, bins=()), 15.0) == 0.0


def test_dynamo_without_a_profile_or_metrics_keeps_what_there_is() -> None:
    blind = goals(SLO(1.0, 0.04), prior=None)
    _, decision = Dynamo().decide(None, seen_at(START), blind, START)
    assert replicas(decision) == [2, 2]
    assert decision.rule is Rule.METRICS_UNAVAILABLE
    lost = replace(seen_at(START + 180), metrics=FleetMetrics(START + 180, Unknown("Away")))
    state, decision = decided(Dynamo(), seen_at(START), lost)
    assert replicas(decision) == [2, 2]
    assert state.at == START + 180


@pytest.mark.parametrize(
    ("queued", "change"),
    [
        (9000.0, 1),  # 10,000 tokens in five steps: 1.05 s
        (8400.0, 0),  # 9,400 in 0.99 s; on one pod 17,800 tokens
        (3500.0, 0),  # on one pod 8,000 in 0.84 s, 0.73 s of it waiting; 0.71 s is 80 %
        (3000.0, -1),  # on one pod 7,000 in 0.74 s, 0.63 s of it waiting
    ],
)
def test_prefill_grows_by_the_next_ttft_and_shrinks_by_that_of_fewer_pods(
    queued: float, change: int
) -> None:
    assert dynamo.prefill_change(ENGINE, queued, 1000.0, 1.0, 2, 0.8) == change


@pytest.mark.parametrize(
    ("sequences", "context", "change"),
    [
        (99.5, 500.0, 1),  # 100.5 sequences: 40.1 ms
        (99.0, 500.0, 0),  # 40.0 ms
        (30.0, 500.0, 0),  # 60 and one on the pod that stays: 32.2 ms, more than 80 %
        (29.0, 500.0, -1),  # 31.8 ms
        (20.0, 2500.0, 0),  # it would not fit into the memory of the pod that stays
    ],
)
def test_decode_grows_by_its_next_step_and_shrinks_by_that_of_fewer_pods(
    sequences: float, context: float, change: int
) -> None:
    assert dynamo.decode_change(ENGINE, sequences, context, 0.04, 2, 0.8) == change


def test_dynamo_waits_for_pods_that_start() -> None:
    one = seen_at(START, pending=1, queued=1e6, running=1e4, decode_steps=decode_row(1, 90, 500))
    _, decision = decided(Dynamo(), one)
    assert replicas(decision) == [2, 2]
    assert {t.rule for t in decision.targets} == {Rule.SCALE_UP_PENDING}


def test_throughput_mode_gives_load_mode_its_least_replicas() -> None:
    rounds = [seen_at(START + 180 * i, 100.0) for i in range(2)]
    _, both = decided(Dynamo(limits=1.0), *rounds)
    assert replicas(both) == [11, 5]
    assert both.message == (
        "prefill 2 → 11 (-1 by load, at least 11); decode 2 → 5 (-1 by load, at least 5)"
    )
    _, alone = decided(Dynamo(limits=1.0), seen_at(START))
    assert replicas(alone) == [1, 1]


# --- llm-d --------------------------------------------------------------------------------------


def test_wva_adds_what_is_missing_and_removes_what_is_spare() -> None:
    of, four = Wva(down=0.7), RoleSupply("decode", 4, 4)
    assert of.recommendation(four, Load(380.0, 100.0)) == 5  # 447 - 400
    assert of.recommendation(four, Load(340.0, 100.0)) == 4  # 400 - 400
    assert of.recommendation(four, Load(190.0, 100.0)) == 3  # 400 - 271
    assert of.recommendation(four, Load(0.0, 100.0)) == 1
    starting = RoleSupply("decode", 6, 4, 2)
    assert of.recommendation(starting, Load(380.0, 100.0)) == 6


def test_wva_holds_what_batches_need_against_memory() -> None:
    assert wva.of_batches(1000.0, 200.0) == pytest.approx(256 * 1100)
    assert wva.of_batches(1000.0, 100.0) == pytest.approx(2048 / 11 * 1050)


def test_wva_counts_the_context_of_running_sequences_once_a_minute() -> None:
    of, heavy = Wva(kv=0.5), decode_row(2, 100, 600)
    state, _ = decided(of, seen_at(START))
    state, soon = decided(of, seen_at(START + 45, running=200.0, decode_steps=heavy), state=state)
    assert soon.replicas("decode") == 2
    # 120,000 tokens at 50,000 a replica: 120,000/0.85 - 100,000 = 41,176 more, one replica.
    _, later = decided(of, seen_at(START + 60, running=200.0, decode_steps=heavy), state=state)
    assert later.replicas("decode") == 3


def test_the_rule_for_prefill_adds_busy_replicas_and_the_queue() -> None:
    row = StepDelta(START, 12.0, 100, prefill_tokens=120_000, prefill_requests=120)
    one = seen_at(START, queued=600_000.0, prefill_steps=(row, row))
    state, _ = decided(Wva(), one)
    # Busy 0.8 of the time, 1.6 replicas; 60 s of queue in 60 s: one more. 2.6/0.85 - 2 = 1.06.
    assert state["prefill"].replicas == 4
