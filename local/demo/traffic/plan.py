"""The demo's load: which requests are due when. Pure and seeded: every run sends the same.

`client.py` sends it open loop; `score.py` scores each phase from its step on.
"""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of Poisson arrivals with one rate and one mix of lengths."""

    name: str
    seconds: float
    rate_per_s: float
    prompt_tokens: int
    """Mean length of a prompt."""
    output_tokens: int
    """Mean length of an answer."""


@dataclass(frozen=True, slots=True)
class Due:
    """One request of the plan."""

    at_s: float
    """Seconds after the start of the load."""
    phase: int
    """Index of its phase."""
    prompt_tokens: int
    output_tokens: int


# Llama-70B on four H100: a prompt of 1,200 tokens takes 0.13 s of prefill; one decode replica
# holds about 29 answers at 40 ms a token. The surge needs prefill, the other mix needs decode.
RAMP = (
    Phase("low", 45, 2.8, 1200, 30),
    Phase("4x", 45, 11.2, 1200, 30),
    Phase("other mix", 45, 6.0, 150, 200),
    Phase("low again", 45, 2.8, 1200, 30),
)
LENGTH_SPREAD = 0.25
"""Lengths are uniform within ± this share of the phase's mean."""


def arrivals(phases: tuple[Phase, ...] = RAMP, seed: int = 7) -> list[Due]:
    """Poisson arrivals phase after phase, lengths spread around the phase's means."""
    dice = random.Random(seed)  # noqa: S311 — seeded: every run sends the same requests
    due, start = [], 0.0
    for number, phase in enumerate(phases):
        at = dice.expovariate(phase.rate_per_s)
        while at < phase.seconds:
            prompt, output = (
                max(1, round(mean * dice.uniform(1 - LENGTH_SPREAD, 1 + LENGTH_SPREAD)))
                for mean in (phase.prompt_tokens, phase.output_tokens)
            )
            due.append(Due(start + at, number, prompt, output))
            at += dice.expovariate(phase.rate_per_s)
        start += phase.seconds
    return due


def steps(phases: tuple[Phase, ...] = RAMP) -> list[float]:
    """Seconds after the start at which each phase begins."""
    begun, at = [], 0.0
    for phase in phases:
        begun.append(at)
        at += phase.seconds
    return begun
