"""`make bench-goodput`: the search for a goodput, and what the workloads are made of."""

from math import inf
from statistics import fmean

import pytest

from argosy_bench.goodput import parts as goodput
from argosy_bench.goodput.parts import WORKLOADS, Bench, Fleet
from local.figures import Figures


@pytest.mark.parametrize("true", [0.05, 1.6, 37.0])
def test_t49_the_highest_rate_is_found_within_two_per_cent(true: float) -> None:
    found = goodput.most(lambda rate: rate <= true, 0.05)
    assert true / 1.02 <= found <= true


def test_without_any_rate_that_is_met_the_goodput_is_none() -> None:
    assert goodput.most(lambda _: False, 0.05) == 0.0


@pytest.mark.parametrize("name", WORKLOADS)
def test_requests_have_the_means_of_the_workload_and_fit_its_model(name: str) -> None:
    of = WORKLOADS[name]
    trace = of.requests(2.0, 4000, 0)
    assert fmean(trace.prompt) == pytest.approx(of.prompt, rel=0.05)
    assert fmean(trace.output) == pytest.approx(of.output, rel=0.05)
    assert max(map(sum, zip(trace.prompt, trace.output, strict=True))) <= goodput.LONGEST
    assert trace.end == pytest.approx(2000, rel=0.1)
    assert of.requests(inf, 3, 0).arrival == [0.0, 0.0, 0.0]


def test_goodput_is_per_gpu_and_below_the_throughput() -> None:
    bench, code = Bench(400, 0), WORKLOADS["code"]
    one = Fleet(goodput.TOGETHER)
    assert 0 < bench.goodput(code, one) < 1.1 * bench.throughput(code, one)
    assert Fleet({"prefill": 2, "decode": 1}).gpus == 3


def test_every_figure_is_put() -> None:
    figures = Figures(goodput.FIGURES, "a command")
    bench = Bench(300, 0)
    lines = [goodput.compare(figures, name, bench) for name in WORKLOADS]
    goodput.crossover(figures, bench)
    assert figures.values.keys() == figures.rows.keys()
    assert "2.0 to 3.41" in lines[0]
