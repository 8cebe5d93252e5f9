"""What reading a stream costs with the gateway's HTTP client, beside others in the same place.

All read the same engine, 20 streams at a time, in turn. Only the client's own CPU time counts: the
engine is another process.
"""

import asyncio
import resource
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable

import httpx

from argosy_bench.figures import Figure, Figures, Target
from argosy_bench.gateway.processes import engine
from argosy_gateway.wire import http1

__all__ = ["FIGURES", "measure"]

STREAMS, TOKENS = 20, 200
PERIOD_S = 0.02
ROUNDS = 3

FIGURES = (
    Figure("http1_cpu_us_per_chunk", "µs", digits=1),
    Figure("httpx_cpu_us_per_chunk", "µs", digits=1),
    Figure("http1_over_httpx", target=Target("<=", 0.7), digits=2),
)

Reader = Callable[[int, bytes], Awaitable[int]]
"""Sends a body to a port and reads the answer; returns its chunks."""


async def measure(figures: Figures, tokens: int = TOKENS, rounds: int = ROUNDS) -> None:
    """Put the figures of the readers; takes 25 s."""
    body = b'{"stream":true,"max_tokens":%d}' % tokens
    found: dict[str, list[float]] = defaultdict(list)
    async with engine(period_s=PERIOD_S) as source, _Httpx() as httpx_reader:
        readers: dict[str, Reader] = {"http1": _read_by_http1, "httpx": httpx_reader.read}
        for _ in range(rounds):
            for name, read in readers.items():
                found[name].append(await _cpu_us_per_chunk(read, source.port, body))
    for name, costs in found.items():
        figures.put(f"{name}_cpu_us_per_chunk", statistics.median(costs))
    pairs = zip(found["http1"], found["httpx"], strict=True)
    figures.put("http1_over_httpx", statistics.median(a / b for a, b in pairs))


async def _read_by_http1(port: int, body: bytes) -> int:
    chunks = 0
    exchange = await http1.call(
        "127.0.0.1", port, method="POST", target="/", body=body, connect_s=5
    )
    while await exchange.read():
        chunks += 1
    exchange.abort()
    return chunks


class _Httpx:
    def __init__(self) -> None:
        self._client = httpx.AsyncClient(timeout=30, trust_env=False)

    async def __aenter__(self) -> "_Httpx":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def read(self, port: int, body: bytes) -> int:
        chunks = 0
        url = f"http://127.0.0.1:{port}/"
        async with self._client.stream("POST", url, content=body) as response:
            async for _ in response.aiter_raw():
                chunks += 1
        return chunks


async def _cpu_us_per_chunk(read: Reader, port: int, body: bytes) -> float:
    before = _own_cpu_s()
    chunks = sum(await asyncio.gather(*(read(port, body) for _ in range(STREAMS))))
    return (_own_cpu_s() - before) / chunks * 1e6


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
