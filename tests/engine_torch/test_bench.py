"""`make bench-engine` on the tiny model."""

from pathlib import Path

import pytest

from argosy_bench.figures import Figures
from local.weights.tiny import write_tiny

pytestmark = pytest.mark.torch


def test_every_figure_of_the_table_is_measured(tmp_path: Path):
    from argosy_bench.suites import engine

    figures = Figures(engine.FIGURES, "make bench-engine")
    engine.measure(figures, str(write_tiny(tmp_path / "tiny")), "float32")
    assert set(figures.values) == set(figures.rows)
    assert all(value > 0 for name, value in figures.values.items() if name.endswith("_per_s"))
