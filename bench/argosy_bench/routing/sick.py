"""What clients notice of sick pods: half of the engines fail every request before its first byte.

Three simulated engines serve. One pod answers 500, one closes the connection, one breaks its
streams after the head. All are sick from the start. Twelve clients ask for streams and whole
answers in turn. The first requests find the sick pods: until each has failed once, a request may
meet two of them in a row, and then it ends, as it may be the cause itself. Those are counted apart.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx

from argosy_bench.figures import Figure, Figures, Target
from argosy_bench.routing.fleets import Pod, gateway, pod, sim_engines

__all__ = ["FIGURES", "measure"]

CLIENTS, REQUESTS = 12, 600
FIRST = 1 / 10
"""Share of the requests in which the gateway meets the sick pods."""

FIGURES = (
    Figure("sick_pod_error_share", target=Target("==", 0), digits=4),
    # Errors among the first tenth of the requests.
    Figure("sick_pod_first_errors", digits=0),
    # Of requests and their retries, how many the sick pods drew.
    Figure("sick_pod_attempt_share", digits=4),
)

Fault = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


async def _answer_500(name: str, writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 500 X\r\nx-argosy-pod: %b\r\ncontent-type: application/json\r\n"
        b"content-length: 12\r\n\r\n" % name.encode() + b'{"error":{}}'
    )


async def _hang_up(name: str, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001
    writer.transport.abort()


async def _break_off(name: str, writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nx-argosy-pod: %b\r\ncontent-type: text/event-stream\r\n"
        b"transfer-encoding: chunked\r\n\r\n" % name.encode()
    )
    await writer.drain()
    writer.transport.abort()


class _Sick:
    """Pods that fail every request."""

    def __init__(self) -> None:
        self.drawn = 0

    @contextlib.asynccontextmanager
    async def pods(self) -> AsyncIterator[list[Pod]]:
        faults = {"sick-500": _answer_500, "sick-closed": _hang_up, "sick-stream": _break_off}
        async with contextlib.AsyncExitStack() as stack:
            found: list[Pod] = []
            for name, fault in faults.items():
                server = await asyncio.start_server(self._handler(name, fault), "127.0.0.1", 0)
                stack.callback(server.close)
                found.append(pod(name, server.sockets[0].getsockname()[1]))
            yield found

    def _handler(
        self, name: str, fault: Fault
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                self.drawn += 1
                await fault(name, writer)
            writer.close()

        return handle


async def measure(figures: Figures, requests: int = REQUESTS) -> None:
    """Put the figures of sick pods; takes about 20 s."""
    sick, left = _Sick(), iter(range(requests))
    errors: list[int] = []

    async def ask(client: httpx.AsyncClient) -> None:
        for number in left:
            stream = number % 2 == 0
            body = {"model": "m", "prompt": f"hello {number}", "max_tokens": 8, "stream": stream}
            answer = await client.post("/v1/completions", json=body)
            whole = "[DONE]" in answer.text if stream else "choices" in answer.text
            if answer.status_code != 200 or not whole:
                errors.append(number)

    async with (
        sim_engines(3) as healthy,
        sick.pods() as failing,
        gateway([*healthy, *failing]) as front,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{front.port}", timeout=120, trust_env=False
        ) as client,
    ):
        await asyncio.gather(*(ask(client) for _ in range(CLIENTS)))
    first = sum(number < requests * FIRST for number in errors)
    figures.put("sick_pod_error_share", (len(errors) - first) / (requests * (1 - FIRST)))
    figures.put("sick_pod_first_errors", first)
    figures.put("sick_pod_attempt_share", sick.drawn / (requests + sick.drawn))
