"""`make bench-engine` and `make bench-kv` on the tiny model."""

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


def test_the_exposed_time_of_a_transfer_is_measured_beside_a_decode_step(tmp_path, monkeypatch):
    from argosy_bench.suites import kv

    monkeypatch.setattr(kv, "PULLS", 1)
    monkeypatch.setattr(kv, "SHORT", 256)
    figures = Figures(kv.FIGURES, "make bench-kv")
    kv.measure_exposure(figures, str(write_tiny(tmp_path / "tiny")))
    measured = {"kv_exposed_ms", "decode_step_ms", "kv_exposed_over_decode_step"}
    assert set(figures.values) == measured
    assert all(value > 0 for value in figures.values.values())


def test_the_floor_and_the_full_steps_are_measured(tmp_path: Path, monkeypatch):
    from argosy_bench.peer import compare, products
    from argosy_bench.peer.steps import steps_s

    monkeypatch.setattr(products, "_READ_BYTES", 1 << 20)
    model = write_tiny(tmp_path / "tiny")
    plain, native = compare._loaded(model, "torch"), compare._loaded(model, "native")
    floor = products.measure_floor(plain.trunk, native.trunk)
    native.close()
    assert min(floor.trunk_s.values()) > 0
    assert all({"torch_ms", "native_ms"} < set(row) for row in floor.products)
    assert floor.burst_s() > 0
    steps = steps_s(plain)
    assert min(steps.one, steps.full, steps.sampled) > 0
