"""`make bench-kv` with few and short prompts: the rate of a transfer is measured."""

import pytest

from argosy_bench.figures import Figures
from argosy_bench.suites import kv


@pytest.mark.slow
def test_pulls_and_copies_of_the_same_bytes_are_measured_in_turn(monkeypatch):
    monkeypatch.setattr(kv, "PULLS", 2)
    figures = Figures(kv.FIGURES, "make bench-kv")
    kv.measure_rate(figures)
    measured = {"kv_tcp_gb_per_s", "loopback_gb_per_s", "kv_tcp_over_loopback_rate"}
    assert set(figures.values) == measured
    assert all(value > 0 for value in figures.values.values())


def test_prompts_of_different_runs_share_no_block():
    first, second = kv.prompt_of(kv.SHORT, 0), kv.prompt_of(kv.SHORT, 1)
    assert len(first) == len(second) == kv.SHORT
    assert first[:32] != second[:32]
