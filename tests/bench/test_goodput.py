"""`make bench-goodput`: the search for a goodput, and what the workloads are made of."""

import pytest

from argosy_bench.goodput import parts as goodput
from argosy_bench.goodput.parts import Bench
from local.figures import Figures


@pytest.mark.parametrize("true", [0.05, 1.6, 37.0])
def test_t49_the_highest_rate_is_found_within_two_per_cent(true: float) -> None:
    found = goodput.most(lambda rate: rate <= true, 0.05)
    assert true / 1.02 <= found <= true


def test_every_figure_is_put_with_its_range_over_the_seeds() -> None:
    figures = Figures(goodput.FIGURES, "a command")
    lines = list(goodput.measure(figures, [Bench(300, 0), Bench(300, 1)]))
    assert figures.values.keys() == figures.rows.keys() == figures.ranges.keys()
    for name, (least, most) in figures.ranges.items():
        assert least <= figures.values[name] <= most
    least, most = figures.ranges["chatbot_prompt_mean"]
    assert least < most
    assert "2.0 to 3.41" in lines[0]
