"""Scores what the client saw: pure functions over the records that `client.py` writes.

The client measures by its own clock, independently of the gateway's counters. A request meets the
SLO if its first token came within the TTFT limit and its mean gap between tokens was within the
TPOT limit. One that was shed, refused or lost misses it.
"""

from dataclasses import dataclass

from local.demo.traffic.plan import RAMP, Phase, steps


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the client saw it."""

    due_s: float
    """When the plan wanted it sent, in seconds since the load began."""
    phase: int
    """Index of the plan's phase."""
    outcome: str
    """`ok`, `shed` (answered 429), `refused` (not accepted) or `lost` (accepted, never ended)."""
    ttft_s: float | None
    """Seconds from sending to the first token; None unless `ok`."""
    tpot_s: float | None
    """Mean seconds between tokens; None for fewer than two."""
    tokens: int
    """Tokens of the answer, by its `usage`."""
    late_s: float = 0.0
    """Seconds by which the client itself sent it late."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The fleet's SLO."""

    ttft_s: float
    """Limit of the time to the first token, seconds."""
    tpot_s: float
    """Limit of the mean time between tokens, seconds."""


SETTLING_CUT_S = 20.0
"""Requests due within this time after a step belong to the settling and are not scored."""
SETTLED_SHARE = 0.9
"""A window is settled if this share of its requests met the SLO: the share that the SLO asks."""
SETTLED_WINDOW_S = 6.0
"""At the plan's lowest rate of 2.8/s about 17 requests: enough for a share."""


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
