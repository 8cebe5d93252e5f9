"""What the client saw, scored: pure functions over the records that `load.py` writes.

The client measures by its own clock, independently of the gateway's counters. A request is met when
its first token came within the TTFT limit and its mean gap between tokens within the TPOT limit;
one that was shed, failed or lost is a miss (DESIGN §13).
"""

from dataclasses import dataclass

from local.demo.traffic.plan import RAMP, Phase, steps


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the client saw it; times in seconds, `due_s` on the plan's clock."""

    due_s: float
    phase: int
    outcome: str
    """ok | shed | refused | lost: lost = accepted, and ended without its end."""
    ttft_s: float | None
    tpot_s: float | None
    tokens: int
    late_s: float = 0.0
    """How much later than due it was sent: the client's own fault, if any."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The SLO of the fleet, seconds."""

    ttft_s: float
    tpot_s: float


SETTLING_CUT_S = 20.0
"""Requests due earlier than this after a step are the settling, and are not scored."""
SETTLED_SHARE = 0.9
SETTLED_WINDOW_S = 6.0


def met(seen: Seen, limits: Limits) -> bool:
    """Both limits held; an answer of one token has no gap and counts as met on TPOT."""
    if seen.outcome != "ok" or seen.ttft_s is None or seen.ttft_s > limits.ttft_s:
        return False
    return seen.tokens < 2 or (seen.tpot_s is not None and seen.tpot_s <= limits.tpot_s)


def attainment(records: list[Seen], limits: Limits) -> float | None:
    """Share of `records` that met the SLO; None when there is nothing to score."""
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

    For each phase the end of its last window of `SETTLED_WINDOW_S` in which fewer than
    `SETTLED_SHARE` of the requests met the SLO; 0 when there is none. Windows slide by a second
    and lie within the phase, so one that never settled counts with its whole length.
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
