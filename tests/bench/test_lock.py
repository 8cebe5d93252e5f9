"""The stand-in for a device, and what is measured of an engine that serves with it."""

import time

import pytest

pytest.importorskip("torch")
from argosy_bench.engine import lock
from argosy_bench.engine.stand_in import Device, StandIn
from argosy_bench.engine.steps import decodes_of
from argosy_engine.config import EngineConfig
from local.figures import Figures

pytestmark = pytest.mark.torch
DEVICE = Device(calls=3, step_ms=20.0, row_ms=5.0)


def test_a_device_is_read_as_it_was_written():
    assert Device.read(DEVICE.word()) == DEVICE


def test_a_step_begins_when_it_is_launched_and_the_one_before_has_ended():
    runner = StandIn(DEVICE, EngineConfig(model="sim:stand-in", served_name="m"))
    plan = decodes_of(4, 100)
    before = time.monotonic()
    first, second = runner.launch(plan), runner.launch(plan)
    assert first.begins >= before
    assert second.begins == first.ends
    second.result()
    assert time.monotonic() >= second.ends
    late = runner.launch(plan)
    assert late.begins > second.ends
    for step in (first, second, late):
        assert step.ends - step.begins == pytest.approx(0.040)


def test_streams_take_at_least_their_steps_and_cost_both_threads_time(monkeypatch):
    monkeypatch.setattr(lock, "DEVICES", {"graph": Device(calls=2, step_ms=10.0, row_ms=1.0)})
    figures = Figures((), "make bench-engine lock")
    lock.measure(figures, lock.Load(rows=(1, 8), window_s=0.5, rounds=1))
    assert len(figures.values) == 6
    for rows in (1, 8):
        assert figures.values[f"served_over_step_graph_{rows}"] > 0.9
        for thread in ("http", "engine"):
            assert figures.values[f"{thread}_cpu_us_per_token_graph_{rows}"] > 0
