"""Shares, intervals and percentiles of recorded requests."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_measure.score import Limits, Row, percentile, score, wilson

LIMITS = Limits(0.2, 0.05, 0.9)


def row(ttft_s=0.1, tpot_s=0.03, error=None, at_s=0.0, late_s=0.0) -> Row:
    return Row(at_s, at_s + 1, ttft_s, tpot_s, 10, error=error, late_s=late_s)


@given(st.integers(0, 300), st.integers(1, 300), st.floats(0.5, 4))
def test_wilsons_interval_holds_the_share_and_is_the_root_of_its_equation(met, more, z):
    of = met + more
    low, high = wilson(met, of, z)
    assert 0 <= low <= met / of <= high <= 1
    for bound in (low, high):
        if 0 < bound < 1:
            deviation = z * math.sqrt(bound * (1 - bound) / of)
            assert abs(met / of - bound) == pytest.approx(deviation, rel=1e-6, abs=1e-9)


def test_nothing_counted_says_nothing():
    assert wilson(0, 0) == (0.0, 1.0)
    assert percentile([], 0.9) is None


def test_both_limits_are_met_jointly_and_by_whole_answers_alone():
    assert row().meets(LIMITS)
    assert row(ttft_s=0.2, tpot_s=0.05).meets(LIMITS)
    assert not row(ttft_s=0.21).meets(LIMITS)
    assert not row(tpot_s=0.051).meets(LIMITS)
    assert not row(error="cut").meets(LIMITS)
    assert not row(ttft_s=None).meets(LIMITS)
    assert row(tpot_s=None).meets(LIMITS)


@given(st.lists(st.tuples(st.floats(0, 0.4), st.floats(0, 0.1), st.booleans()), min_size=1))
def test_a_score_counts_each_request_once(drawn):
    rows = [row(a, b, "x" if bad else None, at_s=n) for n, (a, b, bad) in enumerate(drawn)]
    got = score(rows, LIMITS)
    assert got.requests == len(rows)
    assert got.met + got.failed <= got.requests
    assert got.low <= got.attainment <= got.high
    assert got.seconds == len(rows)
    assert got.goodput_per_s == pytest.approx(got.met / len(rows))


def test_a_client_that_sends_late_is_said_to_be_overloaded():
    on_time, late = row(late_s=0.02), row(late_s=0.021)
    assert not score([on_time] * 99 + [late], LIMITS).client_overloaded
    assert score([on_time] * 98 + [late] * 2, LIMITS).client_overloaded
