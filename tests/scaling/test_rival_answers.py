"""What rivals answer beside the number: rule, sentence, and what was wanted before their steps."""

from dataclasses import replace

import pytest

from argosy_operator.core.scaling.decision import RoleTarget, Rule
from argosy_operator.core.scaling.goals import RoleGoal
from argosy_operator.core.scaling.observe import RoleMetrics, RoleSupply, StepDelta, Unknown, Value
from argosy_operator.core.scaling.rivals import answer, apa, hpa, keda, kpa, seen
from argosy_operator.core.scaling.rivals.apa import AIBrix
from argosy_operator.core.scaling.rivals.hpa import HorizontalPodAutoscaler, OnGpuUtilization
from argosy_operator.core.scaling.rivals.keda import Keda
from argosy_operator.core.scaling.rivals.kpa import Knative, Panic, Sample
from argosy_operator.core.scaling.rivals.static import Static
from tests.scaling.test_rivals import EMPTY, GOALS, START, decided, seen_at

PODS = RoleSupply("prefill", 3, 3)


def test_a_number_within_its_bounds_is_the_answer_and_one_beyond_says_so() -> None:
    few = replace(GOALS, roles=(RoleGoal("prefill", 2, 5), RoleGoal("decode", 1, 5)))
    assert answer.target(PODS, few, "why", 4) == RoleTarget("prefill", 3, 4, 4, Rule.DEMAND, "why")
    most = answer.target(PODS, few, "why", 9)
    assert (most.replicas, most.demanded, most.rule) == (5, 9, Rule.MAX_REPLICAS)
    assert most.message == "why; bounded by spec.roles.prefill.replicas.max"
    stepped = answer.target(PODS, few, "why", 4, Rule.STEP_LIMIT, wanted=8)
    assert (stepped.replicas, stepped.demanded, stepped.rule) == (4, 8, Rule.STEP_LIMIT)
    assert stepped.message.startswith("why; spec.autoscaling.scaleUp or scaleDown limits")


def test_what_is_unknown_or_not_for_a_rival_keeps_its_replicas() -> None:
    unknown = answer.unknown(PODS, GOALS, "the metric")
    assert (unknown.replicas, unknown.rule) == (3, Rule.METRICS_UNAVAILABLE)
    assert unknown.message == (
        "the metric is unknown; metrics are unknown, stale or incomplete: nothing is removed"
    )
    apart = answer.apart_only(PODS, GOALS)
    assert (apart.replicas, apart.rule) == (3, Rule.DEMAND)
    assert apart.message == "this law sizes prefill and decode apart: colocated replicas stay"


def test_a_decision_is_named_by_the_first_role_that_moves() -> None:
    stays = RoleTarget("prefill", 2, 2, 2, Rule.HOLD, "a")
    moves = RoleTarget("decode", 2, 3, 3, Rule.DEMAND, "b")
    found = answer.decision(5.0, (one for one in (stays, moves)), lag_s=1.5)
    assert (found.at, found.rule, found.active, found.reachable) == (5.0, Rule.DEMAND, True, True)
    assert found.message == "prefill 2 → 2 (a); decode 2 → 3 (b)"
    assert found.numbers == {"lag_s": 1.5}
    assert answer.decision(5.0, (stays, replace(moves, replicas=2))).rule is Rule.HOLD


def test_the_declared_replicas_stay_the_declared_ones() -> None:
    one = seen_at(START, prefill=4, decode=2, running=900.0)
    state, decision = decided(Static(), one)
    assert state is None
    assert ([t.replicas for t in decision.targets], decision.rule) == ([1, 1], Rule.POLICY_NONE)


