"""Every registered law keeps the promises of the protocol, in one closed loop."""

import json
from copy import deepcopy

import pytest

from argosy_law.observe import (
    FleetMetrics,
    Observations,
    Unknown,
)
from argosy_law.record import to_json
from argosy_law.sim.laws import LAWS
from tests.scaling.closed import Phase, Run, Setup, run
from tests.scaling.ramp import ENGINE, GOALS
from tests.scaling.test_decide import supply

PHASES = (Phase(20, 1.0, 2000, 60), Phase(40, 6.0, 2000, 200), Phase(40, 0.5, 200, 60))


@pytest.fixture(scope="module", params=sorted(LAWS))
def played(request: pytest.FixtureRequest) -> tuple[str, Run]:
    return request.param, run(Setup(ENGINE, GOALS, cold_s=5, law=request.param), PHASES, seed=1)


def test_equal_arguments_give_equal_answers_and_are_not_changed(played: tuple[str, Run]) -> None:
    name, ticks = played[0], played[1].ticks
    for tick in ticks[::5]:
        before = deepcopy(tick.before)
        first = LAWS[name].decide(tick.before, tick.observations, GOALS, tick.at)
        second = LAWS[name].decide(tick.before, tick.observations, GOALS, tick.at)
        assert first == second
        assert first[1] == tick.decision
        assert tick.before == before


def test_every_target_is_within_the_bounds_of_its_role(played: tuple[str, Run]) -> None:
    for tick in played[1].ticks:
        assert {t.role for t in tick.decision.targets} == {goal.role for goal in GOALS.roles}
        for goal in GOALS.roles:
            assert goal.min <= tick.decision.replicas(goal.role) <= goal.max


def test_every_decision_can_be_recorded_and_says_why(played: tuple[str, Run]) -> None:
    for tick in played[1].ticks[::5]:
        assert json.loads(json.dumps(to_json(tick.decision)))["targets"]
        json.dumps(to_json(tick.before), allow_nan=False)
        assert all(target.message for target in tick.decision.targets)


@pytest.mark.parametrize("name", sorted(LAWS))
def test_unknown_metrics_remove_no_replica_that_a_law_has_added(name: str) -> None:
    unknown = FleetMetrics(at=1000.0, arrivals=Unknown("PrometheusAway"))
    have = supply(3, 3)
    _, decision = LAWS[name].decide(LAWS[name].start, Observations(unknown, have), GOALS, 1000.0)
    assert [t.replicas for t in decision.targets] == [s.desired for s in have]


def test_laws_differ_under_the_same_load() -> None:
    peak = {}
    for name in LAWS:
        ticks = run(Setup(ENGINE, GOALS, cold_s=5, law=name), PHASES, seed=1).ticks
        peak[name] = max(tick.decision.replicas("prefill") for tick in ticks)
    assert peak["goodput"] > 1
    assert peak["hpa"] > 1
