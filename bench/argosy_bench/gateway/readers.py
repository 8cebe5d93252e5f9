"""What reading a stream costs with the gateway's HTTP client, beside aiohttp's in the same place.

Both read the same engine, 20 streams at a time, in turn, on the gateway's event loop. Only the
reader's own CPU time counts: the engine is another process. The gateway keeps a client of its own
only while it is 1.5 times cheaper (designs/0012-front.md).
"""

import asyncio
import resource
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp

from argosy_bench.figures import Figure, Figures, Target
from argosy_bench.gateway.processes import engine
from argosy_gateway.wire import http1

__all__ = ["FIGURES", "measure"]

STREAMS, TOKENS = 20, 200
PERIOD_S = 0.02
ROUNDS = 3

FIGURES = (
    Figure("http1_cpu_us_per_chunk", "µs", digits=1),
    Figure("aiohttp_cpu_us_per_chunk", "µs", digits=1),
    Figure("aiohttp_over_http1", target=Target(">=", 1.5), digits=2),
)

Reader = Callable[[int, bytes], Awaitable[int]]
"""Sends a body to a port and reads the answer; returns its chunks."""


async def measure(figures: Figures, tokens: int = TOKENS, rounds: int = ROUNDS) -> None:
    """Put the figures of the readers; takes 25 s."""
    body = b'{"stream":true,"max_tokens":%d}' % tokens
    found: dict[str, list[float]] = defaultdict(list)
    async with engine(period_s=PERIOD_S) as source, aiohttp.ClientSession() as session:
        readers: dict[str, Reader] = {
            "http1": _read_by_http1,
            "aiohttp": partial(_read_by_aiohttp, session),
        }
        for _ in range(rounds):
            for name, read in readers.items():
                found[name].append(await _cpu_us_per_chunk(read, source.port, body))
    for name, costs in found.items():
        figures.put(f"{name}_cpu_us_per_chunk", statistics.median(costs))
    pairs = zip(found["http1"], found["aiohttp"], strict=True)
    figures.put("aiohttp_over_http1", statistics.median(b / a for a, b in pairs))


async def _read_by_http1(port: int, body: bytes) -> int:
    """As `relay.attempt` reads: what can be passed on at once is counted at its arrival."""
    chunks = 0

    def count(_: bytes) -> bool:
        nonlocal chunks
        chunks += 1
        return True

    exchange = await http1.call(
        "127.0.0.1", port, method="POST", target="/", body=body, connect_s=5
    )
    await exchange.head()
    exchange.on_arrival = count
    while await exchange.read():
        chunks += 1
    exchange.abort()
    return chunks


async def _read_by_aiohttp(session: aiohttp.ClientSession, port: int, body: bytes) -> int:
    chunks = 0
    async with session.post(f"http://127.0.0.1:{port}/", data=body) as response:
        while await response.content.readany():
            chunks += 1
    return chunks


async def _cpu_us_per_chunk(read: Reader, port: int, body: bytes) -> float:
    before = _own_cpu_s()
    chunks = sum(await asyncio.gather(*(read(port, body) for _ in range(STREAMS))))
    return (_own_cpu_s() - before) / chunks * 1e6


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
