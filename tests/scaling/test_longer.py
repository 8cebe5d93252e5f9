"""Requests that become longer are provided for before they are there."""

from math import exp, log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.estimate.demand import REMEMBERED_BINS
from argosy_law.estimate.longer import AnsweredState, append_answered, growth
from argosy_law.goals import Windows
from argosy_law.observe import Answered

WINDOWS = Windows()
AHEAD_S = 120.0


def lengths(rng: Random, mean: float, number: int) -> float:
    """The sum of lognormal lengths, whose second moment is e^0.64 times the squared mean."""
    return sum(rng.lognormvariate(log(mean) - 0.32, 0.8) for _ in range(number))


def grown(means: list[float], numbers: list[int], seed: int) -> float:
    """The growth that is seen after these intervals, over the mean of the last twelve."""
    rng = Random(seed)
    tokens = [lengths(rng, mean, n) for mean, n in zip(means, numbers, strict=True)]
    mean = sum(tokens[-12:]) / sum(numbers[-12:])
    requests = [float(n) for n in numbers]
    return growth(tokens, requests, mean, exp(0.64) * mean**2, WINDOWS, AHEAD_S)


@pytest.mark.parametrize("seed", range(20))
def test_lengths_that_only_vary_do_not_grow(seed: int) -> None:
    assert grown([500.0] * 48, [300] * 48, seed) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_prompts_that_become_five_times_longer_are_followed_at_a_falling_rate(seed: int) -> None:
    """In a quarter of an hour, after a quarter that is steady. After seven minutes of it, what the
    mean of three minutes is behind and the growth until a replica would serve are about 1.5."""
    means = [500.0] * 60 + [500.0 * 5 ** (n / 60) for n in range(28)]
    numbers = [700] * 60 + [700 - 4 * n for n in range(28)]
    assert grown(means, numbers, seed) == pytest.approx(1.5, abs=0.25)


def test_a_growth_is_bounded_and_lengths_that_fall_say_nothing() -> None:
    steep = [500.0] * 60 + [500.0 * 1.1**n for n in range(12)]
    assert 1.0 < grown(steep, [700] * 72, 1) < 2.5
    assert grown(steep[::-1], [700] * 72, 1) == 1.0


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e6)), max_size=REMEMBERED_BINS),
    st.floats(0, 1e6),
    st.floats(0, 1e12),
)
def test_whatever_was_answered_the_growth_is_at_least_one_and_a_number(
    rows: list[tuple[float, float]], mean: float, squared: float
) -> None:
    tokens, requests = [t for t, _ in rows], [n for _, n in rows]
    assert 1.0 <= growth(tokens, requests, mean, squared, WINDOWS, AHEAD_S) < 1e12


def answered(end: float) -> Answered:
    return Answered(end, 1.0, 100.0 * end, 10.0)


def row(end: float) -> tuple[float, float, float]:
    return 1.0, 100.0 * end, 10.0


def test_intervals_are_added_once_and_a_gap_drops_the_older_ones() -> None:
    before = AnsweredState(30.0, (row(15.0), row(30.0)))
    after = append_answered(before, (answered(30.0), answered(45.0)), 15.0)
    assert after == AnsweredState(45.0, (row(15.0), row(30.0), row(45.0)))
    assert append_answered(before, (answered(60.0),), 15.0) == AnsweredState(60.0, (row(60.0),))
    many = tuple(answered(15.0 * n) for n in range(2 * REMEMBERED_BINS))
    assert len(append_answered(AnsweredState(), many, 15.0).rows) == REMEMBERED_BINS
