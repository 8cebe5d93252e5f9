"""What a series of counts tells: a step is no ramp, noise is neither, and a ramp ends."""

from math import exp, log, sqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.estimate import demand

GROWTH = 0.0456
"""20 % a minute, in bins of 15 s."""


def noisy(rates: list[float], seed: int, noise: float = 1.0) -> tuple[float, ...]:
    """Counts with `noise` times Poisson's variance."""
    dice = Random(seed)
    return tuple(max(0.0, round(r + dice.gauss(0, sqrt(noise * r)))) for r in rates)


def climbing(bins: int, base: float = 150.0) -> list[float]:
    """Forty steady bins, then so many that grow by 20 % a minute."""
    return [base] * 40 + [base * exp(GROWTH * (i + 0.5)) for i in range(bins)]


def found(counts: tuple[float, ...]) -> demand.Rise | None:
    spread = demand.dispersion(counts)
    since = len(demand.segment(counts, spread))
    return demand.find_rise(counts, demand.wander(counts, spread), since)


def test_a_step_is_a_segment_from_where_it_happened() -> None:
    counts = noisy([150.0] * 60 + [300.0] * 9, 1)
    assert demand.segment(counts, 1.0) == counts[-9:]


def test_of_two_steps_the_newer_one_begins_the_segment() -> None:
    counts = tuple([150.0] * 60 + [300.0] * 20 + [225.0] * 7)
    assert demand.segment(counts, 1.0) == counts[-7:]


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
    rise = found(counts)
    assert rise is not None
    assert rise.growth == pytest.approx(GROWTH, rel=0.4)
    true = 150.0 * exp(GROWTH * (11.5 + 8))
    assert abs(log(rise.ahead(8.0, 10.0) / true)) < 0.35


def test_what_lies_ahead_is_bounded() -> None:
    assert demand.Rise(100.0, 0.1).ahead(5.0, 2.0) == pytest.approx(100.0 * exp(0.5))
    assert demand.Rise(100.0, 0.1).ahead(50.0, 2.0) == 200.0
    assert demand.Rise(100.0, 1e300).ahead(1e300, 2.0) == 200.0


def test_a_rise_counts_once_it_was_there_a_bin_before() -> None:
    counts = noisy(climbing(14), 0)
    both = [found(counts), found(counts[:-1])]
    since = len(demand.segment(counts, demand.dispersion(counts)))
    reached = [one.ahead(8.0 + i, 1.6) for i, one in enumerate(both) if one]
    assert len(reached) == 2
    assert demand.extrapolate_rise(counts, since, 8.0, 1.6) == min(reached)
    first = next(i for i in range(40, 54) if found(counts[:i]))
    assert demand.extrapolate_rise(counts[:first], 2, 8.0, 1.6) == 0.0
    assert demand.extrapolate_rise((), 0, 8.0, 1.6) == 0.0


def test_a_rise_by_more_than_a_step_of_bins_is_a_step() -> None:
    steady = (100.0,) * 20
    gradual = (*steady, 100.0, 113.0, 126.0, 139.0)
    assert demand.find_rise(gradual, 1e-6, 24) == demand.Rise(139.0, 13.0 / 119.5)
    assert demand.find_rise((*steady, 100.0, 115.0, 130.0, 145.0), 1e-6, 24) is None


@pytest.mark.parametrize("age", range(1, 17))
def test_a_step_is_never_taken_for_a_rise(age: int) -> None:
    assert found((150.0,) * 40 + (300.0,) * age) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_rise_is_over_three_minutes_after_the_ramp(seed: int) -> None:
    ramp = climbing(20)
    assert found(noisy(ramp, seed)) is not None
    assert found(noisy([*ramp, *[ramp[-1]] * 12], seed)) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_falling_rate_is_no_rise(seed: int) -> None:
    assert found(noisy(climbing(16)[::-1], seed)) is None


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), mean=st.floats(8, 600))
def test_poisson_noise_is_rarely_taken_for_a_rise(seed: int, mean: float) -> None:
    counts = noisy([mean] * 120, seed)
    assert sum(found(counts[: 40 + i]) is not None for i in range(80)) <= 6


@pytest.mark.parametrize("seed", range(6))
def test_bursts_that_last_for_minutes_are_rarely_taken_for_a_rise(seed: int) -> None:
    """A rate that wanders around its mean, with a memory of a minute."""
    dice, level, rates = Random(seed), 0.0, []
    for _ in range(240):
        level = 0.78 * level + dice.gauss(0, 0.12)
        rates.append(150.0 * exp(level))
    counts = noisy(rates, seed)
    assert sum(found(counts[max(0, i - 160) : i]) is not None for i in range(40, 240)) <= 12


