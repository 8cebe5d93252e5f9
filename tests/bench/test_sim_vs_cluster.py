"""The comparison of the simulator with a cluster: what both are given, and how figures are made."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from argosy_bench.scaling.cluster import compare, load
from argosy_bench.scaling.cluster.client import dues
from argosy_bench.scaling.cluster.compare import Asked, Recorded
from argosy_bench.scaling.cluster.fleet import Reading, gpu_seconds, phase_s
from argosy_law.sim.traces import Trace
from local.demo.traffic.score import Limits, Seen
from local.figures import Figures


def reading(at_s: float, prefill: int, decode: int = 1, wanted: int = 1) -> Reading:
    present = {"prefill": prefill, "decode": decode}
    return Reading(at_s, present, present, {"prefill": wanted, "decode": decode}, "")


def seen(due_s: float, ttft_s: float = 0.5, outcome: str = "ok", tpot_s: float = 0.03) -> Seen:
    return Seen(due_s, 0, outcome, ttft_s, tpot_s, 10, due_s + 1)


def test_a_stretch_begins_at_0_and_leaves_out_what_engines_do_not_take() -> None:
    trace = Trace([1.0, 5.0, 7.0, 9.0], [10, 20, 30, 40], [1, 2, 3, 4])
    assert load.stretch(trace, 5.0, 4.0) == Trace([0.0, 2.0], [20, 30], [2, 3])
    assert load.later(trace, 2.0).arrival == [3.0, 7.0, 9.0, 11.0]
    assert load.fits(Trace([0.0], [7_999], [1]), 0)
    assert not load.fits(Trace([0.0], [8_000], [1]), 0)


def test_a_growing_load_has_few_requests_at_first_and_all_later() -> None:
    trace = Trace([n / 10 for n in range(4000)], [1] * 4000, [1] * 4000)
    grown = load.growing(trace, 200.0, seed=1)
    assert sum(at < 20 for at in grown.arrival) < 30
    assert sum(180 <= at < 200 for at in grown.arrival) > 170
    assert [at for at in grown.arrival if at >= 200] == trace.arrival[2000:]
    assert grown == load.growing(trace, 200.0, seed=1)


def test_made_requests_swing_once_and_are_the_same_for_a_seed() -> None:
    trace = load.made(900.0, seed=2)
    counts = [sum(b <= at < b + 300 for at in trace.arrival) for b in (0, 300, 600)]
    assert counts[1] > 1.5 * counts[0]
    assert counts[1] > 1.5 * counts[2]
    assert all(load.fits(trace, index) for index in range(len(trace)))
    assert trace == load.made(900.0, seed=2) != load.made(900.0, seed=3)


def test_the_client_sends_what_the_file_has(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    trace = load.made(60.0, seed=1)
    file.write_text("\n".join(load.lines(trace)))
    sent = dues(file)
    assert [due.at_s for due in sent] == pytest.approx(trace.arrival, abs=0.001)
    assert [(d.prompt_tokens, d.output_tokens) for d in sent] == list(
        zip(trace.prompt, trace.output, strict=True)
    )


def test_gpus_count_from_reading_to_reading_within_the_bounds() -> None:
    readings = [reading(0.0, 1), reading(10.0, 2), reading(20.0, 1), reading(30.0, 1)]
    assert gpu_seconds(readings, 0.0, 30.0) == 4 * (2 * 10 + 3 * 10 + 2 * 10)
    assert gpu_seconds(readings, 15.0, 25.0) == 4 * (3 * 5 + 2 * 5)


def test_decisions_of_the_simulator_fall_on_those_of_the_operator() -> None:
    readings = [reading(280.0, 1), reading(294.0, 2, wanted=2), reading(309.0, 3, wanted=3)]
    assert phase_s(readings) == 6.0
    assert phase_s(readings[:1]) == 0.0


def compared(tmp_path: Path, cluster: Sequence[Seen]) -> Figures:
    """Requests of 100 tokens in and 10 out, 1 a second; the cluster had one pod of each role."""
    file = tmp_path / "simulated.csv"
    trace = Trace([30.0 + n for n in range(120)], [100] * 120, [10] * 120)
    file.write_text("\n".join(load.lines(trace)))
    figures = Figures(compare.FIGURES, "test")
    readings = [reading(float(n), 1) for n in range(120)]
    asked = Asked(file, 30.0, Limits(1.0, 0.06), 60.0, 119.0)
    compare.put(figures, asked, Recorded(cluster, readings, 5.0), seeds=2)
    return figures


def test_equal_worlds_are_0_points_apart_and_the_ratio_is_1(tmp_path: Path) -> None:
    figures = compared(tmp_path, [seen(float(n)) for n in range(120)])
    assert figures.values["requests"] == 60
    assert figures.values["cluster_attainment"] == figures.values["simulated_attainment"] == 1.0
    assert figures.values["sim_vs_cluster_attainment_points"] == 0.0
    assert figures.values["sim_vs_cluster_gpu_seconds_ratio"] == pytest.approx(1.0)
    assert figures.values["cluster_gpu_seconds"] == 4 * 2 * 59
    assert figures.values["simulated_ttft_p50_s"] == pytest.approx(0.0146, abs=0.001)
    assert figures.missed() == []
    assert [row["from_s"] for row in figures.lists["minutes"]] == [0, 60]
    json.dumps(figures.lists)


def test_misses_refusals_and_losses_of_the_cluster_are_told_apart(tmp_path: Path) -> None:
    rows = [seen(float(n)) for n in range(120)]
    rows[60] = seen(60.0, ttft_s=1.5)
    rows[61] = seen(61.0, outcome="shed")
    rows[62] = seen(62.0, outcome="lost")
    figures = compared(tmp_path, rows)
    assert figures.values["cluster_attainment"] == 57 / 60
    assert figures.values["sim_vs_cluster_attainment_points"] == pytest.approx(5.0)
    assert figures.values["requests_refused"] == 1
    assert figures.values["requests_lost"] == 1
    assert set(figures.missed()) == {"sim_vs_cluster_attainment_points", "requests_lost"}
