"""A gateway in front of several engines, all of them processes on loopback."""

import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable

from argosy_bench.gateway.processes import Server, running
from argosy_bench.ports import free_port

__all__ = ["Pod", "gateway", "pod", "sim_engines"]

Pod = dict[str, object]
"""A line of the gateway's file of endpoints."""


@contextlib.asynccontextmanager
async def sim_engines(number: int, *options: str) -> AsyncIterator[list[Pod]]:
    """Simulated engines: real schedulers and prefix caches, the times of an A100."""
    async with contextlib.AsyncExitStack() as stack:
        pods: list[Pod] = []
        for index in range(number):
            name, port = f"engine-{index}", free_port()
            words = (
                f"-m argosy engine serve --model sim:opt-13b-a100 --served-name m --role colocated "
                f"--host 127.0.0.1 --port {port} --admin-port {free_port()} --kv-port {free_port()}"
            )
            command = ("env", f"POD_NAME={name}", sys.executable, *words.split(), *options)
            await stack.enter_async_context(running(name, port, *command))
            pods.append(pod(name, port))
        yield pods


@contextlib.asynccontextmanager
async def gateway(pods: Iterable[Pod], *options: str) -> AsyncIterator[Server]:
    """Our gateway, which knows these pods."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(list(pods), file)
        file.flush()
        words = (
            "-m argosy gateway run --fleet f --namespace n --served-name m --host 127.0.0.1 "
            f"--port {port} --admin-port {free_port()} --endpoints {file.name} "
            "--drain-lag-s 0 --drain-timeout-s 2"
        )
        command = (sys.executable, *words.split(), *options)
        async with running("gateway", port, *command) as server:
            yield server


def pod(name: str, port: int) -> Pod:
    """A colocated pod on loopback."""
    return {"name": name, "role": "colocated", "ip": "127.0.0.1", "port": port}
