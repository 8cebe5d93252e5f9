"""`make bench-autoscaling`, shortened: every figure is measured."""

from argosy_bench.figures import Figures
from argosy_bench.suites import autoscaling


def test_every_figure_is_measured() -> None:
    figures = Figures(autoscaling.FIGURES, "a command")
    autoscaling.measure(figures, count=500, runs=3)
    assert figures.values.keys() == figures.rows.keys()
    assert all(value > 0 for value in figures.values.values())
