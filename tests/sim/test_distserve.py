"""The simulator gives DistServe's first figure, which `make bench-goodput` shows.

Two factors are fitted, to what prefill alone and decode alone do; the rest follows.
"""

import pytest

from argosy_bench.goodput import distserve
from argosy_law.sim.replay import Replicas
from docs.sources_page import GOODPUT, RUNS, read_runs
from local.figures import Figures


@pytest.mark.parametrize(
    ("per_gpu", "gpus", "replicas", "output", "within"),
    [
        (5.6, 1, {"prefill": 1, "decode": 1}, 1, 0.05),
        (10.0, 1, {"prefill": 12, "decode": 1}, 64, 0.05),
        (3.3, 3, distserve.APART, 64, 0.06),
        (1.6, 1, distserve.TOGETHER, 64, 0.05),
    ],
    ids=["prefill alone", "decode alone", "two prefill and one decode", "together"],
)
def test_goodput_per_gpu_is_that_of_the_paper(
    per_gpu: float, gpus: int, replicas: Replicas, output: int, within: float
) -> None:
    assert distserve.met(per_gpu * gpus * (1 - within), replicas, output)
    assert not distserve.met(per_gpu * gpus * (1 + within), replicas, output)


def test_apart_a_gpu_does_2_1_times_as_much_and_the_page_has_these_figures() -> None:
    figures = Figures(distserve.FIGURES, "a command")
    distserve.measure(figures)
    assert figures.values.keys() == figures.rows.keys()
    assert figures.missed() == []
    assert figures.values["distserve_apart_over_together"] == pytest.approx(2.1, rel=0.05)
    committed = read_runs(RUNS.read_text())[GOODPUT]
    for name in distserve.PAPER:
        assert figures.rounded(name) == committed[name].value, "run make bench-goodput again"


def test_a_goodput_outside_of_the_range_that_is_searched_is_an_error() -> None:
    with pytest.raises(ValueError, match="not between 1 and 2 requests"):
        distserve.most(lambda _: True, 1.0, 2.0)
    with pytest.raises(ValueError, match="not between 1 and 2 requests"):
        distserve.most(lambda _: False, 1.0, 2.0)


def test_the_highest_rate_is_found_within_half_a_per_cent() -> None:
    assert 1.7 / 1.005 <= distserve.most(lambda rate: rate <= 1.7, 1.0, 2.0) <= 1.7
