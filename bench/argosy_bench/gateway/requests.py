"""How many short requests a second one core serves: requests over CPU seconds, with 32 clients.

Each client sends its next request when the last is answered, over one connection. Answers come in
one piece, so that little but the request itself is measured. The gateway and Envoy take turns.
"""

import asyncio
import statistics
from collections import defaultdict
from contextlib import AsyncExitStack

from argosy_bench.figures import Figure, Figures
from argosy_bench.gateway.load import completion
from argosy_bench.gateway.processes import Server, engine, envoy, envoy_program, gateway

__all__ = ["FIGURES", "measure"]

CLIENTS = 32
SECONDS = 3.0
ROUNDS = 3

FIGURES = (
    Figure("rps_per_core", "1/s", digits=0),
    Figure("envoy_rps_per_core", "1/s", digits=0),
)


async def measure(figures: Figures, seconds: float = SECONDS, rounds: int = ROUNDS) -> None:
    """Put the figures of short requests; takes 20 s."""
    rates: dict[str, list[float]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(engine(period_s=1.0))
        servers = [await stack.enter_async_context(gateway(source.port))]
        if envoy_program() is not None:
            servers.append(await stack.enter_async_context(envoy(source.port)))
        for _ in range(rounds):
            for server in servers:
                rates[server.name].append(await _per_cpu_s(server, seconds))
    figures.put("rps_per_core", statistics.median(rates["gateway"]))
    if rates["envoy"]:
        figures.put("envoy_rps_per_core", statistics.median(rates["envoy"]))


async def _per_cpu_s(server: Server, seconds: float) -> float:
    before, until = server.cpu_s(), asyncio.get_running_loop().time() + seconds
    answered = await asyncio.gather(*(_ask(server.port, until) for _ in range(CLIENTS)))
    return sum(answered) / (server.cpu_s() - before)


async def _ask(port: int, until: float) -> int:
    """Send requests until that time of the event loop; returns how many were answered with 200."""
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
