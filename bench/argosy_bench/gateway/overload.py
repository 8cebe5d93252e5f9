"""What a fleet still serves at ten times what it can, and how soon it recovers.

A gateway stands in front of two prefill engines and one decode engine, all simulated. One open-loop
client sends prompts of PROMPT_TOKENS: at CAPACITY of what the prefill engines can compute, then at
ten times their whole capacity, then at CAPACITY again. A request is good if it meets both limits as
the client measures them. The second part sends less than the fleet can serve, once without the
queue and once with it: a queue must cost nothing where there is no overload.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from argosy_bench.client import Answer, Ask, play, quantile
from argosy_bench.processes import fleet
from local.figures import Figure, Figures, Target

ROLES = ("prefill", "prefill", "decode")
PRESET = "llama-70b-h100-tp4"
PROMPT_TOKENS, OUTPUT_TOKENS = 4800, 30
PROMPT_S = 0.54
"""What the preset takes for such a prompt: 3.92 + 0.1066 · 4800 + 1e-6 · 4800² milliseconds."""
TTFT_S, TPOT_S = 2.5, 0.06
FULL_RATE = ROLES.count("prefill") / PROMPT_S
CAPACITY, OVERLOAD = 0.85, 10.0
"""Shares of FULL_RATE. At 1 the queue of a random load grows without end."""
BEFORE_S, AFTER_S = 25.0, 40.0
LIGHT = (0.5, 0.7, 0.9)
LIGHT_S, RAMP_S = 15.0, 20.0
WINDOW_S = 8.0
"""Requests that arrive in such a span show whether the fleet has recovered."""
RECOVERED = 0.9
"""Share of the attainment before the overload."""
QUEUES = ("none", "deadline")
"""Values of the gateway's option; the last one is measured."""

FIGURES = (
    Figure("capacity_goodput", "1/s", digits=2),
    Figure("overload_goodput", "1/s", digits=2),
    Figure("overload_goodput_share", target=Target(">=", 0.8), digits=2),
    Figure("overload_recovery_s", "s", digits=1),
    Figure("overload_unanswered", target=Target("==", 0)),
    Figure("client_late_p99_s", "s"),
)
NORMAL = (
    Figure("normal_load_attainment_none"),
    Figure("normal_load_attainment"),
    Figure("queue_normal_load_attainment_ratio", target=Target(">=", 0.99)),
)


@dataclass(frozen=True, slots=True)
class Span:
    """Poisson arrivals whose rate goes evenly from `begin` to `end`, in requests per second."""

    seconds: float
    begin: float
    end: float


def load(spans: Iterable[Span], seed: int) -> list[Ask]:
    """Return the requests, when each is due; the same for the same seed."""
    dice = random.Random(seed)  # noqa: S311
    due, start = list[float](), 0.0
    for span in spans:
        fastest, at = max(span.begin, span.end), 0.0
        while (at := at + dice.expovariate(fastest)) < span.seconds:
            rate = span.begin + (span.end - span.begin) * at / span.seconds
            if dice.random() * fastest <= rate:
                due.append(start + at)
        start += span.seconds
    return [Ask(number, PROMPT_TOKENS, OUTPUT_TOKENS, at_s) for number, at_s in enumerate(due)]


def is_good(answer: Answer) -> bool:
    """Say whether a request was answered within both limits."""
    return answer.whole and answer.ttft_s <= TTFT_S and answer.tpot_s <= TPOT_S


def share_good(seen: Sequence[Answer]) -> float:
    """Return the attainment; 1 of no requests."""
    return sum(map(is_good, seen)) / len(seen) if seen else 1.0


def within(seen: Iterable[Answer], begin_s: float, end_s: float) -> list[Answer]:
    """Return the requests that were due in this span."""
    return [one for one in seen if begin_s <= one.ask.due_s < end_s]


def recovery_s(seen: Sequence[Answer], since_s: float, until_s: float, least: float) -> float:
    """Return the seconds from `since_s` to the first window of which the share `least` is good.

    Without such a window it is the whole time to `until_s`.
    """
    begin = since_s
    while begin + WINDOW_S <= until_s:
        if share_good(within(seen, begin, begin + WINDOW_S)) >= least:
            return begin - since_s
        begin += 0.5
    return until_s - since_s


async def _play(queue: str, asks: Sequence[Ask]) -> list[Answer]:
    limits = f"--slo-ttft-ms {TTFT_S * 1000:g} --slo-tpot-ms {TPOT_S * 1000:g}"
    options = f"{limits} --queue {queue}".split()
    async with fleet(ROLES, *options, preset=PRESET) as (front, _):
        return await play(front.port, asks)


async def measure_overload(figures: Figures, queue: str, overload_s: float) -> None:
    """Send capacity, ten times as much, capacity."""
    figures.declare(FIGURES)
    calm, ends = CAPACITY * FULL_RATE, (BEFORE_S, BEFORE_S + overload_s)
    spans = (
        Span(BEFORE_S, calm, calm),
        Span(overload_s, OVERLOAD * FULL_RATE, OVERLOAD * FULL_RATE),
        Span(AFTER_S, calm, calm),
    )
    seen = await _play(queue, load(spans, seed=1))
    before, during = within(seen, 0, ends[0]), within(seen, *ends)
    capacity = sum(map(is_good, before)) / BEFORE_S
    goodput = sum(map(is_good, during)) / overload_s
    figures.put("capacity_goodput", capacity)
    figures.put("overload_goodput", goodput)
    figures.put("overload_goodput_share", goodput / max(capacity, 1e-9))
    least = RECOVERED * share_good(before)
    figures.put("overload_recovery_s", recovery_s(seen, ends[1], ends[1] + AFTER_S, least))
    answered = sum(one.whole or one.status == 429 for one in seen)
    figures.put("overload_unanswered", len(seen) - answered)
    figures.put("client_late_p99_s", quantile((one.late_s for one in seen), 0.99))
    figures.lists["seconds"] = [
        {"begin_s": a, "sent": len(part), "good": sum(map(is_good, part))}
        for a, b in pairwise(range(0, int(ends[1] + AFTER_S) + 1, 5))
        if (part := within(seen, a, b))
    ]


async def measure_normal(figures: Figures, queue: str) -> None:
    """Send loads below capacity and a ramp up to it, without and with the queue."""
    figures.declare(NORMAL)
    spans = [Span(LIGHT_S, share * FULL_RATE, share * FULL_RATE) for share in LIGHT]
    asks = load([*spans, Span(RAMP_S, LIGHT[0] * FULL_RATE, FULL_RATE)], seed=2)
    found = {kind: share_good(await _play(kind, asks)) for kind in ("none", queue)}
    figures.put("normal_load_attainment_none", found["none"])
    figures.put("normal_load_attainment", found[queue])
    figures.put("queue_normal_load_attainment_ratio", found[queue] / max(found["none"], 1e-9))


async def measure(figures: Figures, queue: str, overload_s: float) -> None:
    """Put every figure: two to five minutes, and as many again to measure the normal load."""
    await measure_overload(figures, queue, overload_s)
    if queue != "none":
        await measure_normal(figures, queue)
    figures.notes |= {"queue": queue, "overload_s": overload_s}
