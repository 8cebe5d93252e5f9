"""When a fleet that nobody uses has no replicas, and when it starts again."""

from dataclasses import replace

import pytest

from argosy_law.decide import decide
from argosy_law.decision import Rule
from argosy_law.goals import RoleGoal
from argosy_law.observe import Front, Observations, RoleSupply, unknown_metrics
from argosy_law.pace.schedules import UNHEARD_S
from argosy_law.state import ScalingState
from tests.scaling.known import POOLS, START, goals, metrics, supply

AFTER_S = 600.0
BOTH = {"prefill": 2, "decode": 3}
NONE = {"prefill": 0, "decode": 0}
QUIET = Front(in_flight=0, idle_s=AFTER_S)


def law(**more):
    roles = (RoleGoal("prefill", 1, 8), RoleGoal("decode", 2, 8))
    return replace(goals(roles=POOLS), roles=roles, zero_after_s=AFTER_S, **more)


def decided(front, have=BOTH, *, seen=None, pods=None, **more):
    seen = seen or metrics(START, 0.0, {role: max(n, 1) for role, n in have.items()})
    looked = Observations(seen, pods or supply(have), front)
    return decide(ScalingState(), looked, law(**more), START)[1]


def targets(decision):
    return {target.role: target.replicas for target in decision.targets}


def test_all_replicas_go_when_no_gateway_has_had_a_request_for_the_time():
    decision = decided(QUIET)
    assert targets(decision) == NONE
    assert decision.rule is Rule.SCALED_TO_ZERO
    assert decision.message == (
        "prefill 2 → 0 (ScaledToZero: no gateway has had a request for 600 s "
        "(spec.autoscaling.scaleToZero.after)); decode 3 → 0 (ScaledToZero: no gateway has had a "
        "request for 600 s (spec.autoscaling.scaleToZero.after))"
    )


@pytest.mark.parametrize(
    "front",
    [
        Front(),
        Front(in_flight=0, idle_s=None),
        Front(in_flight=0, idle_s=AFTER_S - 0.001),
        Front(in_flight=1, idle_s=AFTER_S),
    ],
    ids=["not asked", "unknown", "too short", "in use"],
)
def test_without_evidence_that_nobody_uses_the_fleet_the_law_decides(front):
    decision = decided(front)
    assert decision.rule not in (Rule.SCALED_TO_ZERO, Rule.WAKING)
    assert all(replicas > 0 for replicas in targets(decision).values())


@pytest.mark.parametrize(
    "pods",
    [
        (RoleSupply("prefill", 2, 0), RoleSupply("decode", 3, 3)),
        (RoleSupply("prefill", 2, 2), RoleSupply("decode", 3, 3, rolling=True)),
    ],
    ids=["not serving", "rolling"],
)
def test_a_fleet_that_does_not_serve_or_is_being_replaced_keeps_its_pods(pods):
    assert decided(QUIET, pods=pods).rule is not Rule.SCALED_TO_ZERO


def test_a_fleet_without_the_field_never_goes_to_zero():
    looked = Observations(metrics(START, 0.0, BOTH), supply(BOTH), QUIET)
    decision = decide(ScalingState(), looked, replace(law(), zero_after_s=None), START)[1]
    assert targets(decision) == BOTH


@pytest.mark.parametrize(
    "front",
    [
        Front(),
        QUIET,
        Front(in_flight=0, idle_s=0.5),
        Front(in_flight=0, idle_s=None, unheard_s=UNHEARD_S),
    ],
    ids=["not asked", "quiet", "its client left", "unheard"],
)
def test_at_zero_it_stays_there_while_no_request_waits(front):
    decision = decided(front, NONE)
    assert (targets(decision), decision.rule) == (NONE, Rule.SCALED_TO_ZERO)
    assert not decision.changed


def test_a_request_starts_the_fewest_replicas_that_the_spec_allows():
    decision = decided(Front(in_flight=1, idle_s=0.0), NONE)
    assert targets(decision) == {"prefill": 1, "decode": 2}
    assert decision.rule is Rule.WAKING
    assert "prefill 0 → 1 (Waking: requests wait in the gateways)" in decision.message


def test_a_gateway_that_is_silent_for_long_starts_the_fleet():
    """Requests may wait there, and nobody would see them."""
    decision = decided(Front(unheard_s=UNHEARD_S + 0.1), NONE)
    assert (targets(decision), decision.rule) == (
        {"prefill": 1, "decode": 2},
        Rule.WAKING,
    )
    assert "a ready gateway has not answered the operator for more than 30 s" in decision.message


def test_a_schedule_keeps_a_fleet_from_zero_and_starts_it_from_there():
    awake = replace(
        law(), roles=(RoleGoal("prefill", 1, 8, min_schedule="day"), RoleGoal("decode", 2, 8))
    )
    quiet = Observations(metrics(START, 0.0, BOTH), supply(BOTH), QUIET)
    assert decide(ScalingState(), quiet, awake, START)[1].rule is not Rule.SCALED_TO_ZERO
    asleep = Observations(unknown_metrics(START, "NoTargets"), supply(NONE), QUIET)
    decision = decide(ScalingState(), asleep, awake, START)[1]
    assert targets(decision) == {"prefill": 1, "decode": 2}
    assert decision.rule is Rule.WAKING
    assert "schedule day asks for replicas" in decision.message
