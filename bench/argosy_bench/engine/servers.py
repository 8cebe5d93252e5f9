"""The servers that are compared, each a process on loopback with an OpenAI API.

All get the same model, type, batch limit and KV pool; one of ours has its weights in int8.
`ours` and `vllm` yield a `Server`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from argosy_bench.engine.loads import SEQUENCES
from argosy_bench.ports import free_port, free_ports
from argosy_bench.processes import MODEL

OURS, INT8, VLLM = "argosy", "argosy-int8", "vllm"
KV_TOKENS = 93_184
"""Tokens that vLLM's pool of 2 GiB holds for SmolLM2-135M in bfloat16; ours is given as many."""
_CAPS = ("", "AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
"""`ONEDNN_MAX_CPU_ISA` of the peer, tried in this order until it lives. Some virtual machines
announce AMX and end a process at its first use."""
_START_S = 300.0


class ServerDied(RuntimeError):  # noqa: N818 - an event, as its reader sees it
    """The process ended before it answered."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    name: str
    url: str
    start_s: float
    """From its start until it was ready, in seconds."""
    isa: str
    """What its instruction set was chosen or capped to; empty if it chose and does not tell."""


@contextlib.contextmanager
def ours(model: Path, name: str = OURS) -> Iterator[Server]:
    """Our engine; `name` INT8: with quantized weights. ServerDied if it does not get ready."""
    port, admin = free_ports(2)
    words = (
        f"-m argosy engine serve --model {model} --served-name {MODEL} --dtype bfloat16 "
        f"--max-num-seqs {SEQUENCES} --kv-cache-tokens {KV_TOKENS} --host 127.0.0.1 "
        f"--port {port} --admin-port {admin}{' --quantization int8' if name == INT8 else ''}"
    )
    command = [sys.executable, *words.split()]
    with running(command, {}, f"http://127.0.0.1:{admin}/ready") as start_s:
        isa = _isa(f"http://127.0.0.1:{admin}/metrics")
        yield Server(name, f"http://127.0.0.1:{port}", start_s, isa)


@contextlib.contextmanager
def vllm(program: Path, model: Path) -> Iterator[Server]:
    """vLLM from `program`, with less of the CPU where it dies otherwise. ServerDied."""
    with contextlib.ExitStack() as stack:
        for cap in _CAPS:
            try:
                server = stack.enter_context(_vllm(program, model, cap))
            except ServerDied:
                if cap == _CAPS[-1]:
                    raise
                continue
            yield server
            return


@contextlib.contextmanager
def _vllm(program: Path, model: Path, cap: str) -> Iterator[Server]:
    port = free_port()
    words = (
        f"serve {model} --served-model-name {MODEL} --dtype bfloat16 "
        f"--max-num-seqs {SEQUENCES} --host 127.0.0.1 --port {port}"
    )
    environment = _peer_environment(program) | ({"ONEDNN_MAX_CPU_ISA": cap} if cap else {})
    url = f"http://127.0.0.1:{port}"
    with running([str(program), *words.split()], environment, f"{url}/health") as start_s:
        isa = f"capped at {cap}, it dies otherwise" if cap else ""
        yield Server(VLLM, url, start_s, isa)


def _peer_environment(program: Path) -> dict[str, str]:
    """What vLLM's guide for CPUs asks for.

    Left to itself it would compute on one core of two, and with slower threads.
    """
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return {
        "PATH": f"{program.parent}:{os.environ['PATH']}",  # ninja, for its compiled graphs
        "PYTHONPATH": "",
        "LD_PRELOAD": ":".join([*_tcmalloc(), str(program.parent.parent / "lib" / "libiomp5.so")]),
        "VLLM_TARGET_DEVICE": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _tcmalloc() -> list[str]:
    found = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    return [str(found[0])] if found else []


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str], ready: str) -> Iterator[float]:
    """Run a process and its children; the value is the seconds until `ready` answered 200."""
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            while not _answers(ready):
                if process.poll() is not None or time.perf_counter() - began > _START_S:
                    log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
                    raise ServerDied(f"{command[0]}: {log.read().decode(errors='replace')}")
                time.sleep(0.02)
            yield time.perf_counter() - began
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, then what is left of its session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - our own address
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _isa(metrics: str) -> str:
    """`cpu_isa` of `argosy_engine_info`."""
    with urllib.request.urlopen(metrics, timeout=5) as response:  # noqa: S310 - our own address
        text: str = response.read().decode()
    line = next(line for line in text.splitlines() if line.startswith("argosy_engine_info{"))
    isa: str = line.partition('cpu_isa="')[2].partition('"')[0]
    return isa
