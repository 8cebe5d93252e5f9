"""The shaped loads of `make bench-scaling`, and what is counted of them."""

from collections.abc import Callable
from dataclasses import replace
from math import nan
from typing import Any

import pytest

from argosy_bench.scaling import shapes
from argosy_law.sim import rates
from argosy_law.sim.laws import LAWS
from argosy_law.sim.replay import Run
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import Replica, Setup
from local.figures import Figures


def met(*times: tuple[float, bool]) -> Run:
    """A run of requests of one token, each of which comes at a time and meets its limit or not."""
    setup = Setup(Replica.preset(shapes.PROFILE), 1.0, 0.06)
    trace = Trace([at for at, _ in times], [100] * len(times), [1] * len(times))
    world = World(setup, trace)
    world.first = [at + (0.5 if ok else 2.0) for at, ok in times]
    world.last = list(world.first)
    return Run(world)


def test_a_load_is_back_when_four_quarters_of_a_minute_in_a_row_meet_the_goal() -> None:
    every = [(100.0 + 15 * i, ok) for i, ok in enumerate([False, True, True, False, *[True] * 4])]
    assert shapes.back_after(met(*every), 100.0, 220.0) == 60.0
    assert shapes.back_after(met(*every[:-1]), 100.0, 205.0) == 105.0, "it is not back: all of it"


def test_a_ramp_grows_by_a_fifth_each_minute_and_stays_at_its_top() -> None:
    points = dict(shapes.RAMP.rates)
    assert (points[0.0], points[900.0]) == (10.0, 10.0)
    assert points[960.0] == pytest.approx(12.0)
    assert list(points.values())[-2:] == [43.0, 43.0]
    assert max(points) == pytest.approx(900 + 480 + 600, abs=2)


def test_the_hour_without_metrics_is_the_one_in_which_the_rate_rises_most() -> None:
    begin, end = shapes.OUTAGE_S
    rate = dict(shapes.MORNING.rates)
    risen = {at: rate[at + end - begin] / rate[at] for at in rate if at + end - begin in rate}
    assert max(risen, key=risen.__getitem__) == begin
    assert shapes.MORNING.rates[0][1] == 3.0
    assert shapes.MORNING.rates[-1][1] == pytest.approx(18.0)


def fake(values: list[Any]) -> Callable[..., Any]:
    return lambda law, seed: values[seed]


def test_figures_are_the_medians_and_the_worst_of_the_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ramp_lost_minutes", "step_back_s", "burst_back_s", "outage_lost_points"):
        monkeypatch.setattr(shapes, name, fake([3.0, 1.0, 2.0]))
    monkeypatch.setattr(shapes, "llmd_ramp", fake([(0.99, 5.5), (0.97, 5.8), (1.0, 5.7)]))
    monkeypatch.setattr(shapes, "moving", fake([(0.91, 50.0), (0.92, 52.0), (0.89, 51.0)]))
    monkeypatch.setattr(shapes, "steady", fake([(4.0, 1.1), (1.0, 1.0), (2.0, 1.2)]))
    figures = Figures(shapes.FIGURES, "a command")
    lines = list(shapes.measure(figures, LAWS["goodput"], 3))
    assert figures.values.keys() == figures.rows.keys()
    assert (figures.values["step_back_s"], figures.values["step_back_s_worst"]) == (2.0, 3.0)
    assert figures.values["llmd_ramp_attainment"] == 0.99
    assert figures.values["llmd_ramp_attainment_worst"] == 0.97
    assert figures.values["llmd_ramp_replicas_worst"] == 5.8
    assert lines[0] == "ramp_lost_minutes by seed: 3, 1, 2"


def test_requests_of_the_moving_load_become_longer_and_fewer() -> None:
    trace = shapes.MOVING.requests(0)
    halves: tuple[list[tuple[int, int]], ...] = ([], [])
    for at, prompt, output in zip(trace.arrival, trace.prompt, trace.output, strict=True):
        if not 600 <= at < 1500:
            halves[at >= 1500].append((prompt, output))
    early, late = ([sum(of) / len(of) for of in zip(*half, strict=True)] for half in halves)
    assert early == pytest.approx([531, 51], rel=0.02)
    assert late == pytest.approx([4.8 * 531, 3.4 * 51], rel=0.1)
    assert len(halves[0]) / 600 > 1.4 * len(halves[1]) / 1200


def test_the_steady_load_wavers_around_its_rate() -> None:
    rates_ = [rate for _, rate in shapes.STEADY.rates]
    assert len(rates_) == 3 * 60 + 1
    assert sum(rates_) / len(rates_) == pytest.approx(10.0, rel=0.1)


def test_an_outage_takes_the_metrics_from_the_law() -> None:
    load = replace(shapes.STEP, rates=[(0.0, 2.0), (300.0, 2.0)])
    assert rates.drawn(load.rates, load.lengths, 1.0, 0).end > 200
    whole, out = load.play(LAWS["hpa"], 0), load.play(LAWS["hpa"], 0, (60.0, 180.0))
    assert len(whole.decisions) - len(out.decisions) == 8
    assert nan not in whole.world.last
