"""What a streamed token and a short request cost in the gateway, beside Envoy and beside no proxy.

Streams: gateway, Envoy and the engine itself take turns under the same arrivals of 200 streams of
20 tokens a second. The added TTFT of a stream is its TTFT less the median without a proxy.
Requests: 32 clients send short requests, each its next one when the last is answered; requests over
CPU seconds count. Readers: the gateway's HTTP client and aiohttp's read the same streams in turn.
The gateway keeps a client of its own only while it is 1.5 times cheaper (designs/0012-front.md).
"""

import asyncio
import resource
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import aiohttp

from argosy_bench.client import quantile
from argosy_bench.gateway.envoy import envoy, envoy_program
from argosy_bench.gateway.idle_engine import idle_engine
from argosy_bench.gateway.load import Load, Sample, completion, run
from argosy_bench.processes import Server, gateway
from argosy_gateway.wire import http1
from local.figures import Figure, Figures, Target

ROUNDS = 3
CLIENTS, REQUESTS_S = 32, 3.0
READ_STREAMS, READ_TOKENS, READ_PERIOD_S = 20, 200, 0.02

STREAMS = (
    Figure("added_ttft_ms_p50", "ms", digits=2),
    Figure("added_ttft_ms_p99", "ms", digits=2),
    Figure("cpu_us_per_chunk", "µs", digits=1),
    Figure("rss_mib", "MiB", Target("<=", 60), digits=1),
    Figure("start_s", "s", digits=2),
)
BESIDE_ENVOY = (
    Figure("envoy_added_ttft_ms_p50", "ms", digits=2),
    Figure("envoy_added_ttft_ms_p99", "ms", digits=2),
    Figure("envoy_cpu_us_per_chunk", "µs", digits=1),
    Figure("cpu_over_envoy", target=Target("<=", 1.3), digits=2),
)
REQUESTS = (
    Figure("rps_per_core", "1/s", digits=0),
    Figure("envoy_rps_per_core", "1/s", digits=0),
)
READERS = (
    Figure("http1_cpu_us_per_chunk", "µs", digits=1),
    Figure("aiohttp_cpu_us_per_chunk", "µs", digits=1),
    Figure("aiohttp_over_http1", target=Target(">=", 1.5), digits=2),
)


async def _front(stack: AsyncExitStack, period_s: float, figures: Figures) -> list[Server]:
    """Start the engine, the gateway, and Envoy where it is installed."""
    source = await stack.enter_async_context(idle_engine(period_s=period_s))
    servers = [source, await stack.enter_async_context(gateway([source.endpoint()]))]
    if envoy_program() is None:
        figures.notes["envoy"] = "not installed: its figures are absent"
    else:
        servers.append(await stack.enter_async_context(envoy(source.port)))
    return servers


async def measure_streams(figures: Figures, load: Load, rounds: int = ROUNDS) -> None:
    """Put the figures of the streams; takes 36 s a round."""
    figures.declare(STREAMS)
    samples: dict[str, list[Sample]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        servers = await _front(stack, load.period_s, figures)
        for seed in range(rounds):
            for server in servers:
                sample = await run(server.port, load, seed=seed, cpu_s=server.cpu_s)
                samples[server.name].append(sample)
        figures.put("start_s", servers[1].start_s)
        figures.put("rss_mib", servers[1].rss_mib())
    direct_s = statistics.median(_ttft_s(samples["engine"]))
    _put(figures, "", samples["gateway"], direct_s)
    if samples["envoy"]:
        figures.declare(BESIDE_ENVOY)
        _put(figures, "envoy_", samples["envoy"], direct_s)
        pairs = zip(samples["gateway"], samples["envoy"], strict=True)
        ratios = [a.cpu_us_per_chunk / b.cpu_us_per_chunk for a, b in pairs]
        figures.put("cpu_over_envoy", statistics.median(ratios))


def _put(figures: Figures, prefix: str, samples: list[Sample], direct_s: float) -> None:
    ttft_s = _ttft_s(samples)
    p50_s, p99_s = statistics.median(ttft_s), quantile(ttft_s, 0.99)
    figures.put(f"{prefix}added_ttft_ms_p50", (p50_s - direct_s) * 1e3)
    figures.put(f"{prefix}added_ttft_ms_p99", (p99_s - direct_s) * 1e3)
    cpu = statistics.median(sample.cpu_us_per_chunk for sample in samples)
    figures.put(f"{prefix}cpu_us_per_chunk", cpu)


def _ttft_s(samples: list[Sample]) -> list[float]:
    return [seconds for sample in samples for seconds in sample.ttft_s]


async def measure_requests(
    figures: Figures, seconds: float = REQUESTS_S, rounds: int = ROUNDS
) -> None:
    """Put the figures of short requests; takes 20 s."""
    figures.declare(REQUESTS)
    rates: dict[str, list[float]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        _, *servers = await _front(stack, 1.0, figures)
        for _ in range(rounds):
            for server in servers:
                rates[server.name].append(await _per_cpu_s(server, seconds))
    figures.put("rps_per_core", statistics.median(rates["gateway"]))
    if rates["envoy"]:
        figures.put("envoy_rps_per_core", statistics.median(rates["envoy"]))


async def _per_cpu_s(server: Server, seconds: float) -> float:
    before, until = server.cpu_s(), asyncio.get_running_loop().time() + seconds
    answered = await asyncio.gather(*(_send(server.port, until) for _ in range(CLIENTS)))
    return sum(answered) / (server.cpu_s() - before)


async def _send(port: int, until: float) -> int:
    """Send requests until that time of the event loop; return how many were answered with 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request, answered, loop = completion(1, stream=False), 0, asyncio.get_running_loop()
    while loop.time() < until:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"a request was refused: {head!r}")
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        answered += 1
    writer.close()
    return answered


Reader = Callable[[int, bytes], Awaitable[int]]
"""Sends a body to a port and reads the answer; returns its chunks."""


async def measure_readers(
    figures: Figures, tokens: int = READ_TOKENS, rounds: int = ROUNDS
) -> None:
    """Put the figures of the readers; takes 25 s. Only the reader's own CPU time counts."""
    figures.declare(READERS)
    body = b'{"stream":true,"max_tokens":%d}' % tokens
    found: dict[str, list[float]] = defaultdict(list)
    async with idle_engine(period_s=READ_PERIOD_S) as source, aiohttp.ClientSession() as session:
        readers: dict[str, Reader] = {
            "http1": _read_by_http1,
            "aiohttp": partial(_read_by_aiohttp, session),
        }
        for _ in range(rounds):
            for name, read in readers.items():
                before = _own_cpu_s()
                reads = (read(source.port, body) for _ in range(READ_STREAMS))
                chunks = sum(await asyncio.gather(*reads))
                found[name].append((_own_cpu_s() - before) / chunks * 1e6)
    for name, costs in found.items():
        figures.put(f"{name}_cpu_us_per_chunk", statistics.median(costs))
    pairs = zip(found["http1"], found["aiohttp"], strict=True)
    figures.put("aiohttp_over_http1", statistics.median(b / a for a, b in pairs))


async def _read_by_http1(port: int, body: bytes) -> int:
    """Read as `relay.attempt` does: what can be passed on at once is counted at its arrival."""
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


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
