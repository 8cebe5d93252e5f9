"""What a served token loses beside the step, because HTTP and the engine share one interpreter.

The engine serves with a stand-in for a device (`stand_in`): with as many calls a step as a CUDA
graph takes, and with as many as a step takes without. This process is the client: it counts the
tokens of all streams while all of them decode. What they take beyond the step's own length is lost.
Steps of 3 ms, however many rows they have, show where one process is no longer enough.
"""

import asyncio
import json
import sys
import time
from collections import defaultdict
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from argosy_bench.engine.stand_in import ENGINE_THREAD, Device
from argosy_bench.ports import free_ports
from argosy_bench.processes import MODEL, Server, running
from local.figures import Figure, Figures

ROWS = (1, 8, 64, 256)
DEVICES = {
    "graph": Device(calls=10, step_ms=4.9, row_ms=0.053),
    "calls": Device(calls=470, step_ms=4.9, row_ms=0.053),
    "short": Device(calls=10, step_ms=3.0, row_ms=0.0),
}
"""The first two have the steps of a Llama-8B at contexts of 1,024 on an H200: 5.0 ms with one row,
18.5 with 256."""
_PROMPT, _TOKENS = 32, 16_000
"""Of each prompt, given as ids, and of each answer; the client leaves before its end."""
_PATIENCE_S = 120.0

FIGURES = tuple(
    Figure(f"{what}_{name}_{rows}", unit, digits=digits)
    for name in DEVICES
    for rows in ROWS
    for what, unit, digits in (
        ("served_over_step", "", 3),
        ("http_cpu_us_per_token", "µs", 1),
        ("engine_cpu_us_per_token", "µs", 1),
    )
)


class Load(NamedTuple):
    """What is asked of each device."""

    rows: tuple[int, ...] = ROWS
    """Streams at once."""
    window_s: float = 2.0
    """For which tokens are counted, once all streams decode."""
    rounds: int = 3


def measure(figures: Figures, load: Load) -> None:
    """Put the figures of all devices; takes 45 s a round."""
    figures.declare(FIGURES)
    asyncio.run(_measure(figures, load))


async def _measure(figures: Figures, load: Load) -> None:
    found: dict[str, list[float]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(_serving(device))
            for name, device in DEVICES.items()
        }
        for turn in range(load.rounds):
            for rows in load.rows:
                for name, server in servers.items():
                    step_s = DEVICES[name].step_s(rows)
                    sample = await _sample(server, _requests(rows, turn), load.window_s)
                    sample["served_over_step"] = sample.pop("tpot_s") / step_s
                    for what, value in sample.items():
                        found[f"{what}_{name}_{rows}"].append(value)
    for figure, values in found.items():
        figures.put_each(figure, values)


def _serving(device: Device) -> AbstractAsyncContextManager[Server]:
    port, admin = free_ports(2)
    words = f"""-m argosy_bench.engine.stand_in {device.word()} serve --model sim:stand-in
        --served-name {MODEL} --host 127.0.0.1 --port {port} --admin-port {admin}
        --max-num-seqs {max(ROWS)} --async-scheduling"""
    return running("engine", (sys.executable, *words.split()), port, admin=admin)


class _Streams:
    """All streams of one sample."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tokens = 0
        self.begun = 0
        self.all_decode = asyncio.Event()
        self.broken = ""
        """Why a stream did not begin."""

    def end(self, broken: str) -> None:
        """End the sample, because a stream did not begin."""
        self.broken = broken
        self.all_decode.set()


class _Client(asyncio.Protocol):
    def __init__(self, streams: _Streams, request: bytes) -> None:
        self._streams, self._request = streams, request
        self._accepted = self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        streams, found = self._streams, data.count(b"data: {")
        if not self._accepted and not data.startswith(b"HTTP/1.1 200"):
            streams.end(data.decode(errors="replace"))
        self._accepted = True
        streams.tokens += found
        if found and not self._begun:
            self._begun = True
            streams.begun += 1
            if streams.begun == streams.rows:
                streams.all_decode.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._begun:
            self._streams.end(f"the connection was closed: {exc}")


async def _sample(server: Server, requests: list[bytes], window_s: float) -> dict[str, float]:
    """Stream all answers at once: time between two tokens of one in s, and CPU time of a token.

    RuntimeError if a stream does not begin.
    """
    streams, loop = _Streams(len(requests)), asyncio.get_running_loop()
    connections = [
        await loop.create_connection(partial(_Client, streams, one), "127.0.0.1", server.port)
        for one in requests
    ]
    async with asyncio.timeout(_PATIENCE_S):
        await streams.all_decode.wait()
        if streams.broken:
            raise RuntimeError(f"a stream did not begin: {streams.broken}")
        since, before, cpu = time.perf_counter(), streams.tokens, _cpu_s(server)
        await asyncio.sleep(window_s)
        took_s, counted = time.perf_counter() - since, streams.tokens - before
    spent = {name: at - cpu[name] for name, at in _cpu_s(server).items()}
    for transport, _ in connections:
        transport.abort()
    return {
        "tpot_s": took_s * len(requests) / counted,
        "http_cpu_us_per_token": spent["http"] / counted * 1e6,
        "engine_cpu_us_per_token": spent["engine"] / counted * 1e6,
    }


def _requests(rows: int, turn: int) -> list[bytes]:
    return [_request([1000 * (turn + 1) + row] * _PROMPT) for row in range(rows)]


def _request(prompt: list[int]) -> bytes:
    options = {"max_tokens": _TOKENS, "ignore_eos": True, "stream": True}
    body = json.dumps({"model": MODEL, "prompt": prompt, **options}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"content-type: application/json\r\n\r\n" + body


def _cpu_s(server: Server) -> dict[str, float]:
    """CPU time so far of the event loop's thread, which is the first, and of the engine's; s."""
    tasks, found = Path(f"/proc/{server.process.pid}/task"), {}
    for task in tasks.iterdir():
        main = int(task.name) == server.process.pid
        if main or (task / "comm").read_text().strip() == ENGINE_THREAD:
            ran_ns = int((task / "schedstat").read_text().split()[0])
            found["http" if main else "engine"] = ran_ns / 1e9
    return found
