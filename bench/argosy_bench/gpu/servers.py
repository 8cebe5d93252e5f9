"""The engine and vLLM as processes that serve a model without weights, as users start them."""

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from argosy_bench.engine.servers import OURS, VLLM, running
from argosy_bench.ports import free_port, free_ports
from argosy_bench.processes import MODEL


@dataclass(frozen=True, slots=True)
class Server:
    """A ready server."""

    name: str
    url: str
    start_s: float
    """From its start until it was ready, in seconds."""
    kv_port: int = 0
    admin_port: int = 0
    """Of ours alone, as `kv_port` is."""


@contextlib.contextmanager
def ours(model: Path, *options: str) -> Iterator[Server]:
    """Our engine in bfloat16; ServerDied if it does not get ready."""
    port, admin, kv = free_ports(3)
    words = (
        f"-m argosy engine serve --model {model} --served-name {MODEL} --load-format dummy "
        f"--dtype bfloat16 --host 127.0.0.1 --port {port} --admin-port {admin} --kv-port {kv}"
    )
    command = [sys.executable, *words.split(), *options]
    with running(command, {}, f"http://127.0.0.1:{admin}/ready") as start_s:
        yield Server(OURS, f"http://127.0.0.1:{port}", start_s, kv, admin)


def read_samples(server: Server) -> dict[str, float]:
    """Return the metrics of our engine: by name the sum of its samples."""
    page = httpx.get(f"http://127.0.0.1:{server.admin_port}/metrics", trust_env=False)
    found = defaultdict[str, float](float)
    for family in text_string_to_metric_families(page.raise_for_status().text):
        for sample in family.samples:
            found[sample.name] += sample.value
    return dict(found)


@contextlib.contextmanager
def vllm(program: Path, model: Path) -> Iterator[Server]:
    """vLLM with as many places, and without its prefix cache, which no prompt would meet."""
    port = free_port()
    words = (
        f"serve {model} --served-model-name {MODEL} --load-format dummy --dtype bfloat16 "
        f"--max-num-seqs 256 --max-model-len 8192 --no-enable-prefix-caching "
        f"--generation-config vllm --disable-uvicorn-access-log --host 127.0.0.1 --port {port}"
    )
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    url = f"http://127.0.0.1:{port}"
    environment = quiet | {"PYTHONPATH": ""}
    with running([str(program), *words.split()], environment, f"{url}/v1/models") as start_s:
        yield Server(VLLM, url, start_s)
