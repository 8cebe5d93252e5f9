"""What must hold for any metrics: bounds, budget, unknown signals, the first hold."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.decide import decide
from argosy_law.observe import (
    Bin,
    FleetMetrics,
    Idle,
    Observations,
    RoleMetrics,
    StepDelta,
    Unknown,
    Value,
)
from argosy_law.state import ScalingState
from tests.scaling.ramp import GOALS
from tests.scaling.test_decide import START, supply

pytestmark = pytest.mark.slow

ANY = st.floats() | st.floats(0, 1e4)
NEAR = st.floats(START - 2, START + 2) | st.floats()
SIGNALS = (
    st.builds(Value, ANY, NEAR)
    | st.builds(Idle, NEAR)
    | st.just(Unknown("x"))
    | st.builds(Value, st.floats(0, 1e4), st.just(START))
)
STEPS = st.builds(StepDelta, NEAR, ANY, ANY, ANY, ANY, ANY, ANY)
ROLES = st.tuples(
    *(
        st.builds(
            RoleMetrics,
            role=st.just(role),
            pods_reporting=st.integers(0, 5),
            steps=st.lists(STEPS, max_size=3).map(tuple),
            running=SIGNALS,
            outstanding_prompt_tokens=SIGNALS,
            kv_capacity_tokens=SIGNALS,
        )
        for role in ("prefill", "decode")
    )
)
METRICS = st.builds(
    FleetMetrics,
    at=st.just(START),
    arrivals=SIGNALS,
    bins=st.lists(ANY, max_size=12).map(
        lambda counts: tuple(Bin(START - 12 + i, c) for i, c in enumerate(counts))
    ),
    prompt_tokens=SIGNALS,
    prompt_tokens_squared=SIGNALS,
    output_tokens=SIGNALS,
    kv_transfer_s=SIGNALS,
    attainment=SIGNALS,
    ttft_attainment=SIGNALS,
    tpot_attainment=SIGNALS,
    scored=ANY,
    roles=ROLES,
)
HAVE = st.tuples(st.integers(1, 4), st.integers(1, 4))


@settings(max_examples=150, deadline=None)
@given(seen=METRICS, have=HAVE, budget=st.integers(8, 40))
def test_any_numbers_at_all_give_whole_replicas_within_bounds_and_budget(
    seen: FleetMetrics, have: tuple[int, int], budget: int
) -> None:
    goals = replace(GOALS, gpu_budget=budget)
    _, decision = decide(ScalingState(), Observations(seen, supply(*have)), goals, START)
    assert all(type(t.replicas) is int and 1 <= t.replicas <= 4 for t in decision.targets)
    grown = [t for t in decision.targets if t.replicas > t.current]
    assert not grown or 4 * sum(t.replicas for t in decision.targets) <= budget


@settings(max_examples=100, deadline=None)
@given(seen=METRICS, have=HAVE)
def test_a_law_that_has_just_started_removes_nothing(
    seen: FleetMetrics, have: tuple[int, int]
) -> None:
    goals = replace(GOALS, gpu_budget=None)
    _, decision = decide(ScalingState(), Observations(seen, supply(*have)), goals, START)
    assert all(t.replicas >= t.current for t in decision.targets)


@settings(max_examples=100, deadline=None)
@given(seen=METRICS, have=HAVE, spare=st.integers(0, 8))
def test_a_budget_that_suffices_for_what_is_there_removes_nothing_at_the_start(
    seen: FleetMetrics, have: tuple[int, int], spare: int
) -> None:
    goals = replace(GOALS, gpu_budget=4 * sum(have) + spare)
    _, decision = decide(ScalingState(), Observations(seen, supply(*have)), goals, START)
    assert all(t.replicas >= t.current for t in decision.targets)


@settings(max_examples=50, deadline=None)
@given(seen=METRICS, have=HAVE, bad=st.sampled_from([float("nan"), float("inf"), -1.0]))
def test_arrivals_that_are_no_number_are_unknown_and_remove_nothing(
    seen: FleetMetrics, have: tuple[int, int], bad: float
) -> None:
    lacking = replace(seen, arrivals=Value(bad, START))
    _, decision = decide(ScalingState(), Observations(lacking, supply(*have)), GOALS, START)
    assert tuple(t.replicas for t in decision.targets) == have
    assert not decision.active


def test_a_row_of_less_than_one_step_teaches_nothing() -> None:
    """Found by the first property: a second over 1e-237 steps overflowed the learner."""
    row = StepDelta(START, seconds=1.0, steps=1e-237)
    seen = FleetMetrics(START, Value(1.0, START), roles=(RoleMetrics("prefill", 1, (row,)),))
    state, _ = decide(ScalingState(), Observations(seen, supply(1, 1)), GOALS, START)
    assert [r.estimate.rows for r in state.roles] == [0, 0]
