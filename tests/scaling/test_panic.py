"""Why there is no panic latch: a burst keeps its replicas for a hold by what it asks for.

A latch, as Knative has one, would forbid every removal while the newest two bins are more than
twice the estimated rate, by three standard deviations, and for a hold after that.
"""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.estimate import demand
from argosy_law.goals import Goals
from argosy_law.observe import Bin
from argosy_law.state import ScalingState
from tests.scaling import known

QUIET_BINS = 40
HOLD_BINS = 3
"""Rounds within a hold of 60 s after the last one of a burst."""


def panics(counts: Sequence[float]) -> bool:
    """What the latch would begin with."""
    older, newest = tuple(counts[:-2]), sum(counts[-2:])
    spread = demand.dispersion(older)
    before = demand.segment(older, spread)
    ratio = 2 / len(before)
    far = demand._distance(newest, sum(before), ratio) > 3 * spread**0.5
    return newest > 2 * ratio * sum(before) and far


def followed(
    counts: Sequence[float], goals: Goals, have: known.Have
) -> list[dict[str, tuple[int, int]]]:
    """(wanted now, replicas) of each role after each round, from the first decision on."""
    state, rounds = ScalingState(), []
    for end in range(QUIET_BINS, len(counts) + 1):
        now = known.START + known.EVERY_S * end
        bins = tuple(
            Bin(now - known.EVERY_S * (QUIET_BINS - 1 - k), count)
            for k, count in enumerate(counts[end - QUIET_BINS : end])
        )
        seen = replace(known.metrics(now, counts[end - 1] / known.EVERY_S, have), bins=bins)
        state, decision = known.play(goals, [(seen, have)], state)
        have = {role: decision.replicas(role) for role in have}
        rounds.append({t.role: (t.demanded, t.replicas) for t in decision.targets})
    return rounds


@settings(max_examples=30, deadline=None)
@given(
    quiet=st.integers(15, 150),
    factor=st.floats(2.5, 8.0),
    bins=st.integers(2, 4),
    spare=st.integers(0, 6),
)
def test_after_a_burst_no_role_falls_below_what_it_asked_for_within_a_hold(
    quiet: int, factor: float, bins: int, spare: int
) -> None:
    burst = float(round(quiet * factor))
    counts = [float(quiet)] * (QUIET_BINS + 8) + [burst] * bins + [float(quiet)] * HOLD_BINS
    assert panics(counts[: QUIET_BINS + 10])
    rounds = followed(counts, known.goals(), {"prefill": 1 + spare, "decode": 1 + spare})
    for role in known.POOLS:
        asked = min(rounds[-HOLD_BINS - 1][role])
        after = [have for _, have in (r[role] for r in rounds[-HOLD_BINS:])]
        assert min(after) >= asked
