"""`make bench-gateway` with few and short streams: every figure is measured."""

import pytest

from argosy_bench.figures import Figures
from argosy_bench.suites import gateway


@pytest.mark.slow
async def test_every_figure_of_the_table_is_measured(monkeypatch):
    monkeypatch.setattr(gateway, "STREAMS", 2)
    monkeypatch.setattr(gateway, "TOKENS", 5)
    figures = Figures(gateway.FIGURES, "make bench-gateway")
    await gateway.measure(figures)
    assert set(figures.values) == set(figures.rows)
    assert figures.values["cpu_us_per_token"] >= 0
    assert figures.values["http1_cpu_us_per_chunk"] > 0
