"""The rules of other autoscalers, by numbers worked out by hand."""

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from argosy_law.decision import Decision, RoleTarget, Rule
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
from argosy_law.sim.laws import LAWS, dynamo, hpa, keda, law
from argosy_law.sim.laws.dynamo import Dynamo, Engine, Throughput
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
    cached: float = 0.0,
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
        cached_share=Value(cached, now),
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


def test_a_number_within_its_bounds_is_the_answer_and_one_beyond_says_so() -> None:
    few = replace(GOALS, roles=(RoleGoal("prefill", 2, 5), RoleGoal("decode", 1, 5)))
    assert law.target(PODS, few, "why", 4) == RoleTarget("prefill", 3, 4, 4, Rule.DEMAND, "why")
    most = law.target(PODS, few, "why", 9)
    assert (most.replicas, most.demanded, most.rule) == (5, 9, Rule.MAX_REPLICAS)
    stepped = law.target(PODS, few, "why", 4, Rule.STEP_LIMIT, wanted=8)
    assert (stepped.replicas, stepped.demanded, stepped.rule) == (4, 8, Rule.STEP_LIMIT)
    unknown = law.keep_unknown(PODS, GOALS, "the metric")
    assert (unknown.replicas, unknown.rule) == (3, Rule.METRICS_UNAVAILABLE)


# --- signals ------------------------------------------------------------------------------------


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


def planned(*rounds: Observations, itl: float = 1.0) -> Any:
    plan = None
    for one in rounds:
        plan = Throughput(1.0, itl).plan(plan, one, GOALS, one.metrics.at)
    return plan


def test_throughput_mode_plans_at_the_end_of_each_interval() -> None:
    rounds = [seen_at(START + 15 * i, 100.0) for i in range(13)]
    assert planned(*rounds[:12]).replicas == {}
    plan = planned(*rounds)
    # 100/s · 0.11 s = 11 busy prefill pods. A context of 1,050 has room for 95 sequences, whose
    # step takes 39 ms: 95/(100 · 0.039) = 24.4 requests/s.
    assert plan.replicas == {"prefill": 11, "decode": ceil(100 * 100 * 0.039 / 95)}
    assert plan.at == START + 180


def test_prefill_is_added_where_a_prompt_alone_misses_the_limit() -> None:
    rounds = [seen_at(START + 180 * i, 0.1, prompt=25_000.0) for i in range(2)]
    assert planned(*rounds).replicas["prefill"] == 3  # 13 steps: 2.63 s at a limit of 1 s


def test_dynamo_takes_cached_prompts_off_the_work_of_prefill_and_not_off_the_context() -> None:
    rounds = [seen_at(START + 15 * i, 100.0, cached=0.5) for i in range(13)]
    whole = planned(*(seen_at(START + 15 * i, 100.0) for i in range(13))).replicas
    # 500 tokens take 0.06 s.
    assert planned(*rounds).replicas == {"prefill": 6, "decode": whole["decode"]}


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


# --- llm-d --------------------------------------------------------------------------------------


def test_wva_adds_what_is_missing_and_removes_what_is_spare() -> None:
    of, four = Wva(down=0.7), RoleSupply("decode", 4, 4)
    assert of.recommendation(four, Load(380.0, 100.0)) == 5  # 447 - 400
    assert of.recommendation(four, Load(340.0, 100.0)) == 4  # 400 - 400
    assert of.recommendation(four, Load(190.0, 100.0)) == 3  # 400 - 271
    assert of.recommendation(four, Load(0.0, 100.0)) == 1
    starting = RoleSupply("decode", 6, 4, 2)
    assert of.recommendation(starting, Load(380.0, 100.0)) == 6


def test_wva_counts_the_context_of_running_sequences_once_a_minute() -> None:
    of, heavy = Wva(kv=0.5), decode_row(2, 100, 600)
    state, _ = decided(of, seen_at(START))
    state, soon = decided(of, seen_at(START + 45, running=200.0, decode_steps=heavy), state=state)
    assert soon.replicas("decode") == 2
    # 120,000 tokens at 50,000 a replica: 120,000/0.85 - 100,000 = 41,176 more, one replica.
    _, later = decided(of, seen_at(START + 60, running=200.0, decode_steps=heavy), state=state)
    assert later.replicas("decode") == 3


def test_wva_counts_requests_that_wait_with_their_prompts_and_answers() -> None:
    of = Wva(kv=0.5)
    one = seen_at(START, queued=200_000.0, running=20.0, decode_steps=decode_row(2, 10, 600))
    state, _ = decided(of, one)
    # 12,000 tokens run. 200 requests wait: 200,000 tokens of prompts and 20,000 of answers. 232,000
    # at 50,000 a replica: 272,941 - 100,000 = 172,941 more, four replicas.
    assert state["decode"].replicas == 6
    cached = replace(one.metrics, cached_share=Value(0.75, START))
    more, _ = decided(of, replace(one, metrics=cached))
    # 800 prompts of which caches have three quarters: 60,000 tokens of answers more.
    assert more["decode"].replicas == 7


def test_the_rule_for_prefill_adds_busy_replicas_and_the_queue() -> None:
    row = StepDelta(START, 12.0, 100, prefill_tokens=120_000, prefill_requests=120)
    one = seen_at(START, queued=600_000.0, prefill_steps=(row, row))
    state, _ = decided(Wva(), one)
    # Busy 0.8 of the time, 1.6 replicas; 60 s of queue in 60 s: one more. 2.6/0.85 - 2 = 1.06.
    assert state["prefill"].replicas == 4
