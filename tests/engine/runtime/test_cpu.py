"""What the engine finds out about a CPU before its first product, without torch."""

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from argosy_engine.config import EngineConfig
from argosy_engine.errors import LoadError
from argosy_engine.runtime import cpu
from argosy_engine.runtime.cpu import Attempt, Cpu
from argosy_engine.runtime.loop import Worker
from tests.engine.processes import eventually

LYING = (sys.executable, "-P", str(Path(__file__).parent / "lying_cpu.py"))
AMX = {"avx512f", "avx512_bf16", "amx_tile", "amx_bf16"}
CONFIG = EngineConfig(
    model="nowhere", served_name="m", compute="torch", dtype="bfloat16", threads=1
)
BOTH = ["float32", "bfloat16"]


@pytest.fixture
def fresh(monkeypatch):
    """A process that has settled nothing, on a CPU that announces AMX."""
    monkeypatch.setattr(cpu._Process, "child", None)
    monkeypatch.setattr(cpu._Process, "settled", None)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    monkeypatch.setattr(cpu, "cpu_flags", lambda: AMX)
    monkeypatch.setattr(cpu, "PROGRAM", LYING)
    yield monkeypatch
    cpu.abandon()


def cap():
    return cpu.os.environ.get("ONEDNN_MAX_CPU_ISA")


def settled(monkeypatch, deadly, config=CONFIG):
    monkeypatch.setenv("DEADLY", deadly)
    cpu.begin(config)
    return cpu.settle()


def test_a_cpu_that_dies_of_amx_is_capped_below_it_and_the_log_says_so_once(fresh, caplog):
    caplog.set_level(logging.INFO)
    found = settled(fresh, "DEFAULT:bfloat16")
    assert found == Cpu("AVX512_CORE_FP16", bfloat16_works=True, bfloat16_faster=True)
    assert cap() == "AVX512_CORE_FP16"
    assert cpu.settle() is found
    (line,) = [x.getMessage() for x in caplog.records]
    assert "DEFAULT (SIGILL)" in line
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in line


def test_float32_is_left_where_bfloat16_dies_at_every_instruction_set(fresh):
    deadly = ",".join(f"{isa}:bfloat16" for isa in cpu.levels(None))
    assert settled(fresh, deadly) == Cpu("DEFAULT", bfloat16_works=False, bfloat16_faster=False)


def test_a_cpu_without_a_single_working_product_is_a_load_failure_that_says_so(fresh):
    with pytest.raises(LoadError) as failure:
        settled(fresh, ",".join(f"{isa}:float32" for isa in cpu.levels(None)))
    assert failure.value.reason == "BadArgument"
    assert "AVX2: SIGILL" in failure.value.message


@pytest.mark.parametrize("given", ["AVX512_CORE", "AVX2", "AVX512_CORE_VNNI"])
def test_a_cap_that_leaves_amx_out_needs_no_child(fresh, given):
    fresh.setenv("ONEDNN_MAX_CPU_ISA", given)
    cpu.begin(CONFIG)
    assert cpu._Process.child is None
    assert cpu.settle() == Cpu(given)
    assert cap() == given


@pytest.mark.parametrize("flags", [set(), {"avx2"}, {"avx512f", "avx512_bf16"}])
def test_a_cpu_that_announces_no_amx_needs_no_child_for_a_named_type(fresh, flags):
    fresh.setattr(cpu, "cpu_flags", lambda: flags)
    cpu.begin(CONFIG)
    assert cpu._Process.child is None
    assert cpu.settle() == Cpu("DEFAULT")


@pytest.mark.parametrize("compute", ["auto", "native"])
@pytest.mark.parametrize(
    ("works", "architecture", "child"),
    [
        ("avx2", "LlamaForCausalLM", False),
        ("avx2", "GPTNeoXForCausalLM", True),
        (None, "LlamaForCausalLM", True),
    ],
)
def test_torchs_products_are_tried_only_if_torch_multiplies(
    fresh, compute, works, architecture, child, tmp_path
):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    fresh.setattr(cpu, "choose", lambda: works)
    fresh.setattr(cpu, "PROGRAM", (sys.executable, "-c", "import time; time.sleep(1000)"))
    cpu.begin(replace(CONFIG, model=str(tmp_path), compute=compute))
    assert (cpu._Process.child is not None) == child


def test_a_child_that_says_nothing_leaves_amx_out(fresh, caplog):
    fresh.setattr(cpu, "PROGRAM", (sys.executable, "-c", "raise SystemExit(3)"))
    assert settled(fresh, "") == Cpu("AVX512_CORE_FP16")
    assert "ended with 3" in caplog.text


@pytest.mark.parametrize("end", [cpu.settle, cpu.abandon])
def test_a_fork_of_the_child_that_hangs_ends_with_it(fresh, tmp_path, end):
    """It holds the child's output open: who reads on until its end would wait as long."""
    file = tmp_path / "pid"
    hang = f"import os, time; os.fork() or open({str(file)!r}, 'w').write(f'{{os.getpid()}}.')"
    fresh.setattr(cpu, "PROGRAM", (sys.executable, "-c", f"{hang}; time.sleep(60)"))
    fresh.setattr(cpu, "_TIMEOUT_S", 0.0)
    cpu.begin(CONFIG)
    eventually(lambda: file.exists() and file.read_text().endswith("."))
    ended = Worker("test").call(end)
    ended.result(timeout=30)
    fork = Path("/proc") / file.read_text().rstrip(".") / "cmdline"
    eventually(lambda: not fork.exists() or not fork.read_text())


@pytest.mark.parametrize(
    ("speedup", "faster"), [(0.4, False), (1.06, False), (1.3, True), (8.0, True)]
)
def test_bfloat16_is_the_faster_type_only_by_a_clear_margin(speedup, faster):
    found = cpu.judge([Attempt("DEFAULT", BOTH, speedup, "")])
    assert found == Cpu("DEFAULT", bfloat16_works=True, bfloat16_faster=faster)
