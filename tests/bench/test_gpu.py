"""`make bench-gpu` where there is no GPU: it says so, and its code runs on a CPU."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from argosy_bench.__main__ import main  # noqa: E402
from argosy_bench.gpu.scale import FULL, SMALL, Load, write_model  # noqa: E402
from argosy_bench.gpu.served import divide, rows_of  # noqa: E402
from argosy_bench.gpu.steps import Ceilings, roofline_s  # noqa: E402
from argosy_engine.model.spec import read_spec  # noqa: E402

VLLM = """#!{python}
import http.server, os, subprocess, sys, threading
from argosy_bench.ports import free_port
words = sys.argv[1:]
at = words.index("--port")
port, admin = words[at + 1], str(free_port())
model = words[words.index("serve") + 1]
own = "engine serve --served-name m --load-format dummy --dtype bfloat16 --host 127.0.0.1"
room = "--kv-cache-tokens 4096"
more = ["--model", model, "--port", words[at + 1], "--admin-port", admin]
os.execv(sys.executable, [sys.executable, "-m", "argosy", *own.split(), *room.split(), *more])
"""
"""Takes vLLM's words, and serves with our engine."""


def test_without_a_gpu_it_says_so_and_measures_nothing(tmp_path: Path, capsys):
    assert main(["gpu", "--json", str(tmp_path / "gpu.json")]) == 0
    assert capsys.readouterr().out == "bench-gpu measures nothing: torch sees no GPU here\n"
    assert not list(tmp_path.iterdir())


def test_the_roofline_of_a_decode_is_its_reading_and_of_a_prompt_its_products(tmp_path: Path):
    spec = read_spec(write_model(tmp_path, FULL))
    h200 = Ceilings(4.0e12, 8.05e14)
    # 7.5e9 weights of two bytes and 1,025 tokens of KV of 131,072 bytes at 4 TB/s.
    assert roofline_s(spec, [(1024, 1)], h200) * 1e3 == pytest.approx(3.79, abs=0.01)
    # 2,048 tokens of 7e9 multiplications and additions, and attention, at 805 TFLOP/s.
    assert roofline_s(spec, [(0, 2048)], h200) * 1e3 == pytest.approx(36.9, abs=0.1)


@given(
    requests=st.integers(1, 600),
    clients=st.integers(0, 300),
    per_s=st.floats(1, 100),
    processes=st.integers(1, 16),
)
def test_a_divided_load_has_the_same_requests_clients_and_rate(requests, clients, per_s, processes):
    clients = min(clients, requests)
    parts = divide(Load("x", requests, clients, 1, 1, (), per_s), processes)
    assert len(parts) <= processes
    assert sum(part.requests for part in parts) == requests
    assert sum(part.clients for part in parts) == clients
    assert sum(part.per_s for part in parts) == pytest.approx(per_s)
    assert all(part.requests and bool(part.clients) == bool(clients) for part in parts)


def test_a_row_has_both_servers_and_their_ratio():
    rows = rows_of({"argosy": {"c8_tokens_per_s": 300.0}, "vllm": {"c8_tokens_per_s": 400.0}})
    assert [(row.name, row.unit, value) for row, value in rows] == [
        ("c8_tokens_per_s", "tokens/s", 300),
        ("c8_tokens_per_s_vllm", "tokens/s", 400),
        ("c8_tokens_per_s_ratio_vs_vllm", "", 0.75),
    ]


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_small_run_puts_every_figure_of_its_loads_beside_vllm(tmp_path, monkeypatch):
    """Where vLLM stands another engine of ours, so the ratios are of equals."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "vllm"
    program.write_text(VLLM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    assert main(["gpu", "--small", "--json", "gpu.json"]) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    served = {f"{load.name}_{value}" for load in SMALL.loads for value in load.shows}
    beside = {f"{name}{suffix}" for name in served for suffix in ("_vllm", "_ratio_vs_vllm")}
    steps = {"decode_1_ms", "decode_8_over_roofline", "prompt_128_ms", "handover_100_ms"}
    loaded = {"handover_100_loaded_ms", "handover_100_loaded_steps"}
    rates = {"kv_gb_per_s", "kv_loaded_gb_per_s"}
    assert served | beside | steps | loaded | rates <= set(found["figures"])
    assert all(found["figures"][name] > 0 for name in served | {"decode_1_ms", "prompt_128_ms"})
    assert found["figures"]["handover_texts_equal"] == 1
    assert found["environment"]["device"] == "a CPU"
