"""What leading a handover of vLLM costs in the gateway, beside a handover of our engines.

Engines that compute nothing stand behind three ways that take turns: none, the gateway with
engines of ours (one call, whose headers name the prefill pods), and the gateway with vLLM's (a call
for each phase). One client sends requests of 400 characters. The gateway's own share of a request
is its time less that of the engines: once, or twice, the time without a gateway.
"""

import asyncio
import statistics
import time
from collections import defaultdict
from contextlib import AsyncExitStack

from argosy_bench.gateway.idle_engine import POD, idle_engine
from argosy_bench.gateway.load import completion
from argosy_bench.processes import Server, endpoint, gateway
from local.figures import Figure, Figures, Target

ROUNDS, REQUESTS = 3, 400
FIGURES = (
    Figure("handover_ours_ms", "ms", digits=3),
    Figure("handover_vllm_ms", "ms", digits=3),
    Figure("handover_vllm_over_ours", target=Target("<=", 2.0), digits=2),
)


async def measure(figures: Figures, rounds: int = ROUNDS, requests: int = REQUESTS) -> None:
    """Put every figure of FIGURES: medians of the rounds."""
    figures.declare(FIGURES)
    shares: dict[str, list[float]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        ours, vllms = [await _pair(stack, kind) for kind in ("argosy", "vllm")]
        for _ in range(rounds):
            engine_s = await _median_s(ours[0].port, requests)
            shares["ours"].append(await _median_s(ours[1].port, requests) - engine_s)
            shares["vllm"].append(await _median_s(vllms[1].port, requests) - 2 * engine_s)
    ratios = [b / a for a, b in zip(shares["ours"], shares["vllm"], strict=True)]
    figures.put("handover_ours_ms", 1e3 * statistics.median(shares["ours"]))
    figures.put("handover_vllm_ms", 1e3 * statistics.median(shares["vllm"]))
    figures.put("handover_vllm_over_ours", statistics.median(ratios))


async def _pair(stack: AsyncExitStack, kind: str) -> tuple[Server, Server]:
    """Start an engine that is prefill and decode pod, and a gateway in front of it."""
    source = await stack.enter_async_context(idle_engine(period_s=1.0, kind=kind))
    pods = [
        {**endpoint(name, source.port, role, kv=1), "engine": kind}
        for name, role in (("prefill", "prefill"), (POD, "decode"))
    ]
    return source, await stack.enter_async_context(gateway(pods))


async def _median_s(port: int, requests: int) -> float:
    """Return the median time of an answer, of requests one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request, times = completion(1, stream=False), []
    for _ in range(requests):
        began = time.perf_counter()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"a request was refused: {head!r}")
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        times.append(time.perf_counter() - began)
    writer.close()
    return statistics.median(times)
