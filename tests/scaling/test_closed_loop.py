"""The law in a closed loop with a simulated fleet, at a demo's speed, several seeds."""

import pytest

from argosy_law.decide import decide
from argosy_law.decision import Decision
from argosy_law.goals import Goals
from argosy_law.observe import Observations
from argosy_law.record import from_json, to_json
from argosy_law.state import ScalingState
from tests.scaling.closed import Phase, Run
from tests.scaling.ramp import GOALS, play

SETTLING_S = 20


@pytest.fixture(scope="module", params=range(3))
def ramp(request: pytest.FixtureRequest) -> Run:
    return play(request.param)


def test_every_phase_meets_its_goal_once_settled(ramp: Run) -> None:
    for start, end in zip(ramp.bounds, ramp.bounds[1:], strict=False):
        assert ramp.attainment(start + SETTLING_S, end) >= 0.9


def test_prefill_follows_the_prompts_and_decode_the_answers(ramp: Run) -> None:
    _, mix_at, low_at = ramp.bounds[1:4]
    assert max(n for at, n in ramp.replicas("prefill") if at < mix_at) >= 2
    assert max(n for at, n in ramp.replicas("decode") if mix_at < at < low_at) >= 2


def test_both_roles_are_back_at_their_minimum_within_the_last_phase(ramp: Run) -> None:
    last = ramp.ticks[-1].decision
    assert (last.replicas("prefill"), last.replicas("decode")) == (1, 1)


def test_replicas_do_not_flap(ramp: Run) -> None:
    assert ramp.reversals("prefill") <= 5
    assert ramp.reversals("decode") <= 5


def test_a_fourfold_step_is_answered_within_ten_seconds(ramp: Run) -> None:
    """1 → 4 requests/s."""
    step = ramp.bounds[1]
    assert any(n >= 2 for at, n in ramp.replicas("prefill") if step < at <= step + 10)


@pytest.mark.parametrize("rate", [1.5, 6.0])
def test_steady_poisson_load_is_answered_with_steady_replicas(rate: float) -> None:
    run = play(7, (Phase(150, rate, 2000, 60),))
    settled = [n for at, n in run.replicas("prefill") if at > run.bounds[0] + 60]
    assert max(settled) - min(settled) <= 1
    assert run.reversals("prefill") <= 4


def test_every_record_replays_to_the_same_decision(ramp: Run) -> None:
    for tick in ramp.ticks[::7]:
        state = from_json(ScalingState, to_json(tick.before))
        seen = from_json(Observations, to_json(tick.observations))
        goals = from_json(Goals, to_json(GOALS))
        _, again = decide(state, seen, goals, tick.at)
        assert again == tick.decision
        assert from_json(Decision, to_json(again)) == again
