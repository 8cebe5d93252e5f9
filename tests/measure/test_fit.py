"""Constants of steps are found again from times with noise, or the rows are refused."""

from math import sqrt

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from argosy_measure.fit import Row, UndeterminedError, fit, hold_out

NAMES = ("base", "per sequence", "per context token")
POINTS = [(1.0, float(n), float(n * c)) for n in (1, 8, 32, 64) for c in (128, 1024)]
constants = st.tuples(
    st.floats(1e-3, 0.1), st.floats(1e-5, 1e-3), st.floats(1e-8, 1e-6)
)  # seconds, from a small model on a fast GPU to a large one
NOISE = 0.01
noises = st.lists(st.floats(-NOISE, NOISE), min_size=len(POINTS), max_size=len(POINTS))


def rows_of(known, noise=(), points=POINTS):
    noise = noise or [0.0] * len(points)
    return [
        Row(point, sum(c * x for c, x in zip(known, point, strict=True)) * (1 + more))
        for point, more in zip(points, noise, strict=True)
    ]


@given(constants)
def test_constants_are_found_from_exact_times(known):
    found = fit(rows_of(known), NAMES)
    assert found.constants == pytest.approx(known, rel=1e-6)
    assert found.errors == pytest.approx((0, 0, 0), abs=1e-9)
    assert hold_out(rows_of(known), NAMES) == pytest.approx([0.0] * len(POINTS), abs=1e-6)


@given(constants, noises)
def test_noisy_times_give_steps_that_are_off_by_no_more_than_the_noise_together(known, noise):
    found = fit(rows_of(known, noise), NAMES)
    assert min(found.constants) >= 0
    # Least squares project the noise; a constant that is held at 0 misses by what it cost.
    assume(min(found.constants) > 0)
    most = sqrt(sum(n * n for n in noise)) / (1 - NOISE) + 1e-9
    for point in POINTS:
        true = sum(c * x for c, x in zip(known, point, strict=True))
        assert found.predict(point) == pytest.approx(true, rel=2 * most)


@given(constants, st.floats(0.1, 10))
def test_a_slower_machine_has_larger_constants_and_equal_shares_of_error(known, times):
    noise = [0.01, -0.005, 0.003, -0.01, 0.002, 0.007, -0.004, 0.001]
    one = fit(rows_of(known, noise), NAMES)
    other = fit([Row(row.amounts, times * row.seconds) for row in rows_of(known, noise)], NAMES)
    assert other.constants == pytest.approx([times * c for c in one.constants], abs=1e-12)
    assert other.errors == pytest.approx([times * e for e in one.errors], abs=1e-12)


@pytest.mark.parametrize(
    ("points", "constant"),
    [
        ([], "base"),
        (POINTS[:3], "per context token"),
        ([(1.0, 4.0, float(4 * c)) for c in (64, 128, 512, 1024)], "per sequence"),
        ([(1.0, float(n), 512.0 * n) for n in (1, 8, 32, 64)], "per context token"),
        ([(1.0, float(n), 0.0) for n in (1, 8, 32, 64)], "per context token"),
    ],
)
def test_rows_that_do_not_determine_a_constant_are_refused_by_its_name(points, constant):
    with pytest.raises(UndeterminedError) as refused:
        fit(rows_of((0.02, 1e-4, 1e-7), points=points), NAMES)
    assert refused.value.constant == constant


PROMPTS = [(1.0, float(n), float(n * n)) for n in (64, 128, 256, 512, 1024, 1536, 2000)]
PREFILL = ("base", "per token", "per squared token")


def test_an_optional_constant_is_0_when_it_drowns_in_noise_and_found_when_it_does_not():
    noise = [0.01, -0.01, 0.008, -0.006, 0.01, -0.009, 0.007]
    small, large = (
        fit(rows_of((0.02, 1e-4, squared), noise, PROMPTS), PREFILL, ["per squared token"])
        for squared in (1e-12, 7e-8)
    )
    assert small.constants[2] == small.errors[2] == 0
    assert large.constants[2] == pytest.approx(7e-8, rel=0.1)


def test_no_constant_is_negative():
    rows = [Row((1.0, float(n), float(n * n)), 0.1 - 1e-5 * n) for n in (64, 256, 1024, 2000, 4000)]
    found = fit(rows, PREFILL)
    assert min(found.constants) == 0
    assert found.predict(rows[0].amounts) > 0
