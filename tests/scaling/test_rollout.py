"""After a rollout other pods serve, perhaps of another model: what was learnt is in doubt."""

from dataclasses import replace

from argosy_law.decide import decide
from argosy_law.decision import Rule
from argosy_law.observe import (
    FleetMetrics,
    Observations,
    RoleMetrics,
    RoleSupply,
    StepDelta,
)
from argosy_law.state import ScalingState
from tests.scaling.ramp import GOALS
from tests.scaling.test_decide import START, metrics, supply


def taught(now: float) -> FleetMetrics:
    """Prefill at 0.1 ms a token: one replica is plenty for the half request a second."""
    row = StepDelta(now, 1.0, 10.0, prefill_tokens=10_000.0, prefill_requests=10.0)
    return metrics(now, 0.5, roles=(RoleMetrics("prefill", 3, (row,)), RoleMetrics("decode", 3)))


def play(state: ScalingState, supplies: tuple[RoleSupply, ...], begin: float, ticks: int):
    """The state after some ticks, and the last decision; replicas stay as given."""
    decision = None
    for i in range(ticks):
        now = begin + 2 * i
        state, decision = decide(state, Observations(taught(now), supplies), GOALS, now)
    return state, decision


def test_capacity_counts_as_a_guess_again_until_the_new_pods_were_measured() -> None:
    state, before = play(ScalingState(), supply(3, 3), START, 30)
    assert before.targets[0].replicas == 2
    rolling = tuple(replace(s, rolling=True) for s in supply(3, 3))
    state, during = play(state, rolling, START + 60, 12)
    assert during.targets[0].replicas == 3
    state, after = play(state, supply(3, 3), START + 84, 1)
    assert (after.targets[0].replicas, after.targets[0].rule) == (3, Rule.CAPACITY_GUESSED)
    _, later = play(state, supply(3, 3), START + 86, 12)
    assert later.targets[0].replicas == 2
