"""What the law remembers goes into status with every decision: it stays small at any setting."""

import json
from dataclasses import replace

import pytest

from argosy_law.decide import decide
from argosy_law.goals import Windows
from argosy_law.observe import Bin, Observations
from argosy_law.record import to_json
from argosy_law.state import ScalingState
from tests.scaling.ramp import GOALS
from tests.scaling.test_decide import START, metrics, supply

pytestmark = pytest.mark.slow

LARGEST = 32 * 1024
QUICK = {"scrape_s": 1.0, "rate_s": 4.0, "interval_s": 1.0, "down_hold_s": 3600.0}


# So many decisions that a state which keeps every forecast, or every residual, gets too large.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cold_start_s", "ticks"), [(1.0, 1500), (180.0, 3000), (3600.0, 3000), (86_400.0, 1500)]
)
def test_the_state_stays_small_whatever_the_cold_start(cold_start_s: float, ticks: int) -> None:
    goals = replace(GOALS, windows=Windows(**QUICK, cold_start_s=cold_start_s))
    state, sizes = ScalingState(), []
    for tick in range(ticks):
        now = START + tick
        bins = tuple(Bin(now - 14 + i, 2.0) for i in range(15))
        seen = Observations(metrics(now, 2.0, bins=bins), supply(2, 2))
        state, _ = decide(state, seen, goals, now)
        if tick % 100 == 0:
            sizes.append(len(json.dumps(to_json(state))))
    assert max(sizes) < LARGEST
    assert state.demand.pending, "forecasts are still noted"


def test_forecasts_far_ahead_are_noted_until_their_time_comes() -> None:
    """The first ones are scored, not pushed out by the later ones."""
    goals = replace(GOALS, windows=Windows(**QUICK, cold_start_s=600.0))
    state = ScalingState()
    for tick in range(700):
        now = START + tick
        bins = tuple(Bin(now - 14 + i, 2.0) for i in range(15))
        seen = Observations(metrics(now, 2.0, bins=bins), supply(2, 2))
        state, _ = decide(state, seen, goals, now)
    assert state.demand.residuals
