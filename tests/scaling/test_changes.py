"""What a series of counts tells: a step is no ramp, noise is neither, and a ramp ends."""

from math import exp, log, sqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.estimate import demand
from argosy_law.estimate.demand import find_rise

GROWTH = 0.0456
"""20 % a minute, in bins of 15 s."""


def noisy(rates: list[float], seed: int, noise: float = 1.0) -> tuple[float, ...]:
    """Counts with `noise` times Poisson's variance."""
    dice = Random(seed)
    return tuple(max(0.0, round(r + dice.gauss(0, sqrt(noise * r)))) for r in rates)


def climbing(bins: int, base: float = 150.0) -> list[float]:
    """Forty steady bins, then so many that grow by 20 % a minute."""
    return [base] * 40 + [base * exp(GROWTH * (i + 0.5)) for i in range(bins)]


def test_a_step_is_a_segment_from_where_it_happened() -> None:
    counts = noisy([150.0] * 60 + [300.0] * 9, 1)
    assert demand.segment(counts, 1.0) == counts[-9:]


def test_one_bin_alone_is_a_burst_unless_it_leaps_and_two_are_a_change() -> None:
    steady = (150.0,) * 40
    assert demand.segment((*steady, 231.0), 1.0) == (231.0,)
    assert demand.segment((*steady, 215.0), 1.0)[-2:] == (150.0, 215.0)
    assert demand.segment((*steady, 40.0), 1.0) != (40.0,)
    assert demand.segment((9.0,) * 40 + (60.0, 60.0), 1.0) == (60.0, 60.0)
    assert demand.segment((5.0,), 1.0) == (5.0,)
    assert demand.segment((5.0, 50.0, 5.0), 1.0) == (5.0, 50.0, 5.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_ramp_of_a_fifth_a_minute_is_known_after_three_minutes(seed: int) -> None:
    counts = noisy(climbing(12), seed)
    rise = find_rise(counts)
    assert rise is not None
    assert rise.growth == pytest.approx(GROWTH, rel=0.4)
    true = 150.0 * exp(GROWTH * (11.5 + 8))
    assert abs(log(rise.ahead(8.0, 10.0) / true)) < 0.35


def test_a_rise_counts_once_it_was_there_a_bin_before() -> None:
    counts = noisy(climbing(14), 0)
    both = [find_rise(counts), find_rise(counts[:-1])]
    reached = [one.ahead(8.0 + i, 1.6) for i, one in enumerate(both) if one]
    assert len(reached) == 2
    assert demand.extrapolate_rise(counts, 8.0, 1.6) == min(reached)
    first = next(i for i in range(40, 54) if find_rise(counts[:i]))
    assert demand.extrapolate_rise(counts[:first], 8.0, 1.6) == 0.0
    assert demand.extrapolate_rise((), 8.0, 1.6) == 0.0


@pytest.mark.parametrize("age", range(1, 17))
def test_a_step_is_never_taken_for_a_rise(age: int) -> None:
    assert find_rise((150.0,) * 40 + (300.0,) * age) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_rise_is_over_three_minutes_after_the_ramp(seed: int) -> None:
    ramp = climbing(20)
    assert find_rise(noisy(ramp, seed)) is not None
    assert find_rise(noisy([*ramp, *[ramp[-1]] * 12], seed)) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_falling_rate_is_no_rise(seed: int) -> None:
    assert find_rise(noisy(climbing(16)[::-1], seed)) is None


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), mean=st.floats(8, 600))
def test_poisson_noise_is_rarely_taken_for_a_rise(seed: int, mean: float) -> None:
    counts = noisy([mean] * 120, seed)
    assert sum(find_rise(counts[: 40 + i]) is not None for i in range(80)) <= 6


@pytest.mark.parametrize("seed", range(6))
def test_bursts_that_last_for_minutes_are_rarely_taken_for_a_rise(seed: int) -> None:
    """A rate that wanders around its mean, with a memory of a minute."""
    dice, level, rates = Random(seed), 0.0, []
    for _ in range(240):
        level = 0.78 * level + dice.gauss(0, 0.12)
        rates.append(150.0 * exp(level))
    counts = noisy(rates, seed)
    assert sum(find_rise(counts[max(0, i - 160) : i]) is not None for i in range(40, 240)) <= 12


@given(counts=st.lists(st.floats(0, 1e15), max_size=40), noise=st.floats(1, 1e6))
def test_no_counts_make_any_of_it_fail(counts: list[float], noise: float) -> None:
    series = tuple(counts)
    assert 1.0 <= demand.dispersion(series) <= 12.0
    assert len(demand.segment(series, noise)) <= len(series)
    assert demand.wander(series, noise) >= noise
    rise = demand.find_rise(series)
    assert rise is None or 0 <= rise.ahead(8.0, 2.0) <= 2e16
