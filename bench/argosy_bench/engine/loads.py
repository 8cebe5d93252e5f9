"""What is asked of both servers, and what one run of each load measures.

Every load has prompts of random tokens that no other run has, so that no prefix cache helps.
"""

import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median

from argosy_bench.engine.client import (
    Answer,
    Ask,
    Send,
    all_at_once,
    at_times,
    one_by_one,
    some_at_once,
)

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


def _asks(count: int, prompt: int, tokens: int, seed: str) -> list[Ask]:
    draw = random.Random(seed)  # noqa: S311 - a load, no secret
    return [Ask(tuple(draw.choices(_VOCABULARY, k=prompt)), tokens) for _ in range(count)]


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
            answers = await all_at_once(send, _asks(PROMPTS, PROMPT, TOKENS, seed))
            return {"throughput": tokens_per_s(answers)}
        case "c1":
            answers = await one_by_one(send, _asks(5, PROMPT, TOKENS, seed))
            return {
                "tpot_c1": median(a.tpot_s for a in answers),
                "ttft_c1": median(a.ttft_s for a in answers),
            }
        case "c8":
            answers = await some_at_once(send, _asks(24, PROMPT, TOKENS, seed), 8)
            return {"tokens_c8": tokens_per_s(answers)}
        case "prefill512" | "prefill1536":
            prompt = int(load.removeprefix("prefill"))
            answers = await one_by_one(send, _asks(3, prompt, 1, seed))
            return {f"ttft_{prompt}": median(a.ttft_s for a in answers)}
        case "4k" | "8k":
            prompt = {"4k": 4096, "8k": 8128}[load]
            answers = await one_by_one(send, _asks(1, prompt, 33, seed))
            return {f"tpot_{load}": answers[0].tpot_s, f"ttft_{load}": answers[0].ttft_s}
        case "full":
            answers = await all_at_once(send, _asks(SEQUENCES, PROMPT, TOKENS, seed))
            return {"full_step": full_step_s(answers)}
    raise KeyError(load)


def _keeps_limits(ttft_s: float, tpot_s: float) -> bool:
    return ttft_s <= TTFT_LIMIT_S and tpot_s <= TPOT_LIMIT_S


async def attained(send: Send, rate: float, seed: str) -> float:
    """Share of requests within both limits at this rate of Poisson arrivals per second."""
    draw = random.Random(f"arrivals {seed}")  # noqa: S311 - a load, no secret
    at_s, now = [], 0.0
    for _ in range(_ARRIVALS):
        at_s.append(now)
        now += draw.expovariate(rate)
    answers = await at_times(send, _asks(_ARRIVALS, PROMPT, TOKENS, f"{seed} {rate}"), at_s)
    within = [_keeps_limits(a.ttft_s, a.tpot_s) for a in answers]
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
