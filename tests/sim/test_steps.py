"""Many decode steps in closed form are the same as one after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.sim.world.machine import Replica, steps_s, steps_until, steps_within

FIRST = st.floats(1e-4, 1.0)
GROWTH = st.one_of(st.just(0.0), st.floats(1e-9, 1e-2))
STEPS = st.integers(1, 20_000)


def one_by_one(first_s: float, growth_s: float, steps: int) -> float:
    return sum(first_s + i * growth_s for i in range(steps))


@given(FIRST, GROWTH, st.integers(0, 2000))
def test_a_jump_takes_as_long_as_its_steps(first: float, growth: float, steps: int) -> None:
    assert steps_s(first, growth, steps) == pytest.approx(one_by_one(first, growth, steps))


@given(FIRST, GROWTH, st.floats(0.0, 1e4))
def test_steps_until_a_time_are_the_fewest_that_reach_it(
    first: float, growth: float, seconds: float
) -> None:
    steps = steps_until(first, growth, seconds)
    assert steps >= 1
    assert steps_s(first, growth, steps) >= seconds
    assert steps == 1 or steps_s(first, growth, steps - 1) < seconds


@given(FIRST, GROWTH, st.floats(0.0, 1e4))
def test_steps_within_a_time_are_the_most_that_fit(
    first: float, growth: float, seconds: float
) -> None:
    steps = steps_within(first, growth, seconds)
    assert steps >= 0
    assert steps_s(first, growth, steps) <= seconds
    assert steps_s(first, growth, steps + 1) > seconds


@given(FIRST, GROWTH, STEPS)
def test_a_time_that_is_an_edge_is_reached_by_its_own_step(
    first: float, growth: float, steps: int
) -> None:
    edge = steps_s(first, growth, steps)
    assert steps_until(first, growth, edge) == steps
    assert steps_within(first, growth, edge) == steps


def test_kv_of_a_4k_prompt_of_70b_takes_27_ms_over_a_400_gigabit_port() -> None:
    assert Replica.preset("llama-70b-h100-tp4").transfer_s(4096) == pytest.approx(0.0268, abs=1e-4)
