"""Every registered law keeps the promises of the protocol, in one closed loop."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest

from argosy_operator.core.scaling.decision import Rule
from argosy_operator.core.scaling.law import LAWS
from argosy_operator.core.scaling.observe import (
    FleetMetrics,
    Observations,
    RoleMetrics,
    RoleSupply,
    Unknown,
    Value,
)
from argosy_operator.core.scaling.rivals.hpa import (
    STABILIZATION,
    HorizontalPodAutoscaler,
    recommendation,
)
from argosy_operator.core.scaling.text.record import to_json
from tests.scaling.closed import Phase, Run, Setup, run
from tests.scaling.ramp import ENGINE, GOALS
from tests.scaling.test_decide import metrics, supply

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
    """The static law adds none: its replicas are its minimum."""
    unknown = FleetMetrics(at=1000.0, arrivals=Unknown("PrometheusAway"))
    have = supply(1, 1) if name == "static" else supply(3, 3)
    _, decision = LAWS[name].decide(LAWS[name].start, Observations(unknown, have), GOALS, 1000.0)
    assert [t.replicas for t in decision.targets] == [s.desired for s in have]


def test_laws_differ_under_the_same_load() -> None:
    peak = {}
    for name in LAWS:
        ticks = run(Setup(ENGINE, GOALS, cold_s=5, law=name), PHASES, seed=1).ticks
        peak[name] = max(tick.decision.replicas("prefill") for tick in ticks)
    assert peak["static"] == 1
    assert peak["goodput"] > 1
    assert peak["hpa"] > 1


@pytest.mark.parametrize(
    ("total", "wanted"),
    [
        (120.0, 4),  # 40 a replica: ratio 1.25
        (102.0, 3),  # ratio 1.06, within the tolerance
        (90.0, 3),  # ratio 0.94, within the tolerance
        (64.0, 2),  # ratio 0.67
        (192.0, 6),  # twice the target: twice the replicas
        (0.0, 0),
    ],
)
def test_the_documented_formula_of_the_hpa(total: float, wanted: int) -> None:
    assert recommendation(3, total, 3, 32.0) == wanted


def test_pods_without_a_value_soften_both_directions() -> None:
    assert recommendation(4, 192.0, 3, 32.0) == 6  # 2.0 over three pods, 1.5 over four
    assert recommendation(4, 110.0, 3, 32.0) == 4  # 1.15 over three pods is 0.86 over four
    assert recommendation(4, 32.0, 3, 32.0) == 2  # the missing pod counts as on target


def test_the_hpa_goes_down_by_the_largest_recommendation_of_five_minutes() -> None:
    law = HorizontalPodAutoscaler(prefill=4096.0, decode=32.0)
    have: tuple[RoleSupply, ...] = supply(1, 3)
    wide = replace(GOALS, roles=tuple(replace(g, max=10) for g in GOALS.roles))
    state, removed_at = law.start, None
    for i in range(40):
        now = 1000.0 + 15 * i
        running = Value(96.0 if i == 0 else 0.0, now)
        roles = (RoleMetrics("prefill", 1), RoleMetrics("decode", 3, running=running))
        seen = Observations(metrics(now, 1, roles=roles), have)
        state, decision = law.decide(state, seen, wide, now)
        if decision.replicas("decode") < 3:
            removed_at = now
            break
        assert decision.targets[1].rule in (Rule.DEMAND, Rule.HOLD)
    assert removed_at == 1000.0 + STABILIZATION.down_s
