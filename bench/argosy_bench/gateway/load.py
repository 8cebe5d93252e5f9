"""Clients that stream: as many at once as asked, each sent when it is due, whatever the others do.

`streams` runs the same arrivals against the gateway, Envoy and the engine itself.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent."""

    streams: int = 200
    """In flight at once, on average."""
    tokens: int = 200
    """Of one stream."""
    period_s: float = 0.05
    """Between two tokens of one stream, in seconds."""
    ramp_s: float = 2.0
    """In which the first streams begin; nothing is measured."""
    window_s: float = 10.0
    """For which is measured."""

    def arrivals(self, seed: int) -> Iterator[tuple[float, int]]:
        """When streams begin, in seconds from the start, and their tokens; ordered by time.

        The streams that are in flight at first have different parts of their tokens left, as if
        the load had lasted for long.
        """
        draw = random.Random(seed)  # noqa: S311 (the same load for all that are measured)
        for i in range(self.streams):
            at_s = self.ramp_s / 2 * i / self.streams
            yield at_s, max(1, round(self.tokens * draw.random()))
        per_s = self.streams / (self.tokens * self.period_s)
        at_s = self.ramp_s / 2
        while (at_s := at_s + draw.expovariate(per_s)) < self.ramp_s + self.window_s:
            yield at_s, self.tokens


@dataclass(slots=True)
class Sample:
    """What one run has measured in its window."""

    ttft_s: list[float] = field(default_factory=list)
    """From the request to the first token, of each stream that began in the window."""
    chunks: int = 0
    cpu_s: float = 0.0
    """Of the process that was measured."""

    @property
    def cpu_us_per_chunk(self) -> float:
        """CPU time of the process over the tokens that it passed on, in µs. Requests are in it."""
        return self.cpu_s / self.chunks * 1e6


def completion(tokens: int, *, stream: bool) -> bytes:
    """A request with a prompt of 400 characters."""
    asked = {"model": "m", "prompt": "x" * 400, "stream": stream, "max_tokens": tokens}
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"content-type: application/json\r\n\r\n" + body


class _Run:
    """The state of all clients of one run."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.chunks = 0
        self.ttft_s: list[tuple[float, float]] = []
        """When a stream began, by `time.perf_counter`, and its TTFT."""
        self.open: set[_Client] = set()
        self.broken: str | None = None


class _Client(asyncio.Protocol):
    """One stream on a connection of its own."""

    def __init__(self, run: _Run, tokens: int) -> None:
        self._run = run
        self._tokens = tokens
        self._began: float | None = None
        self._seen = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._run.open.add(self)
        self._began = time.perf_counter()  # uvloop's own time counts in milliseconds
        self.transport.write(completion(self._tokens, stream=True))

    def data_received(self, data: bytes) -> None:
        assert self._began is not None
        found = data.count(b"data: ")
        if found and not self._seen:
            self._seen = True
            self._run.ttft_s.append((self._began, time.perf_counter() - self._began))
        self._run.chunks += found
        self._tail = (self._tail + data)[-16:]
        if self._tail.endswith(b"0\r\n\r\n"):
            self._run.open.discard(self)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._run.open:
            self._run.open.discard(self)
            self._run.broken = f"a stream ended early ({exc}): …{self._tail!r}"


async def run(port: int, load: Load, *, seed: int, cpu_s: Callable[[], float]) -> Sample:
    """Send the load to a port of this machine. `cpu_s` gives the CPU time of what is measured.

    RuntimeError if a stream ends early.
    """
    state = _Run()
    loop, began = state.loop, state.loop.time()
    window = asyncio.create_task(_window(state, began, load, cpu_s))
    connects = []
    for at_s, tokens in load.arrivals(seed):
        await asyncio.sleep(began + at_s - loop.time())
        connects.append(asyncio.create_task(_connect(state, port, tokens)))
        if state.broken:
            break
    sample = await window
    await asyncio.gather(*connects)
    for client in tuple(state.open):
        state.open.discard(client)  # its end is ours
        client.transport.abort()
    if state.broken:
        raise RuntimeError(state.broken)
    return sample


async def _connect(state: _Run, port: int, tokens: int) -> None:
    await state.loop.create_connection(lambda: _Client(state, tokens), "127.0.0.1", port)


async def _window(state: _Run, began: float, load: Load, cpu_s: Callable[[], float]) -> Sample:
    await asyncio.sleep(began + load.ramp_s - state.loop.time())
    since, chunks, before = time.perf_counter(), state.chunks, cpu_s()
    await asyncio.sleep(load.window_s)
    return Sample(
        [ttft for at, ttft in state.ttft_s if at >= since],
        state.chunks - chunks,
        cpu_s() - before,
    )
