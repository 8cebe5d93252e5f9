"""Every row of the verdict table in `accounting.verdicts`."""

import pytest

from argosy_gateway.accounting.verdicts import (
    Ending,
    Outcome,
    Slo,
    Verdict,
    first_token_after_s,
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
    ("shed", ended(Ending.SHED), MISS),
    ("failed before the first byte", ended(Ending.FAILED), MISS),
    ("failed after good tokens", ended(Ending.FAILED, first=0.1, last=0.2, n=5), MISS),
    ("left before the limit, nothing seen", ended(Ending.CLIENT_GONE, at=0.19), None),
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


def test_tpot_is_the_mean_gap_after_the_first_token():
    assert tpot_s(ended(Ending.OK, first=1.0, last=2.0, n=5)) == pytest.approx(0.25)


def test_a_request_that_never_answered_has_no_ttft():
    assert ttft_s(ended(Ending.FAILED)) is None


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
