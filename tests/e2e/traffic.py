"""Steady streamed requests until standard input closes; prints one word per request.

The first line is `flowing`, when a first answer has begun: what a test disturbs is real traffic.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator

import httpx


async def one(
    http: httpx.AsyncClient,
    url: str,
    model: str,
    number: int,
    tokens: int,
    began: asyncio.Event | threading.Event,
    words: int = 40,
) -> str:
    """`ok`, `lost`, or the status of a refused request; sets `began` at the first byte.

    A word is a token of a simulated engine.
    """
    body = {
        "model": model,
        "prompt": f"r{number} " + "word " * words,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    try:
        async with http.stream("POST", f"{url}/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return str(answer.status_code)
            async for line in answer.aiter_lines():
                began.set()
                if line == "data: [DONE]":
                    return "ok"
    except httpx.HTTPError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    return "lost"


async def report(began: asyncio.Event) -> None:
    """Print a line when the first answer begins."""
    await began.wait()
    print("flowing", flush=True)


async def run(url: str, model: str, per_s: float, tokens: int) -> None:
    """Send until a line comes on standard input, then wait for the answers."""
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=60, trust_env=False) as http:
        sent, began = [], asyncio.Event()
        reporting = asyncio.create_task(report(began))
        while not stop.done():
            sent.append(asyncio.create_task(one(http, url, model, len(sent), tokens, began)))
            await asyncio.wait([stop], timeout=1 / per_s)
        outcomes = await asyncio.gather(*sent)
        reporting.cancel()
        print(*outcomes)


async def run_burst(
    url: str, model: str, began: list[threading.Event], tokens: int, words: int
) -> AsyncIterator[str]:
    """As many requests at once as there are events; gives each outcome when it is known."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=60, trust_env=False) as http:
        sent = [one(http, url, model, n, tokens, event, words) for n, event in enumerate(began)]
        for ended in asyncio.as_completed(sent):
            yield await ended


if __name__ == "__main__":
    base, name, rate, length = sys.argv[1:]
    asyncio.run(run(base, name, float(rate), int(length)))
