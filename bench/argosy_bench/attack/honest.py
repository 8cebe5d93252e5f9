"""What honest clients get: short streamed requests at a steady rate, each with a known text.

They carry a flow of their own (`x-argosy-flow`), as each user of a product would.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from argosy_bench.attack.processes import MODEL
from argosy_bench.loss.requests import ask_of
from local.demo.traffic.stream import Stream

RATE = 6.0
"""Requests per second; a small part of what the fleet can serve."""
TTFT_S, TPOT_S = 2.5, 0.06
"""Limits, those of `make bench-overload`. The simulated model needs 0.05 s for these prompts and
0.03 s a token; a prompt of the attack `overload` keeps a prefill engine for 0.58 s."""
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One request."""

    problem: str
    """Why the answer is not whole; empty if it is."""
    right: bool
    """Whether the text is the one that the prompt must give."""
    ttft_s: float = 0.0
    tpot_s: float = 0.0

    @property
    def good(self) -> bool:
        """Whole, right, and within both limits."""
        return not self.missed

    @property
    def missed(self) -> str:
        """Why it is not good; empty if it is."""
        if self.problem or not self.right:
            return self.problem or "another text"
        over = [name for name, value, limit in self._times() if value > limit]
        return " and ".join(f"{name} over its limit" for name in over)

    def _times(self) -> tuple[tuple[str, float, float], ...]:
        return ("TTFT", self.ttft_s, TTFT_S), ("TPOT", self.tpot_s, TPOT_S)


def attainment(seen: Sequence[Seen]) -> float:
    """Share of good requests; 0 of none."""
    return sum(one.good for one in seen) / len(seen) if seen else 0.0


def wrong_texts(seen: Sequence[Seen]) -> int:
    """Whole answers with another text."""
    return sum(not one.problem and not one.right for one in seen)


async def measure(url: str, seconds: float, first: int) -> list[Seen]:
    """Send from number `first` on for so long, and return when all have ended. Every number is sent
    once in a run, so that no prefix cache helps."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=_PATIENCE_S, trust_env=False) as web:
        began, sent = time.monotonic(), list[asyncio.Task[Seen]]()
        while (now := time.monotonic()) < began + seconds:
            sent.append(asyncio.create_task(_ask(web, url, first + 2 * len(sent))))
            await asyncio.sleep(max(0.0, began + len(sent) / RATE - now))
        return list(await asyncio.gather(*sent))


async def _ask(web: httpx.AsyncClient, url: str, number: int) -> Seen:
    ask = ask_of(number)  # even numbers are streamed
    stream, sent_s = Stream(ask.tokens), time.monotonic()
    try:
        async with web.stream(
            "POST",
            f"{url}/v1/completions",
            json=ask.body(MODEL),
            headers={"x-argosy-flow": "honest"},
        ) as answer:
            if answer.status_code != 200:
                return Seen(f"status {answer.status_code}", right=False)
            async for line in answer.aiter_lines():
                stream.line(line, time.monotonic())
    except httpx.HTTPError as error:
        return Seen(f"{type(error).__name__}: {error}", right=False)
    return Seen(
        problem=stream.problem(),
        right=stream.text == ask.text,
        ttft_s=(stream.first_s or time.monotonic()) - sent_s,
        tpot_s=stream.tpot_s() or 0.0,
    )