@pytest.mark.parametrize(
    ("law", "sentence"),
    [
        (HorizontalPodAutoscaler(1000.0, 20.0), "3 wanted at a target of 20 per replica"),
        (Keda(1000.0, 20.0), "3 wanted for 60 at a threshold of 20"),
        (AIBrix(1000.0, 20.0), "3 wanted for a mean of 30 at a target of 20"),
        (Knative(10.0, 30.0), "3 wanted at 21 requests per pod, panic mode"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_rival_says_what_it_wanted_and_why(law: object, sentence: str) -> None:
    """Two decode pods with 30 sequences each."""
    state, decision = decided(law, seen_at(START, running=60.0, queued=2000.0))
    target = decision.targets[1]
    assert target.message == sentence
    assert (target.current, target.replicas, target.demanded) == (2, 3, 3)
    assert state.keys() == {"prefill", "decode"}


def test_on_gpus_the_sentence_names_the_share() -> None:
    row = StepDelta(START, seconds=13.5, steps=100)
    one = seen_at(START, prefill_steps=(row, row), decode_steps=(row, row))
    _, decision = decided(OnGpuUtilization(prefill=0.9, decode=0.6), one)
    assert [t.message for t in decision.targets] == [
        "2 wanted at a target of 0.9 per replica",
        "3 wanted at a target of 0.6 per replica",
    ]


def test_a_role_whose_metric_is_unknown_leaves_the_other_its_answer() -> None:
    blind = Unknown("QueryFailed")
    for law in (HorizontalPodAutoscaler(), AIBrix(), Keda()):
        state, decision = decided(law, seen_at(START, queued=blind, running=640.0))
        assert decision.targets[0].rule is Rule.METRICS_UNAVAILABLE
        assert decision.replicas("decode") > 2
        assert "prefill" not in state
        assert decision.targets[0].message.startswith("the metric is unknown; ")
    _, decision = decided(Knative(), seen_at(START, queued=blind))
    assert decision.targets[0].message.startswith("concurrency is unknown; ")


# --- where their rules begin ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "total", "reporting", "wanted"),
    [
        (3, 120.0, 3, 4),
        (3, 102.0, 3, 3),
        (3, 105.6, 3, 3),  # 1.1 exactly
        (3, 106.0, 3, 4),
        (4, 160.0, 2, 5),  # 80 a pod; two that do not report count as 0: 40 of 32
        (4, 80.0, 2, 4),  # 40 a pod, but 20 of all: the direction turns round
        (4, 32.0, 2, 3),  # 16 a pod; the others count as the target: 24 of 32
        (4, 57.0, 2, 4),  # 0.89, and 0.95 with the others
        (4, 64.0, 2, 4),
    ],
)
def test_the_hpa_takes_pods_without_a_value_for_what_holds_it_back(
    current: int, total: float, reporting: int, wanted: int
) -> None:
    assert hpa.recommendation(current, total, reporting, 32.0) == wanted


def test_the_hpa_remembers_the_replicas_it_began_with() -> None:
    held, one = hpa.behave(None, PODS, GOALS, 1, START, "why")
    assert (one.replicas, one.demanded, one.rule, one.message) == (3, 1, Rule.HOLD, one.message)
    assert one.message.startswith("why; ")
    _, later = hpa.behave(held, PODS, GOALS, 1, START + 300.0, "why")
    assert (later.replicas, later.rule) == (1, Rule.DEMAND)


def test_keda_reads_a_threshold_in_thousandths_and_none_below() -> None:
    assert keda.recommendation(0, 5.0, 0.0001) == 5000
    assert keda.recommendation(2, 64.0, 32.0) == 2
    assert keda.recommendation(2, 0.001, 32.0) == 1
    state, _ = decided(Keda(decode=10.0, cached_s=30.0), seen_at(START, running=20.0))
    assert (state["decode"].at, state["decode"].total) == (START, 20.0)
    _, empty = decided(Keda(), seen_at(START, queued=EMPTY))
    assert empty.targets[0].message.startswith("0 wanted for 0 at a threshold of 4096")


def test_knatives_windows_end_where_they_are_as_long_as_they_should_be() -> None:
    assert kpa.begin(1, START) == Panic(None, 1)
    assert kpa.begin(2, START) == Panic(START, 2)
    samples = (Sample(START - 6.0, 90.0), Sample(START - 5.9, 10.0), Sample(START, 20.0))
    assert kpa.newest(samples, START) == 15.0
    assert kpa.stable(samples) == 40.0
    panic, wanted = kpa.recommendation(Panic(), 3, 0.0, 70.0 * 5 + 1, 70.0, START)
    assert (panic, wanted) == (Panic(START, 6), 6), "six are twice three"
    panic, _ = kpa.recommendation(Panic(START, 6), 3, 0.0, 0.0, 70.0, START + 60.0)
    assert panic == Panic(START, 6)


def test_aibrix_forgets_what_left_its_windows() -> None:
    law = AIBrix(decode=32.0)
    rounds = [seen_at(START + at, running=64.0) for at in (0.0, 179.0, 180.0, 301.0)]
    state, _ = decided(law, *rounds[:2])
    assert [a.at - START for a in state["decode"].averages] == [0.0, 179.0]
    state, _ = decided(law, *rounds)
    assert [a.at - START for a in state["decode"].averages] == [179.0, 180.0, 301.0]
    assert [w.at - START for w in state["decode"].recommended] == [179.0, 180.0, 301.0]
    assert apa.recommendation(5, 1.0, 32.0) == 2, "half of five, rounded down"


# --- signals --------------------------------------------------------------------------------------


def test_step_counters_give_context_and_the_time_of_a_prompt_token() -> None:
    rows = (
        StepDelta(START, 2.0, 10, prefill_tokens=100, decode_sequences=30, context_tokens=6000),
        StepDelta(START, 4.0, 10, prefill_tokens=200, decode_sequences=10, context_tokens=2000),
    )
    role = RoleMetrics("colocated", 2, steps=rows)
    assert seen.context(role) == 200.0
    assert seen.prefill_token_s(role) == pytest.approx(0.02)
    idle = RoleMetrics("colocated", 2)
    assert (seen.context(idle), seen.prefill_token_s(idle)) == (None, None)
    assert seen.busy(idle, GOALS.windows) == 0.0


def test_prefill_is_measured_by_tokens_and_the_others_by_sequences() -> None:
    one = seen_at(START, queued=500.0, running=7.0).metrics
    assert seen.queued(one.role("prefill")) == 500.0
    assert seen.queued(one.role("decode")) == 7.0
    assert seen.number(Value(3.0, START)) == 3.0
    assert seen.number(Unknown("x")) is None
