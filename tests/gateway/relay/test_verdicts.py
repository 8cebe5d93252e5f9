"""Every row of the verdict table in `relay.verdicts`."""

import pytest

from argosy_gateway.config import Slo
from argosy_gateway.relay.verdicts import (
    Ending,
    Outcome,
    Verdict,
    first_token_after_s,
    held_s,
    judge,
    tpot_s,
    ttft_s,
)

SLO = Slo(ttft_s=0.2, tpot_s=0.05)
MET, TTFT_MISS, TPOT_MISS, MISS = (
    Verdict(a, b) for a, b in ((True, True), (False, True), (True, False), (False, False))
)


def ended(ending, *, first=None, last=None, n=None, at=9.0):
    return Outcome(ending, 0.0, at, first, last, n)


TABLE = [
    ("both in time", ended(Ending.OK, first=0.1, last=0.6, n=11), MET),
    ("exactly at both limits", ended(Ending.OK, first=0.2, last=0.7, n=11), MET),
    ("first token late", ended(Ending.OK, first=0.21, last=0.3, n=11), TTFT_MISS),
    ("tokens slow", ended(Ending.OK, first=0.1, last=0.61, n=11), TPOT_MISS),
    ("both late", ended(Ending.OK, first=0.3, last=2.0, n=11), MISS),
    ("a single token has no pace to miss", ended(Ending.OK, first=0.1, last=0.1, n=1), MET),
    ("a single token late", ended(Ending.OK, first=0.3, last=0.3, n=1), TTFT_MISS),
    ("no content at all counts at its end", ended(Ending.OK, n=1, at=0.3), TTFT_MISS),
    ("no content at all in time", ended(Ending.OK, n=1, at=0.1), MET),
    ("two tokens slow", ended(Ending.OK, first=0.1, last=0.16, n=2), TPOT_MISS),
    ("two tokens in time", ended(Ending.OK, first=0.1, last=0.14, n=2), MET),
    ("an unknown count is judged as two", ended(Ending.OK, first=0.1, last=0.16), TPOT_MISS),
    ("an unknown count, both in time", ended(Ending.OK, first=0.1, last=0.14), MET),
    ("shed", ended(Ending.SHED), MISS),
    ("shed at once", ended(Ending.SHED, at=0.0), MISS),
    ("failed before the first byte", ended(Ending.FAILED), MISS),
    ("failed after good tokens", ended(Ending.FAILED, first=0.1, last=0.2, n=5), MISS),
    ("left before the limit, nothing seen", ended(Ending.CLIENT_GONE, at=0.19), None),
    ("left exactly at the limit", ended(Ending.CLIENT_GONE, at=0.2), None),
    ("left after the limit, nothing seen", ended(Ending.CLIENT_GONE, at=0.21), TTFT_MISS),
    ("left long after a first token in time", ended(Ending.CLIENT_GONE, first=0.1), None),
    ("left after a late first token", ended(Ending.CLIENT_GONE, first=0.3), TTFT_MISS),
    ("refused for an error in it", ended(Ending.INVALID), None),
]


@pytest.mark.parametrize(
    ("outcome", "verdict"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_every_row_of_the_verdict_table(outcome, verdict):
    assert judge(outcome, SLO) == verdict


@pytest.mark.parametrize(
    ("n", "first", "last"), [(None, 1.0, 2.0), (1, 1.0, 2.0), (5, None, 2.0), (5, 1.0, None)]
)
def test_there_is_no_tpot_without_a_second_token_and_both_times(n, first, last):
    assert tpot_s(ended(Ending.OK, first=first, last=last, n=n)) is None


@pytest.mark.parametrize(
    ("named_ms", "seconds"),
    [
        (b"123.4", 0.1234),
        (b"0", 0.0),
        (b"0.0", 0.0),
        (b"2000.0", 2.0),
        (None, 2.0),
        (b"", 2.0),
        (b"2000.1", 2.0),
        (b"-1", 2.0),
        (b"nan", 2.0),
        (b"inf", 2.0),
        (b"1,5", 2.0),
        (b"\xff", 2.0),
        (b"1e999", 2.0),
        (b"1 2", 2.0),
    ],
)
def test_the_engines_first_token_time_is_used_if_it_is_possible(named_ms, seconds):
    assert first_token_after_s(named_ms, whole_s=2.0) == pytest.approx(seconds)


def test_a_token_that_was_not_held_gives_ttft_back_and_takes_tpot():
    """Held from 0.05 to 0.1, with a limit of 0.05 a token: the second one came at 0.14."""
    outcome = Outcome(Ending.OK, 0.0, 9.0, 0.1, 0.14, 2, held_s=0.05)
    assert judge(outcome, SLO) == MET
    at_once = outcome.at_once
    assert (ttft_s(at_once), tpot_s(at_once)) == (pytest.approx(0.05), pytest.approx(0.09))
    assert judge(at_once, SLO) == TPOT_MISS
    assert at_once.at_once == at_once


@pytest.mark.parametrize(
    ("reported", "seconds"),
    [(b"80.5", 0.0805), (b"0", 0.0), (None, 0.0), (b"", 0.0), (b"long", 0.0), (b"-1", 0.0),
     (b"inf", 0.0), (b"nan", 0.0)],
)  # fmt: skip
def test_how_long_a_token_was_held_is_what_the_engine_reports_if_that_is_possible(
    reported, seconds
):
    assert held_s(reported) == pytest.approx(seconds)


def test_t49_of_ten_requests_a_second_the_three_within_the_slo_are_the_goodput():
    """The first example of DistServe's text: throughput 10, goodput 3."""
    late = [ended(Ending.OK, first=0.3, last=0.4, n=11) for _ in range(4)]
    slow = [ended(Ending.OK, first=0.1, last=1.0, n=11) for _ in range(3)]
    good = [ended(Ending.OK, first=0.1, last=0.5, n=11) for _ in range(3)]
    verdicts = [judge(outcome, SLO) for outcome in (*late, *slow, *good)]
    assert len(verdicts) == 10
    assert verdicts.count(MET) == 3
