"""Measured attainment corrects the formulas, slowly, and never while the load rises."""

from dataclasses import replace

import pytest

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.estimate import capacity
from argosy_operator.core.scaling.estimate.demand import DemandState
from argosy_operator.core.scaling.goals import Inputs
from argosy_operator.core.scaling.observe import FleetMetrics, Observations, RoleSupply, Unknown
from argosy_operator.core.scaling.signals import learning
from argosy_operator.core.scaling.state import RoleState, ScalingState
from tests.scaling.known import POOLS, START, USUAL, goals, metrics

HAVE: dict[RoleName, int] = {"prefill": 1, "decode": 1}


def role(headroom: float = 1.0) -> RoleState:
    begun = capacity.begin("decode", None, USUAL)
    return RoleState("decode", begun, headroom=headroom)


def seen(attainment: float, tpot: float = 1.0) -> FleetMetrics:
    return metrics(START, 1.0, HAVE, attainment=attainment, tpot_attainment=tpot)


def test_a_role_that_meets_its_limit_is_trimmed_only_while_the_fleet_meets_its_goal() -> None:
    assert learning.corrected_headroom(role(), seen(0.9), 0.9) < 1.0
    assert learning.corrected_headroom(role(), seen(0.89), 0.9) == 1.0


def test_nothing_is_trimmed_while_the_load_rises_and_what_misses_still_grows() -> None:
    assert learning.corrected_headroom(role(), seen(1.0), 0.9, rising=True) == 1.0
    assert learning.corrected_headroom(role(), seen(1.0, 0.8), 0.9, rising=True) > 1.0


def test_a_goal_of_which_nothing_is_known_is_not_missed() -> None:
    unknown = replace(seen(0.0), attainment=Unknown("NoSamples"))
    assert not learning.misses(unknown, 0.9)
    assert learning.misses(seen(0.89), 0.9)
    assert not learning.misses(seen(0.9), 0.9)


def inputs(now: float, attainment: float = 1.0) -> Inputs:
    supply = tuple(RoleSupply(name, 1, 1) for name in POOLS)
    return Inputs(Observations(seen(attainment), supply), goals(), USUAL, now)


@pytest.mark.parametrize(("trimmed", "in_force"), [(0.9, 1.0), (1.05, 1.05)])
def test_what_was_trimmed_is_given_back_while_the_load_rises_and_for_a_start_after(
    trimmed: float, in_force: float
) -> None:
    """A start of 15 s, an interval and a scrape of 15 s each."""
    rose = ScalingState(demand=DemandState(rose_at=START))
    for now, factor in ((START + 45, in_force), (START + 46, trimmed)):
        assert learning.headroom_in_force(role(trimmed), rose, inputs(now)) == factor
    assert learning.headroom_in_force(role(trimmed), ScalingState(), inputs(START)) == trimmed


def test_what_was_trimmed_is_given_back_while_the_goal_is_missed() -> None:
    for share, factor in ((0.89, 1.0), (0.9, 0.9)):
        found = learning.headroom_in_force(role(0.9), ScalingState(), inputs(START, share))
        assert found == factor
