"""Scores what the client saw: pure functions over the records that `client.py` writes.

The client measures by its own clock, independently of the gateway's counters. A request meets the
SLO if its first token came within the TTFT limit and its mean gap between tokens was within the
TPOT limit. One that was shed, refused or lost misses it.

Phases are scored by when requests were due. Curves over time look back: a second shows what was
known then, so a request counts from the moment when it ended.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from local.demo.traffic.plan import RAMP, Phase, steps


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the client saw it."""

    due_s: float
    """When the plan wanted it sent, in seconds since the load began."""
    phase: int
    """Index of the plan's phase."""
    outcome: str
    """`ok`, `shed` (answered 429), `refused` (no connection) or `lost` (accepted, but not answered
    whole: another status, an error event, no end, no usage, another length)."""
    ttft_s: float | None
    """Seconds from sending to the first token; None unless `ok`."""
    tpot_s: float | None
    """Mean seconds between tokens; None for fewer than two, and where they came in one piece."""
    tokens: int
    """Tokens of the answer, by its `usage`."""
    ended_s: float
    """When its answer or its failure was complete, in seconds since the load began."""
    late_s: float = 0.0
    """Seconds by which the client itself sent it late."""
    prefill_pod: str = ""
    """The pod that computed the prompt, as the answer names it."""
    decode_pod: str = ""
    """The pod that gave the answer, as the answer names it."""
    problem: str = ""
    """Why it is not `ok`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The fleet's SLO."""

    ttft_s: float
    """Limit of the time to the first token, seconds."""
    tpot_s: float
    """Limit of the mean time between tokens, seconds."""


def limits_of(slo: dict[str, Any]) -> Limits:
    """The limits of a ServingDeployment's `spec.slo`."""
    return Limits(seconds(slo["ttft"]["target"]), seconds(slo["tpot"]["target"]))


def seconds(text: str) -> float:
    """A duration of the API, such as 500ms, in seconds."""
    for unit, factor in (("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        if text.endswith(unit) and text.removesuffix(unit).replace(".", "").isdigit():
            return float(text.removesuffix(unit)) * factor
    raise ValueError(f"{text!r} is not a duration: write 500ms, 20s, 5m or 1h")


SETTLING_CUT_S = 20.0
"""Requests due within this time after a step belong to the settling and are not scored."""
SETTLED_SHARE = 0.9
"""A window is settled if this share of its requests met the SLO: the share that the SLO asks."""
SETTLED_WINDOW_S = 6.0
"""At the plan's lowest rate of 2.8/s about 17 requests: enough for a share."""
READING_GAP_S = 5.0
"""Longest time without a reading. The law decides every two seconds: a longer gap could hide a
replica that came and went, and what the fleet held meanwhile would be a guess."""


def met(seen: Seen, limits: Limits) -> bool:
    """Whether both limits held. An answer of one token has no gap, so only TTFT counts."""
    if seen.outcome != "ok" or seen.ttft_s is None or seen.ttft_s > limits.ttft_s:
        return False
    return seen.tokens < 2 or (seen.tpot_s is not None and seen.tpot_s <= limits.tpot_s)


def attainment(records: list[Seen], limits: Limits) -> float | None:
    """Share of `records` that met the SLO; None if there are none."""
    return sum(met(r, limits) for r in records) / len(records) if records else None


def after_settling(
    records: list[Seen], limits: Limits, phases: tuple[Phase, ...] = RAMP
) -> list[tuple[float | None, int]]:
    """(attainment, scored requests) of each phase, from `SETTLING_CUT_S` after its step."""
    begun = steps(phases)
    scored = [
        [r for r in records if r.phase == n and r.due_s >= begun[n] + SETTLING_CUT_S]
        for n in range(len(phases))
    ]
    return [(attainment(phase, limits), len(phase)) for phase in scored]


def settling_s(records: list[Seen], limits: Limits, phases: tuple[Phase, ...] = RAMP) -> float:
    """Longest settling of all steps, in whole seconds.

    Each phase counts with the end of its last window of `SETTLED_WINDOW_S` in which fewer than
    `SETTLED_SHARE` of the requests met the SLO, and with 0 if there is no such window. Windows
    slide by a second and lie within the phase, so a phase that never settles counts in full.
    """
    longest = 0.0
    for number, (phase, begin) in enumerate(zip(phases, steps(phases), strict=True)):
        own = [r for r in records if r.phase == number]
        for second in range(int(phase.seconds - SETTLED_WINDOW_S) + 1):
            end = second + SETTLED_WINDOW_S
            window = [r for r in own if begin + second <= r.due_s < begin + end]
            share = attainment(window, limits)
            if share is not None and share < SETTLED_SHARE:
                longest = max(longest, end)
    return longest


def attainment_at(
    records: list[Seen], limits: Limits, second: float, window_s: float
) -> float | None:
    """Share of the requests that ended in the window before `second`; None if none did."""
    return attainment([r for r in records if second - window_s < r.ended_s <= second], limits)


def sent_per_s(records: list[Seen], second: float, window_s: float) -> float:
    """Requests a second that were due in the window before `second`."""
    return sum(second - window_s < r.due_s <= second for r in records) / window_s


def longest_gap_s(readings_at: list[float], end_s: float) -> float:
    """Longest time from the start to `end_s` without a reading."""
    within = [at for at in sorted(readings_at) if 0 <= at <= end_s]
    moments = [0.0, *within, end_s]
    return max(b - a for a, b in pairwise(moments))


def unseen(records: list[Seen], planned: list[float]) -> int:
    """How many of the planned requests, by their due times, have no record."""
    return len(set(planned) - {r.due_s for r in records})


def from_pods(records: list[Seen], prefill: frozenset[str], decode: frozenset[str]) -> float | None:
    """Share of the answers that name a prefill and a decode pod that the fleet had.

    None if there is no answer.
    """
    answers = [r for r in records if r.outcome == "ok"]
    named = sum(r.prefill_pod in prefill and r.decode_pod in decode for r in answers)
    return named / len(answers) if answers else None