def test_slow_noise_is_measured_over_a_minute_and_a_ramp_in_it_does_not_count() -> None:
    assert demand.wander((150.0,) * 15, 1.5) == 1.5
    assert demand.wander((100.0,) * 16, 1.0) == 1.0
    waves = (100.0,) * 4 + (144.0,) * 4
    wide = (576 - 400) ** 2 / (576 + 400) / demand.CHI_SQUARED_MEDIAN
    assert demand.wander(waves * 5, 1.0) == pytest.approx(wide)
    assert demand.wander(waves * 5, 1.0 + wide) == 1.0 + wide
    assert demand.wander((150.0,) * 60 + (150.0, 300.0, 600.0, 1200.0), 1.0) == 1.0


def test_dispersion_is_that_of_poisson_until_it_is_significantly_more() -> None:
    assert demand.dispersion((0.0, 100.0) * 3) == 1.0
    assert demand.dispersion((0.0,) * 20) == 1.0
    assert demand.dispersion((80.0, 120.0) * 20) == pytest.approx(8.0 - 2 * sqrt(2 / 40))
    assert demand.dispersion((0.0, 900.0) * 20) == 12.0


@given(counts=st.lists(st.floats(0, 1e15), max_size=40), noise=st.floats(1, 1e6))
def test_no_counts_make_any_of_it_fail(counts: list[float], noise: float) -> None:
    series = tuple(counts)
    assert 1.0 <= demand.dispersion(series) <= 12.0
    assert len(demand.segment(series, noise)) <= len(series)
    assert demand.wander(series, noise) >= noise
    rise = demand.find_rise(series, noise, len(series))
    assert rise is None or 0 <= rise.ahead(8.0, 2.0) <= 2e16


def test_a_bin_leaps_by_five_deviations_and_two_bins_are_a_change_by_three_and_a_half() -> None:
    """On the scale of roots: of 40 bins of 150 the next deviates by 5 at 218.5."""
    steady = (150.0,) * 40
    assert demand.segment((*steady, 218.4), 1.0) == (150.0, 218.4)
    assert demand.segment((*steady, 218.6), 1.0) == (218.6,)
    before = (100.0,) * 8
    assert len(demand.segment((*before, 129.5, 129.5), 1.0)) == 10
    assert demand.segment((*before, 129.7, 129.7), 1.0) == (129.7, 129.7)
    assert len(demand.segment((*before, 163.0, 163.0), 4.0)) == 10, "twice as far in four times"
    assert demand.segment((*before, 163.1, 163.1), 4.0) == (163.1, 163.1)


def test_a_rise_is_significant_beyond_four_standard_errors_of_its_slope() -> None:
    """A slope of 2 with a mean of 23: its error is √(noise · 23/5), a half at 0.0543."""
    line = (20.0, 22.0, 24.0, 26.0)
    assert demand.find_rise(line, 0.0543, 2) == demand.Rise(26.0, 2.0 / 23.0)
    assert demand.find_rise(line, 0.0544, 2) is None
    assert demand.find_rise(line, 0.0543, 9) == demand.Rise(26.0, 2.0 / 23.0)
    assert demand.find_rise(line[1:], 1e-6, 2) is None, "three bins are too few"
    assert demand.find_rise((10.0, 12.0, 14.0, 16.0), 0.01, 2) is None, "more than 12 % a bin"


def test_a_line_fits_within_its_noise_and_about_as_well_as_a_step() -> None:
    """The line misses a step by 3.2 in all, in units of noise · 22: more than 7 is no fit."""
    step = (20.0, 20.0, 24.0, 24.0)
    assert demand.find_rise(step, 0.0208, 1) == demand.Rise(
        pytest.approx(24.4), pytest.approx(1.6 / 22)
    )
    assert demand.find_rise(step, 0.0207, 1) is None
    assert demand.find_rise(step, 0.03, 2) is None, "a step to the newest two misses nothing"
    assert demand.find_rise((20.0, 20.9, 24.0, 24.9), 0.03, 2) is not None, "1.195 times as much"
    assert demand.find_rise((20.0, 20.88, 24.0, 24.88), 0.03, 2) is None, "1.255 times as much"


def test_a_rise_is_over_where_the_newest_bins_do_not_go_on() -> None:
    """Ten bins that rise by 6, then six that stay: a line over twelve bins is 0.018 a bin steep."""
    counts = (*(100.0 + 6 * i for i in range(10)), *[154.0] * 6)
    assert demand.find_rise(counts, 0.30, 16) is None, "the newest bins deny it by two errors"
    assert demand.find_rise(counts, 0.31, 16) == demand.Rise(
        pytest.approx(160.923, abs=1e-3), pytest.approx(0.0179, abs=1e-5)
    )
    assert demand.find_rise(counts, 0.5, 16) is None
    assert demand.find_rise(counts[:-4], 0.5, 12) is not None
