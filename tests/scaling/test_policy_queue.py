"""Policy Queue: replicas towards what each should have to do, without an SLO or a profile."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_operator.core.scaling.decide import decide
from argosy_operator.core.scaling.decision import Decision, Rule
from argosy_operator.core.scaling.goals import Goals, QueueTargets, RoleGoal, Windows
from argosy_operator.core.scaling.law import LAWS
from argosy_operator.core.scaling.observe import (
    FleetMetrics,
    Observations,
    RoleMetrics,
    RoleSupply,
    Unknown,
    Value,
)
from argosy_operator.core.scaling.queue import recommended
from argosy_operator.core.scaling.state import ScalingState
from argosy_operator.core.scaling.text.record import from_json, to_json
from tests.scaling.test_decide import START, metrics, supply

GOALS = Goals(
    mode="disaggregated",
    roles=(RoleGoal("prefill", 1, 30), RoleGoal("decode", 1, 30)),
    slo=None,
    windows=Windows(scrape_s=1, rate_s=5, interval_s=2, down_hold_s=15, cold_start_s=6),
    policy="Queue",
    queue=QueueTargets(prompt_tokens=4000, sequences=20),
)
TOGETHER = replace(GOALS, mode="colocated", roles=(RoleGoal("colocated", 1, 30),))


def seen(now: float, tokens: float = 0.0, running: float = 0.0, **more: object) -> FleetMetrics:
    """Prompts have 2000 tokens. No verdict is known: nobody has set an SLO."""
    roles = (
        RoleMetrics("prefill", 30, outstanding_prompt_tokens=Value(tokens, now)),
        RoleMetrics("decode", 30, running=Value(running, now)),
    )
    of = {"roles": roles, "attainment": Unknown("NoSamples"), **more}
    return metrics(now, 1.0, **of)


def after(*load: tuple[float, float], start: int = 3, goals: Goals = GOALS) -> Decision:
    """The decision after rounds with these (tokens, sequences), two seconds apart."""
    state, supplies = ScalingState(), supply(start, start)
    for i, (tokens, running) in enumerate(load):
        now = START + 2 * i
        observed = Observations(seen(now, tokens, running), supplies)
        state, decision = decide(state, observed, goals, now)
        supplies = supply(decision.replicas("prefill"), decision.replicas("decode"))
    return decision


def of(decision: Decision) -> tuple[int, int]:
    return decision.replicas("prefill"), decision.replicas("decode")


@pytest.mark.parametrize(
    ("total", "current", "replicas"),
    [
        (0, 3, 1),
        (54, 3, 3),  # 0.9 of 60
        (53.9, 3, 3),  # ceil(2.695)
        (40, 3, 2),
        (40.1, 3, 3),
        (66, 3, 3),  # 1.1 of 60
        (66.1, 3, 4),
        (80, 3, 4),
        (81, 3, 5),
        (20, 0, 1),
        (0, 0, 1),
        (1e15, 1, 10_000),
    ],
)
def test_the_total_over_the_target_outside_of_the_tolerance(
    total: float, current: int, replicas: int
) -> None:
    assert recommended(total, 20, current) == replicas


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 1000), st.integers(0, 100))
def test_more_to_do_never_asks_for_fewer_replicas(
    one: float, other: float, target: int, current: int
) -> None:
    less, more = sorted((one, other))
    assert recommended(less, target, current) <= recommended(more, target, current)


def test_prefill_follows_prompt_tokens_and_decode_sequences_and_those_that_wait() -> None:
    decision = after((16_000, 100))
    assert of(decision) == (4, 6)  # 16 000/4000; (100 + 16 000/2000)/20 = 5.4
    assert [t.rule for t in decision.targets] == [Rule.QUEUE, Rule.QUEUE]
    assert decision.active
    assert decision.unknown == ()
    assert "16000 prompt tokens wait or are computed, and 4000 per replica" in decision.message
    assert "108 requests wait or run, and 20 per replica are the target" in decision.message
    assert decision.numbers["queued_prompt_tokens"] == 16_000
    assert decision.numbers["decode_sequences"] == 108
    assert decision.numbers["target_sequences"] == 20
    assert decision.numbers["target_prompt_tokens"] == 4000


def test_within_the_tolerance_nothing_moves_and_the_rule_is_the_same() -> None:
    decision = after((12_400, 55.0), start=3)
    assert of(decision) == (3, 3)
    assert [t.demanded for t in decision.targets] == [3, 3]


def test_colocated_pods_follow_the_larger_of_both() -> None:
    pods = (RoleSupply("colocated", 3, 3),)

    def decided(tokens: float, running: float) -> int:
        role = RoleMetrics(
            "colocated", 3, outstanding_prompt_tokens=Value(tokens, START),
            running=Value(running, START),
        )  # fmt: skip
        round_ = metrics(START, 1.0, roles=(role,))
        _, decision = decide(ScalingState(), Observations(round_, pods), TOGETHER, START)
        return decision.replicas("colocated")

    assert decided(20_000, 10) == 5
    assert decided(4_000, 100) == 6  # (100 + 2)/20
    assert decided(12_000, 54) == 3


def test_growth_is_bounded_by_the_step_and_by_max() -> None:
    decision = after((200_000, 60), start=2)
    assert decision.replicas("prefill") == 6
    assert decision.targets[0].rule is Rule.STEP_LIMIT
    later = after(*[(2_000_000, 60)] * 10, start=2)
    assert later.replicas("prefill") == 30
    assert later.targets[0].rule is Rule.MAX_REPLICAS


def test_replicas_go_one_by_one_after_a_whole_hold() -> None:
    calm = [(100.0, 1.0)]
    assert of(after(*calm * 7)) == (3, 3)
    decision = after(*calm * 9)
    assert of(decision) == (2, 2)
    assert of(after(*calm * 40)) == (1, 1)
    busy = after(*calm * 6, (12_000.0, 60.0), *calm * 6)
    assert of(busy) == (3, 3)
    assert {t.rule for t in busy.targets} == {Rule.HOLD}


def test_a_queue_that_is_unknown_removes_nothing() -> None:
    state, supplies = ScalingState(), supply(3, 3)
    for i in range(30):
        now = START + 2 * i
        roles = (RoleMetrics("prefill", 3, outstanding_prompt_tokens=Unknown("NoSamples")),)
        roles += (RoleMetrics("decode", 3, running=Value(1.0, now)),)
        half = replace(seen(now), roles=roles)
        state, decision = decide(state, Observations(half, supplies), GOALS, now)
        supplies = supply(decision.replicas("prefill"), decision.replicas("decode"))
    assert of(decision) == (3, 1)
    assert decision.targets[0].rule is Rule.METRICS_UNAVAILABLE
    assert decision.unknown == ("prefill outstanding_prompt_tokens",)


def test_an_slo_changes_nothing_and_goodput_needs_one() -> None:
    from tests.scaling.ramp import GOALS as WITH_SLO

    promised = replace(GOALS, slo=WITH_SLO.slo)
    load = ((16_000.0, 100.0), (20_000.0, 90.0))
    assert of(after(*load, goals=promised)) == of(after(*load))
    assert after(*load, goals=replace(GOALS, policy="Goodput")).rule is Rule.NO_SLO


def test_the_law_of_the_simulator_is_the_policy() -> None:
    goals = replace(GOALS, policy="Goodput")
    observed = Observations(seen(START, 16_000, 100), supply(3, 3))
    _, one = LAWS["queue"].decide(ScalingState(), observed, goals, START)
    _, other = decide(ScalingState(), observed, GOALS, START)
    assert one == other
    assert from_json(Decision, to_json(one)) == one


amounts = st.floats(0, 1e7) | st.sampled_from([0.0, 1e15, float("nan"), float("inf"), -1.0])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(amounts, amounts), min_size=1, max_size=12), st.integers(1, 30))
def test_whatever_is_measured_nothing_raises_and_bounds_hold(
    load: list[tuple[float, float]], start: int
) -> None:
    for target in after(*load, start=start).targets:
        assert 1 <= target.replicas <= 30


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e3)), max_size=6),
    st.tuples(st.floats(0, 1e5), st.floats(0, 1e3)),
    st.tuples(st.floats(0, 1e5), st.floats(0, 1e3)),
)
def test_of_two_loads_at_the_end_the_larger_gets_no_fewer_replicas(
    before: list[tuple[float, float]], one: tuple[float, float], more: tuple[float, float]
) -> None:
    larger = (one[0] + more[0], one[1] + more[1])
    small, large = of(after(*before, one)), of(after(*before, larger))
    assert small[0] <= large[0]
    assert small[1] <= large[1]
