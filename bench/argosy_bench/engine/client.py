"""The one client of both servers: streams of completions over httpx, with their times.

A prompt is a list of token ids, so that both servers compute the same number of tokens. Tokens are
counted by the server's `usage`, because one event may carry several.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import httpx

from argosy_bench.processes import MODEL

_TIMEOUT_S = 300.0


@dataclass(slots=True)
class Answer:
    """Times of one stream, by `time.perf_counter`."""

    sent: float
    events: list[float] = field(default_factory=list)
    """When each event with text arrived."""
    tokens: int = 0
    """Of the answer, as the server counted."""

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first token."""
        return self.events[0] - self.sent

    @property
    def tpot_s(self) -> float:
        """Mean seconds between tokens after the first."""
        return (self.events[-1] - self.events[0]) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    prompt: tuple[int, ...]
    tokens: int
    """Tokens of the answer, which goes on after the end of sequence."""


Send = Callable[[Ask], Awaitable[Answer]]
"""Sends a request to one of the servers."""


async def complete(client: httpx.AsyncClient, url: str, ask: Ask) -> Answer:
    """Send one request. RuntimeError for an answer that is not what was asked for."""
    body = {
        "model": MODEL,
        "prompt": list(ask.prompt),
        "max_tokens": ask.tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = Answer(time.perf_counter())
    stream = client.stream("POST", f"{url}/v1/completions", json=body, timeout=_TIMEOUT_S)
    async with stream as response:
        if response.status_code != 200:
            raise RuntimeError(f"{url}: {response.status_code} {await response.aread()!r}")
        rest = b""
        async for data in response.aiter_raw():
            now = time.perf_counter()
            *events, rest = (rest + data).split(b"\n\n")
            for event in events:
                _read(answer, event, now)
    if answer.tokens != ask.tokens:
        raise RuntimeError(f"{url}: {answer.tokens} tokens instead of {ask.tokens}")
    return answer


def _read(answer: Answer, event: bytes, now: float) -> None:
    if b'"choices":[]' in event and b'"completion_tokens"' in event:
        answer.tokens = json.loads(event.removeprefix(b"data: "))["usage"]["completion_tokens"]
    elif event.startswith(b"data: {"):
        if b'"error"' in event[:20]:
            raise RuntimeError(event.decode(errors="replace"))
        answer.events.append(now)


async def one_by_one(send: Send, asks: Sequence[Ask]) -> list[Answer]:
    """Each request after the answer of the last."""
    return [await send(ask) for ask in asks]


async def all_at_once(send: Send, asks: Sequence[Ask]) -> list[Answer]:
    """All requests at once."""
    return await asyncio.gather(*(send(ask) for ask in asks))


async def some_at_once(send: Send, asks: Sequence[Ask], clients: int) -> list[Answer]:
    """`clients` clients, each with the next request after its answer."""
    left, answers = iter(asks), list[Answer]()

    async def client() -> None:
        for ask in left:
            answers.append(await send(ask))

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


async def at_times(send: Send, asks: Sequence[Ask], at_s: Sequence[float]) -> list[Answer]:
    """Each request at its time after now, whatever became of the others."""
    began = asyncio.get_running_loop().time()

    async def later(ask: Ask, due: float) -> Answer:
        await asyncio.sleep(began + due - asyncio.get_running_loop().time())
        return await send(ask)

    return await asyncio.gather(*map(later, asks, at_s))
