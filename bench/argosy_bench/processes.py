"""Programs of the product as processes on loopback, as the benches start them."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from argosy_bench.ports import free_ports

MODEL = "m"
"""The name by which every fleet here serves."""
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running process, its ports, and what it costs."""

    name: str
    port: int
    process: Process
    start_s: float
    """From its start until the port was open, in seconds."""
    admin: int = 0
    kv: int = 0
    role: str = "colocated"

    @property
    def url(self) -> str:
        """The base of its API."""
        return f"http://127.0.0.1:{self.port}"

    def endpoint(self) -> dict[str, object]:
        """Describe it as a gateway's `--endpoints` file does."""
        return endpoint(self.name, self.port, self.role, self.kv)

    def cpu_s(self) -> float:
        """Return the CPU time of all its threads so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Return its resident memory in MiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def endpoint(name: str, port: int, role: str = "colocated", kv: int = 0) -> dict[str, object]:
    """Describe a pod on loopback as a gateway's `--endpoints` file does."""
    place = {"ip": "127.0.0.1", "port": port, "revision": "a"}
    return {"name": name, "role": role, **place} | ({"kv_port": kv} if kv else {})


@contextlib.asynccontextmanager
async def running(
    name: str,
    command: Sequence[str],
    port: int,
    *,
    admin: int = 0,
    kv: int = 0,
    role: str = "colocated",
    **environment: str,
) -> AsyncIterator[Server]:
    """Run a process until the block ends, which kills it. RuntimeError if it does not start.

    It has started when its port is open and, with an admin port, when that says it is ready.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **environment}, stdin=DEVNULL, stdout=DEVNULL, stderr=log
        )
        try:
            async with asyncio.timeout(_START_S):
                while not await _is_open(port):
                    if process.returncode is not None:
                        log.seek(0)
                        said = log.read()[-1000:].decode(errors="replace")
                        raise RuntimeError(f"the {name} ended before its port was open: {said}")
                    await asyncio.sleep(0.02)
                start_s = time.monotonic() - began
                while True:
                    if not admin or await _is_ready(admin):
                        break
                    await asyncio.sleep(0.02)
            yield Server(name, port, process, start_s, admin, kv, role)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _is_open(port: int) -> bool:
    try:
        (await asyncio.open_connection("127.0.0.1", port))[1].close()
    except OSError:
        return False
    return True


async def _is_ready(admin: int) -> bool:
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", admin)
        writer.write(b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        status = await reader.readline()
        writer.close()
        return b" 200 " in status
    return False


@contextlib.asynccontextmanager
async def engine(
    name: str, *options: str, role: str = "colocated", preset: str = "opt-13b-a100"
) -> AsyncIterator[Server]:
    """Run a simulated engine: a real scheduler, prefix cache and KV port, the times of a preset.

    With TLS its readiness is not awaited: its admin port asks for a certificate.
    """
    port, admin, kv = free_ports(3)
    words = f"""-m argosy engine serve --model sim:{preset} --served-name {MODEL} --role {role}
        --host 127.0.0.1 --port {port} --admin-port {admin} --kv-port {kv}"""
    command = (sys.executable, *words.split(), *options)
    asks = "--tls-dir" in options
    async with running(
        name, command, port, admin=0 if asks else admin, kv=kv, role=role, POD_NAME=name
    ) as server:
        yield server


@contextlib.asynccontextmanager
async def gateway(endpoints: Iterable[dict[str, object]], *options: str) -> AsyncIterator[Server]:
    """Run our gateway in front of these engines."""
    port, admin = free_ports(2)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(list(endpoints), file)
        file.flush()
        words = f"""-m argosy gateway run --fleet f --namespace n --served-name {MODEL}
            --host 127.0.0.1 --port {port} --admin-port {admin} --endpoints {file.name}
            --drain-lag-s 0"""
        command = (sys.executable, *words.split(), *options)
        async with running("gateway", command, port, admin=admin) as server:
            yield server


@contextlib.asynccontextmanager
async def fleet(
    roles: Sequence[str], *options: str, preset: str = "opt-13b-a100"
) -> AsyncIterator[tuple[Server, list[Server]]]:
    """Run a simulated engine for each role, and a gateway with these options in front of them."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(engine(f"{role}-{index}", role=role, preset=preset))
            for index, role in enumerate(roles)
        ]
        front = gateway([one.endpoint() for one in engines], *options)
        yield await stack.enter_async_context(front), engines
