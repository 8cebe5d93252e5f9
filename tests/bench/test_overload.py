"""`make bench-overload`: its load, its scores, and a short run against real processes."""

import pytest

from argosy_bench.figures import Figures
from argosy_bench.fleets import overload
from argosy_bench.fleets.overload import TPOT_S, TTFT_S, Seen, Span, arrivals, recovery_s


def good(due_s: float) -> Seen:
    return Seen(due_s, 0.0, 200, TTFT_S, TPOT_S)


def late(due_s: float) -> Seen:
    return Seen(due_s, 0.0, 200, TTFT_S + 0.001, TPOT_S)


def test_a_request_is_good_at_its_limits_and_not_beyond_them():
    assert good(0).good
    assert not late(0).good
    assert not Seen(0, 0.0, 200, TTFT_S, TPOT_S + 0.001).good
    assert not Seen(0, 0.0, 429).good


def test_arrivals_follow_the_rates_of_their_spans_and_are_the_same_again():
    spans = [Span(100, 5, 5), Span(100, 0, 10)]
    due = arrivals(spans, seed=3)
    assert due == sorted(due) == arrivals(spans, seed=3)
    assert len([at for at in due if at < 100]) == pytest.approx(500, rel=0.15)
    ramp = [at for at in due if at >= 100]
    assert len(ramp) == pytest.approx(500, rel=0.15)
    assert len([at for at in ramp if at < 150]) == pytest.approx(125, rel=0.3)


def test_recovery_is_the_begin_of_the_first_good_window():
    seen = [late(100 + i / 2) for i in range(8)] + [good(104 + i / 2) for i in range(72)]
    assert recovery_s(seen, 100, 140, least=1.0) == 4.0
    assert recovery_s(seen, 100, 140, least=0.75) == 2.0
    assert recovery_s([late(100 + i) for i in range(40)], 100, 140, least=0.9) == 40


@pytest.mark.slow
async def test_every_figure_of_the_overload_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(overload, "PROMPT_TOKENS", 400)
    monkeypatch.setattr(overload, "OUTPUT_TOKENS", 3)
    monkeypatch.setattr(overload, "FULL_RATE", 4.0)
    monkeypatch.setattr(overload, "BEFORE_S", 2.0)
    monkeypatch.setattr(overload, "AFTER_S", 2.0)
    figures = Figures(overload.FIGURES, "make bench-overload")
    await overload.measure_overload(figures, overload.QUEUES[-1], 1.0, tmp_path)
    assert {name for name in figures.rows if "normal" not in name} == set(figures.values)
    assert figures.values["overload_unanswered"] == 0
    assert figures.values["capacity_goodput"] > 0
