"""`make bench-engine` and the handover of `make bench-gateway` on the tiny model."""

from pathlib import Path

import pytest

from local.figures import Figures
from local.weights.tiny import write_tiny

pytestmark = pytest.mark.torch


def test_every_figure_of_the_steps_is_measured(tmp_path: Path):
    from argosy_bench.engine import steps

    figures = Figures((), "make bench-engine")
    steps.measure(figures, str(write_tiny(tmp_path / "tiny")), "float32")
    assert set(figures.values) == set(figures.rows)
    assert all(value > 0 for name, value in figures.values.items() if name.endswith("_per_s"))


def test_the_exposed_time_of_a_transfer_is_measured_beside_a_decode_step(tmp_path, monkeypatch):
    from argosy_bench.gateway import kv

    monkeypatch.setattr(kv, "PULLS", 1)
    monkeypatch.setattr(kv, "SHORT", 256)
    figures = Figures(kv.EXPOSED, "make bench-gateway")
    kv.measure_exposure(figures, str(write_tiny(tmp_path / "tiny")))
    assert set(figures.values) == set(figures.rows)
    assert all(value > 0 for value in figures.values.values())


def test_the_floor_and_the_full_steps_are_measured(tmp_path: Path, monkeypatch):
    from argosy_bench.engine import floor, served
    from argosy_bench.engine.steps import load_runner

    monkeypatch.setattr(floor, "_READ_BYTES", 1 << 20)
    model = str(write_tiny(tmp_path / "tiny"))
    plain, native = (load_runner(model, "bfloat16", way)[0] for way in ("torch", "native"))
    found = floor.measure_floor(plain.trunk, native.trunk)
    native.close()
    assert min(found.trunk_s.values()) > 0
    assert all({"torch_ms", "native_ms"} < set(row) for row in found.products)
    assert found.burst_s() > 0
    steps = served._steps_s(plain)
    assert set(steps) == {"bench_one", "bench_full", "bench_sampled"}
    assert min(steps.values()) > 0
