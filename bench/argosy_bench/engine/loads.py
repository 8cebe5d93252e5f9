"""What is asked of both servers, and what one run of each load measures.

Every load has prompts of random tokens that no other run has, so that no prefix cache helps.
"""

import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median

import httpx

from argosy_bench.processes import MODEL
from argosy_measure.client import Answer, Request, Send, play_closed, play_open, send

PROMPT, TOKENS, PROMPTS = 128, 64, 64
SEQUENCES = 32
"""That a server computes at once."""
_VOCABULARY = range(1000, 40_000)
"""Ids of ordinary tokens: below are special tokens and bytes."""
TTFT_LIMIT_S, TPOT_LIMIT_S = 0.5, 0.05
ATTAINMENT = 0.9
_ARRIVALS = 24
_RUNG = 1.15
"""A rate of the knee's ladder over the one below."""


async def complete(http: httpx.AsyncClient, url: str, request: Request) -> Answer:
    """Send one request. RuntimeError for an answer that is not what was asked for."""
    answer = await send(http, url, MODEL, request)
    if answer.error:
        raise RuntimeError(f"{url}: {answer.error}")
    if answer.tokens != request.tokens:
        raise RuntimeError(f"{url}: {answer.tokens} tokens instead of {request.tokens}")
    return answer


def draw(
    count: int, prompt: int, tokens: int, seed: str, at_s: Sequence[float] | None = None
) -> list[Request]:
    """Draw prompts of random tokens, due at these times or at once."""
    rng = random.Random(seed)  # noqa: S311 - a load, no secret
    return [
        Request(tuple(rng.choices(_VOCABULARY, k=prompt)), tokens, due_s)
        for due_s in at_s or [0.0] * count
    ]


def poisson(count: int, per_s: float, seed: str) -> list[float]:
    """Draw arrivals, in seconds; the first is at 0."""
    rng = random.Random(f"arrivals {seed}")  # noqa: S311 - a load, no secret
    at_s = [0.0]
    while len(at_s) < count:
        at_s.append(at_s[-1] + rng.expovariate(per_s))
    return at_s


def ttft_s(answer: Answer) -> float:
    """Return the time to first token of a whole answer."""
    assert answer.ttft_s is not None
    return answer.ttft_s


def tpot_s(answer: Answer) -> float:
    """Return the time per output token of a whole answer of two tokens or more."""
    assert answer.tpot_s is not None
    return answer.tpot_s


def tokens_per_s(answers: Sequence[Answer]) -> float:
    """Output tokens over the time from the first request to the last token."""
    took_s = max(a.events[-1] for a in answers) - min(a.sent for a in answers)
    return sum(a.tokens for a in answers) / took_s


def full_step_s(answers: Sequence[Answer]) -> float:
    """Median time between tokens of a stream while all of them decode, in seconds."""
    since, until = max(a.events[0] for a in answers), min(a.events[-1] for a in answers)
    gaps = [
        late - early
        for a in answers
        for early, late in zip(a.events, a.events[1:], strict=False)
        if since <= early and late <= until
    ]
    return median(gaps)


async def run_one(load: str, send: Send, seed: str) -> dict[str, float]:
    """One run of a load: its measured values by name. KeyError for an unknown load."""
    match load:
        case "burst":
            answers = await play_open(send, draw(PROMPTS, PROMPT, TOKENS, seed))
            return {"throughput": tokens_per_s(answers)}
        case "c1":
            answers = await play_closed(send, draw(5, PROMPT, TOKENS, seed), 1)
            return {
                "tpot_c1": median(map(tpot_s, answers)),
                "ttft_c1": median(map(ttft_s, answers)),
            }
        case "c8":
            answers = await play_closed(send, draw(24, PROMPT, TOKENS, seed), 8)
            return {"tokens_c8": tokens_per_s(answers)}
        case "prefill512" | "prefill1536":
            prompt = int(load.removeprefix("prefill"))
            answers = await play_closed(send, draw(3, prompt, 1, seed), 1)
            return {f"ttft_{prompt}": median(map(ttft_s, answers))}
        case "4k" | "8k":
            prompt = {"4k": 4096, "8k": 8128}[load]
            answers = await play_closed(send, draw(1, prompt, 33, seed), 1)
            return {f"tpot_{load}": tpot_s(answers[0]), f"ttft_{load}": ttft_s(answers[0])}
        case "full":
            answers = await play_open(send, draw(SEQUENCES, PROMPT, TOKENS, seed))
            return {"full_step": full_step_s(answers)}
    raise KeyError(load)


def _keeps_limits(ttft_s: float, tpot_s: float) -> bool:
    return ttft_s <= TTFT_LIMIT_S and tpot_s <= TPOT_LIMIT_S


async def attained(send: Send, rate: float, seed: str) -> float:
    """Share of requests within both limits at this rate of Poisson arrivals per second."""
    at_s = poisson(_ARRIVALS, rate, seed)
    requests = draw(_ARRIVALS, PROMPT, TOKENS, f"{seed} {rate}", at_s)
    within = [_keeps_limits(ttft_s(a), tpot_s(a)) for a in await play_open(send, requests)]
    return sum(within) / len(within)


def expected_knee(measured: Mapping[str, Sequence[float]]) -> float:
    """Where to look for the knee of a server, by its values so far: at the last one, or at 0.6 of
    what a burst is served at. 0 if a request alone misses a limit: such a server has none."""
    if not _keeps_limits(measured["ttft_c1"][-1], measured["tpot_c1"][-1]):
        return 0.0
    last = measured.get("knee", [0.0])[-1]
    return last or 0.6 * measured["throughput"][0] / TOKENS


async def knee(ask: Callable[[float], Awaitable[float]], start: float) -> float:
    """The highest rung of the ladder, near `start` requests a second, that keeps both limits.

    `ask` gives the share of requests within them at a rate. The search ends below a third of
    `start`: 0 if no rate down to there keeps them. Nothing is asked if `start` is 0.
    """
    if not start:
        return 0.0
    rung = round(math.log(start, _RUNG))
    if await ask(_RUNG**rung) >= ATTAINMENT:
        while await ask(_RUNG ** (rung + 1)) >= ATTAINMENT:
            rung += 1
        return _RUNG**rung
    while _RUNG**rung > start / 3:
        rung -= 1
        if await ask(_RUNG**rung) >= ATTAINMENT:
            return _RUNG**rung
    return 0.0
