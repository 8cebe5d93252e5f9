"""The rules of other autoscalers, by numbers worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.core.scaling.decision import Decision, Rule
from argosy_operator.core.scaling.law import LAWS
from argosy_operator.core.scaling.observe import (
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
from argosy_operator.core.scaling.rivals import apa, hpa, keda, kpa, seen
from argosy_operator.core.scaling.rivals.apa import AIBrix
from argosy_operator.core.scaling.rivals.hpa import HorizontalPodAutoscaler, OnGpuUtilization
from argosy_operator.core.scaling.rivals.keda import Keda
from argosy_operator.core.scaling.rivals.kpa import Knative, Panic
from tests.scaling.known import goals

START = 1000.0
GOALS = goals()
UNKNOWN = Unknown("QueryFailed: Prometheus does not answer")
EMPTY = Unknown("NoSamples")


def seen_at(
    now: float,
    *,
    prefill: int = 2,
    decode: int = 2,
    ready: int | None = None,
    queued: Signal | float = 0.0,
    running: Signal | float = 0.0,
    prompt: Signal | float = 1000.0,
    prefill_steps: tuple[StepDelta, ...] = (),
    decode_steps: tuple[StepDelta, ...] = (),
    **others: Signal,
) -> Observations:
    """A round with so many replicas, of which `ready` of each role report (all if None)."""

    def signal(of: Signal | float) -> Signal:
        return Value(of, now) if isinstance(of, int | float) else of

    first, second = (n if ready is None else min(ready, n) for n in (prefill, decode))
    metrics = FleetMetrics(
        at=now,
        arrivals=others.pop("arrivals", Idle(now)),
        prompt_tokens=signal(prompt),
        roles=(
            RoleMetrics(
                "prefill",
                first,
                steps=prefill_steps,
                running=Value(0.0, now),
                outstanding_prompt_tokens=signal(queued),
            ),
            RoleMetrics("decode", second, steps=decode_steps, running=signal(running)),
        ),
        **others,  # type: ignore[arg-type]
    )
    return Observations(
        metrics,
        (
            RoleSupply("prefill", prefill, first, prefill - first),
            RoleSupply("decode", decode, second, decode - second),
        ),
    )


def decided(law: Any, *rounds: Observations, state: Any = None) -> tuple[Any, Decision]:
    """The last decision over rounds that follow each other, each at the time of its metrics."""
    state = law.start if state is None else state
    for one in rounds:
        state, decision = law.decide(state, one, GOALS, one.metrics.at)
    return state, decision


# --- what all of them keep ----------------------------------------------------------------------

RIVALS = sorted(LAWS.keys() - {"goodput", "static"})


READ_NO_GAUGE = {"heteroscale"}
"""They read step counters alone."""


@pytest.mark.parametrize("name", sorted(set(RIVALS) - READ_NO_GAUGE))
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_number_that_cannot_be_true_moves_nothing(name: str, bad: float) -> None:
    rate = Value(bad, START)
    one = seen_at(START, prefill=3, decode=3, queued=bad, running=bad, prompt=bad, arrivals=rate)
    _, decision = decided(LAWS[name], one)
    assert [t.replicas for t in decision.targets] == [3, 3]


@pytest.mark.parametrize("name", RIVALS)
def test_no_target_is_above_the_largest_number_of_replicas(name: str) -> None:
    few = replace(GOALS, roles=tuple(replace(role, max=4) for role in GOALS.roles))
    steps = tuple(
        StepDelta(START, 15.0, 100, prefill_tokens=1e6, prefill_requests=100) for _ in range(2)
    )
    one = seen_at(START, queued=1e9, running=1e6, prefill_steps=steps, decode_steps=steps)
    _, decision = LAWS[name].decide(LAWS[name].start, one, few, START)
    assert all(t.replicas <= 4 for t in decision.targets)


# --- signals ------------------------------------------------------------------------------------


def test_a_pod_without_a_step_counts_as_idle() -> None:
    row = StepDelta(START, seconds=9.0, steps=100, decode_sequences=300)
    role = RoleMetrics("decode", 3, steps=(row, row))
    assert seen.busy(role, GOALS.windows) == pytest.approx(18 / 15 / 3)
    assert seen.tokens_per_s(role, GOALS.windows) == pytest.approx(600 / 15 / 3)


def test_eight_pods_stand_for_more() -> None:
    row = StepDelta(START, seconds=9.0, steps=100, decode_sequences=300)
    role = RoleMetrics("decode", 20, steps=(row,) * 8)
    assert seen.busy(role, GOALS.windows) == pytest.approx(0.6)
    assert seen.tokens_per_s(role, GOALS.windows) == pytest.approx(20.0)


def test_no_gpu_is_busier_than_all_the_time() -> None:
    row = StepDelta(START, seconds=15.4, steps=100)
    assert seen.busy(RoleMetrics("prefill", 1, steps=(row,)), GOALS.windows) == 1.0


def test_nothing_is_known_of_pods_that_do_not_report() -> None:
    role = RoleMetrics("prefill", 0, outstanding_prompt_tokens=Value(5.0, START))
    assert seen.queued(role) is None
    assert seen.busy(role, GOALS.windows) is None


def test_prefill_has_as_many_requests_as_its_tokens_make_prompts() -> None:
    one = seen_at(START, queued=5000.0, running=7.0, prompt=1000.0).metrics
    assert seen.in_flight(one.role("prefill"), one) == 5.0
    assert seen.in_flight(one.role("decode"), one) == 7.0
    empty = seen_at(START, queued=0.0, prompt=Idle(START)).metrics
    assert seen.in_flight(empty.role("prefill"), empty) == 0.0
    blind = seen_at(START, queued=5.0, prompt=Idle(START)).metrics
    assert seen.in_flight(blind.role("prefill"), blind) is None


def test_a_source_that_says_idle_has_seen_no_request() -> None:
    assert seen.requests_per_s(FleetMetrics(START, Idle(START))) == 0.0
    assert seen.requests_per_s(FleetMetrics(START, Value(2.5, START))) == 2.5
    assert seen.requests_per_s(FleetMetrics(START, UNKNOWN)) is None


# --- the HPA ------------------------------------------------------------------------------------


def test_the_hpa_scales_each_role_by_its_own_queue() -> None:
    law = HorizontalPodAutoscaler(prefill=4000.0, decode=30.0)
    one = seen_at(START, queued=12_000.0, running=90.0)
    _, decision = decided(law, one)
    assert [t.replicas for t in decision.targets] == [3, 3]  # 6000 and 45 a pod: ratio 1.5
    assert decision.rule is Rule.DEMAND


def test_the_hpa_adds_at_most_four_or_as_many_as_there_are() -> None:
    law = HorizontalPodAutoscaler(prefill=1000.0, decode=10.0)
    one = seen_at(START, prefill=2, decode=10, queued=100_000.0, running=1000.0)
    _, decision = decided(law, one)
    assert [t.replicas for t in decision.targets] == [6, 20]
    assert {t.rule for t in decision.targets} == {Rule.STEP_LIMIT}


def test_a_new_hpa_removes_nothing_for_five_minutes() -> None:
    law = HorizontalPodAutoscaler()
    rounds = [seen_at(START + 15 * i, prefill=5, decode=5) for i in range(21)]
    state, before = decided(law, *rounds[:20])
    assert [t.replicas for t in before.targets] == [5, 5]
    _, after = decided(law, rounds[20], state=state)
    assert [t.replicas for t in after.targets] == [1, 1]


def test_the_hpa_on_gpu_utilization_aims_at_a_share_of_busy_time() -> None:
    law = OnGpuUtilization(prefill=0.6, decode=0.5)
    row = StepDelta(START, seconds=13.5, steps=100)
    one = seen_at(START, prefill_steps=(row, row), decode_steps=(row, row))
    _, decision = decided(law, one)
    assert [t.replicas for t in decision.targets] == [3, 4]  # 0.9/0.6 · 2 and 0.9/0.5 · 2 = 3.6


def test_the_edges_of_the_tolerance_change_nothing() -> None:
    assert hpa.recommendation(1, 1.1, 1, 1.0) == 1
    assert hpa.recommendation(10, 9.0, 10, 1.0) == 10
    assert keda.recommendation(1, 35.2, 32.0) == 1
    assert keda.recommendation(3, 3.3, 1.0) == 3
    assert keda.recommendation(3, 3.301, 1.0) == 4


def test_a_mean_is_a_whole_number_of_thousandths() -> None:
    # 1.200999 a pod counts as 1.2, and 1,200.999 would be rounded up.
    assert hpa.recommendation(1000, 1200.999, 1000, 1.0) == 1200


# --- KEDA ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "total", "wanted"),
    [
        (3, 120.0, 4),  # 3.75
        (3, 105.0, 3),  # 1.09 times what three replicas may have
        (3, 86.5, 3),  # 0.90
        (3, 86.0, 3),  # 0.896, below the tolerance, and ceil(2.69)
        (9, 120.0, 4),  # starting replicas count: no more is asked for
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
    _, careful = decided(Keda(ignore_null_values=False), *rounds)
    assert careful.replicas("decode") == 5


def test_keda_keeps_replicas_when_the_query_fails() -> None:
    rounds = [seen_at(START + 15 * i, prefill=5, decode=5, running=UNKNOWN) for i in range(30)]
    _, decision = decided(Keda(), *rounds)
    assert decision.replicas("decode") == 5


def test_keda_uses_an_answer_for_as_long_as_it_caches() -> None:
    law = Keda(decode=10.0, cached_s=30.0)
    first, second = seen_at(START, running=20.0), seen_at(START + 15, running=100.0)
    state, _ = decided(law, first)
    state, cached = decided(law, second, state=state)
    assert cached.replicas("decode") == 2
    _, fresh = decided(law, seen_at(START + 30, running=100.0), state=state)
    assert fresh.replicas("decode") == 6  # ten, of which four may be added at once


# --- Knative ------------------------------------------------------------------------------------


def test_knative_divides_the_mean_concurrency_by_seventy_percent_of_its_target() -> None:
    calm = Panic()
    assert kpa.recommendation(calm, 4, 300.0, 300.0, 70.0, START) == (calm, 5)
    assert kpa.recommendation(calm, 4, 280.0, 280.0, 70.0, START) == (calm, 4)


def test_knative_removes_at_most_half_of_the_ready_pods() -> None:
    calm = Panic()
    assert kpa.recommendation(calm, 9, 0.0, 0.0, 70.0, START) == (calm, 4)
    assert kpa.recommendation(calm, 0, 0.0, 0.0, 70.0, START) == (calm, 0)


def test_knative_adds_at_most_a_thousand_times_the_ready_pods() -> None:
    _, wanted = kpa.recommendation(Panic(), 2, 1e6, 1e6, 70.0, START)
    assert wanted == 2000


def test_knative_panics_at_twice_the_ready_pods_and_then_removes_none() -> None:
    panic, wanted = kpa.recommendation(Panic(), 2, 100.0, 280.0, 70.0, START)
    assert (panic, wanted) == (Panic(START, 4), 4)
    panic, wanted = kpa.recommendation(panic, 4, 50.0, 50.0, 70.0, START + 60)
    assert (panic, wanted) == (Panic(START, 4), 4)
    panic, wanted = kpa.recommendation(panic, 4, 50.0, 50.0, 70.0, START + 60.1)
    assert (panic, wanted) == (Panic(), 2)  # half of four, though one would do


def test_knative_below_twice_the_ready_pods_does_not_panic() -> None:
    panic, wanted = kpa.recommendation(Panic(), 2, 100.0, 210.0, 70.0, START)
    assert (panic, wanted) == (Panic(), 2)


def test_a_panic_that_goes_on_lasts_a_window_longer() -> None:
    panic, _ = kpa.recommendation(Panic(START, 4), 2, 0.0, 280.0, 70.0, START + 50)
    assert panic == Panic(START + 50, 4)


def test_knative_averages_a_minute_and_begins_in_panic() -> None:
    law = Knative(prefill=10.0, decode=10.0)
    rounds = [seen_at(START + 15 * i, running=28.0 if i < 2 else 0.0) for i in range(6)]
    _, first = decided(law, rounds[0])
    assert first.replicas("decode") == 4  # 28/7, twice the two that are ready
    state, _ = decided(law, *rounds)
    times = [sample.at - START for sample in state["decode"].samples]
    assert times == [30.0, 45.0, 60.0, 75.0]
    assert state["decode"].panic.since == START + 15


# --- AIBrix -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "wanted"),
    [(48.0, 6), (90.0, 8), (35.2, 4), (35.3, 5), (28.8, 4), (28.7, 4), (24.0, 3), (2.0, 2)],
)
def test_aibrix_follows_the_ratio_outside_of_ten_percent(mean: float, wanted: int) -> None:
    assert apa.recommendation(4, mean, 32.0) == wanted


def test_aibrix_averages_three_minutes() -> None:
    law = AIBrix(decode=32.0)
    loads = [0.0] * 4 + [120.0] * 12
    rounds = [seen_at(START + 15 * i, running=load) for i, load in enumerate(loads)]
    state, decision = decided(law, *rounds)
    assert len(state["decode"].averages) == 12
    assert decision.replicas("decode") == 4  # 60 a pod for twelve rounds: 1.875 · 2


def test_aibrix_goes_down_by_the_smallest_recommendation_of_five_minutes() -> None:
    law = AIBrix(decode=32.0)
    rounds = [seen_at(START, decode=8, running=8 * 20.0)]  # 0.63: five
    rounds += [seen_at(START + 15, decode=8, running=8 * 32.0)]  # mean 26, 0.81: seven
    _, decision = decided(law, *rounds)
    assert decision.targets[1].demanded == 7
    assert decision.replicas("decode") == 5
