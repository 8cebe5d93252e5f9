"""The verdict on an SLO out of reach, in simulated fleets of both modes."""

from math import inf

import pytest

from argosy_bench.scaling import unreachable
from argosy_bench.scaling.unreachable import CASES, Case, Said, play, requests, verdict_s
from argosy_law.goals import SLO
from local.figures import Figures


def said(*reachable: bool) -> list[Said]:
    return [Said(15.0 * (i + 1), one, 9) for i, one in enumerate(reachable)]


def test_the_verdict_counts_from_when_it_stays() -> None:
    case = Case("x", SLO(1, 1), since_s=10.0)
    assert verdict_s(case, said(True, False, True, False, False)) == 50.0
    assert verdict_s(case, said(False, False)) == 5.0
    assert verdict_s(case, said(False, True)) == inf
    assert verdict_s(Case("x", SLO(1, 1), since_s=40.0), said(False)) == 0.0


def test_the_requests_of_a_case_change_at_its_half() -> None:
    trace = requests(CASES[3])
    first = [p for at, p in zip(trace.arrival, trace.prompt, strict=True) if at < 600]
    second = [p for at, p in zip(trace.arrival, trace.prompt, strict=True) if at >= 600]
    assert set(first) == {1000}
    assert sum(p == 12_000 for p in second) / len(second) == pytest.approx(0.5, abs=0.05)
    assert len(trace) == pytest.approx(7200, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("colocated", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_verdict_comes_within_five_minutes_and_only_if_it_is_true(
    case: Case, colocated: bool
) -> None:
    rounds = list(play(case, colocated=colocated, prior=False))
    if case.since_s is None:
        assert all(r.reachable for r in rounds)
    else:
        assert verdict_s(case, rounds) <= 300
        assert rounds[-1].open / case.rates[1] <= 60


def test_the_suite_has_these_figures() -> None:
    figures = Figures(unreachable.FIGURES, "x")
    assert set(figures.rows) == {
        "unreachable_verdict_s",
        "false_unreachable_verdicts",
        "unreachable_open_s",
    }
