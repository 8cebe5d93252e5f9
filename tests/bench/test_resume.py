"""`make bench-resume`: what it makes of the times of its streams, and a run against processes."""

import pytest

from argosy_bench.figures import Figures
from argosy_bench.fleets import resume
from argosy_bench.fleets.resume import FIGURES, VICTIM, Run, Stream, summarise


def stream(pod: str, at: list[float], text: str = "a", *, whole: bool = True) -> Stream:
    return Stream(pod, at, text, whole)


def test_a_gap_is_the_longest_pause_that_ends_after_the_kill():
    one = stream(VICTIM, [0.0, 5.0, 5.5, 7.0, 7.5])
    assert one.gap_s(5.2) == 1.5
    assert one.gap_s(5.0) == 1.5
    assert one.gap_s(4.9) == 5.0
    assert one.paces_s(5.5) == [5.0, 0.5]


def test_figures_are_medians_of_runs_and_count_every_stream():
    other = stream("decode-2", [0.0, 0.02, 0.04, 0.06])
    cut = [stream(VICTIM, [0.0, 0.02, 0.04, 0.04 + gap]) for gap in (0.1, 0.3, 0.5)]
    runs = [Run([one, other], killed_at=0.045) for one in cut]
    runs.append(Run([stream(VICTIM, [0.0, 0.02, 0.9], "b", whole=False), other], 0.03))
    figures = Figures(FIGURES, "test")
    summarise(figures, Run([stream("decode-2", []), other], 0.0), runs)
    assert figures.values["resume_gap_ms_p50"] == pytest.approx(400)
    assert figures.values["inter_token_ms_p50"] == pytest.approx(20)
    assert figures.values["streams_resumed"] == 4
    assert figures.values["streams_broken"] == 1
    assert figures.values["text_mismatches"] == 1
    assert figures.failed() == ["streams_broken", "text_mismatches"]


@pytest.mark.slow
async def test_a_short_run_breaks_no_stream(monkeypatch):
    monkeypatch.setattr(resume, "STREAMS", 6)
    figures = Figures(FIGURES, "test")
    await resume.measure(figures, 1)
    assert figures.values["streams_broken"] == figures.values["text_mismatches"] == 0
    assert figures.values["streams_resumed"] > 0
    assert figures.values["resume_gap_ms_p50"] > figures.values["inter_token_ms_p50"]
