"""`make bench-isolation`: its load, its scores, and a short run against real processes."""

import pytest

from argosy_bench.figures import Figures
from argosy_bench.fleets import isolation
from argosy_bench.fleets.isolation import (
    BURST,
    LONG_TOKENS,
    OUTPUT_TOKENS,
    SHORT_TOKENS,
    Due,
    Seen,
    load,
    p90,
    summarise,
)


def seen(tpot_ms: float, *, tokens: int = SHORT_TOKENS, whole: bool = True) -> Seen:
    return Seen(Due(0.0, tokens, OUTPUT_TOKENS), 0.0, 0.2, tpot_ms / 1000, whole)


def test_the_load_has_short_prompts_all_the_time_and_long_ones_in_bursts():
    due = load()
    assert due == sorted(due, key=lambda one: one.at_s)
    bursts: dict[float, int] = {}
    for one in due:
        if one.prompt_tokens == LONG_TOKENS:
            bursts[one.at_s] = bursts.get(one.at_s, 0) + 1
    assert bursts == {2.0 * n + 1.0: BURST for n in range(12)}
    assert len(due) == 120 + 12 * BURST


def test_the_ninetieth_percentile_is_a_value_that_nine_of_ten_do_not_exceed():
    assert p90([3.0]) == 3.0
    assert p90([float(n) for n in range(10, 0, -1)]) == 9.0
    assert p90([float(n) for n in range(1, 12)]) == 10.0


def test_the_ratio_is_of_the_short_streams_medians_over_runs():
    figures = Figures(isolation.FIGURES, "make bench-isolation")
    long = seen(900, tokens=LONG_TOKENS, whole=False)
    summarise(
        figures,
        colocated=[[seen(40), long], [seen(50), long], [seen(90), long]],
        apart=[[seen(20), long], [seen(25), long], [seen(99), long]],
    )
    assert figures.values["tpot_p90_isolation_ratio"] == pytest.approx(0.5)
    assert figures.values["tpot_p90_ms_colocated"] == pytest.approx(50)
    assert figures.values["ttft_p90_ms_apart"] == pytest.approx(200)
    assert figures.values["streams_broken"] == 6


@pytest.mark.slow
async def test_every_figure_of_the_isolation_is_measured(monkeypatch):
    monkeypatch.setattr(isolation, "LOAD_S", 2.0)
    figures = Figures(isolation.FIGURES, "make bench-isolation")
    await isolation.measure(figures, 1)
    assert set(figures.values) == set(figures.rows)
    assert figures.values["streams_broken"] == 0
    assert figures.values["tpot_p90_ms_apart"] > 0
