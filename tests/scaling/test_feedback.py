"""Measured attainment corrects the formulas, slowly, and never while the load rises."""

from dataclasses import replace

import pytest

from argosy_law.decide import decide
from argosy_law.estimate import capacity
from argosy_law.estimate.demand import DemandState
from argosy_law.goals import Inputs
from argosy_law.observe import FleetMetrics, Observations, RoleSupply
from argosy_law.signals import learning
from argosy_law.state import RoleState, ScalingState
from argosy_operator.api.v1alpha1 import RoleName
from tests.scaling.known import POOLS, START, UNKNOWN, USUAL, goals, metrics

HAVE: dict[RoleName, int] = {"prefill": 1, "decode": 1}


def role(headroom: float = 1.0) -> RoleState:
    begun = capacity.begin("decode", None, USUAL)
    return RoleState("decode", begun, headroom=headroom)


def seen(attainment: float, tpot: float = 1.0) -> FleetMetrics:
    return metrics(START, 1.0, HAVE, attainment=attainment, tpot_attainment=tpot)


@pytest.mark.parametrize(
    ("attainment", "full", "trimmed"),
    [(0.9, False, True), (0.9, True, True), (0.89, False, True), (0.89, True, False)],
)
def test_a_role_that_meets_its_limit_is_trimmed_unless_it_may_be_why_the_fleet_misses_its_goal(
    attainment: float, full: bool, trimmed: bool
) -> None:
    after = learning.corrected_headroom(role(), seen(attainment), 0.9, full=full)
    assert (after < 1.0) == trimmed


@pytest.mark.parametrize(
    ("attainment", "tpot", "full", "fault"),
    [
        (0.9, 0.5, True, False),  # the fleet meets its goal
        (0.89, 0.94, False, True),
        (0.89, 0.95, False, False),
        (0.89, 0.95, True, True),
    ],
)
def test_a_role_is_at_fault_where_its_own_limit_is_missed_or_it_has_no_room(
    attainment: float, tpot: float, full: bool, fault: bool
) -> None:
    decode = replace(role(), aim=0.95)
    assert learning.at_fault(decode, seen(attainment, tpot), 0.9, full=full) is fault
    unmeasured = replace(seen(attainment), tpot_attainment=UNKNOWN)
    assert learning.at_fault(decode, unmeasured, 0.9, full=False) is (attainment < 0.9)


def test_nothing_is_trimmed_while_the_load_rises_and_what_misses_still_grows() -> None:
    assert learning.corrected_headroom(role(), seen(1.0), 0.9, rising=True) == 1.0
    assert learning.corrected_headroom(role(), seen(1.0, 0.8), 0.9, rising=True) > 1.0


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
        assert learning.headroom_in_force(role(trimmed), rose, inputs(now), full=False) == factor
    steady = ScalingState()
    assert learning.headroom_in_force(role(trimmed), steady, inputs(START), full=True) == trimmed
    misses = inputs(START, attainment=0.8)
    for full, factor in ((True, in_force), (False, trimmed)):
        assert learning.headroom_in_force(role(trimmed), steady, misses, full=full) == factor


def aims(goal: float = 0.9, **shares: float) -> dict[str, float | None]:
    """What roles aim at whose sizes were chosen for these shares."""
    roles = tuple(RoleState(name, capacity.begin(name, None, USUAL)) for name in POOLS)
    chosen: dict[RoleName, float] = {name: shares[name] for name in POOLS if name in shares}
    return {r.role: r.aim for r in learning.aimed(ScalingState(roles=roles), chosen, goal).roles}


def test_roles_divide_what_may_be_missed_as_their_sizes_would_miss() -> None:
    """Nine of a hundred may be missed, with a tenth of the allowed ten in reserve."""
    assert aims(prefill=0.93, decode=0.99) == pytest.approx(
        {"prefill": 1 - 0.09 * 7 / 8, "decode": 1 - 0.09 / 8}
    )
    assert aims(prefill=0.93, decode=0.93) == pytest.approx({"prefill": 0.955, "decode": 0.955})
    assert aims(0.8, prefill=1.0, decode=1.0) == pytest.approx({"prefill": 0.91, "decode": 0.91})


@pytest.mark.parametrize(("share", "sign"), [(0.94, 1), (0.95, 0), (0.96, -1)])
def test_a_role_is_corrected_to_its_own_aim(share: float, sign: int) -> None:
    after = learning.corrected_headroom(replace(role(), aim=0.95), seen(0.9, share), 0.9)
    assert (after > 1.0) - (after < 1.0) == sign


def test_a_decision_sets_the_aims_for_the_next_one() -> None:
    supply = tuple(RoleSupply(name, 3, 3) for name in POOLS)
    state, decision = decide(
        ScalingState(),
        Observations(metrics(START, 30.0, HAVE, prompt_tokens_squared=6e6), supply),
        goals(),
        START,
    )
    shares = {c.role: c.attainment for t in decision.targets for c in decision.candidates
              if c.role == t.role and c.replicas == t.demanded}  # fmt: skip
    missed = sum(1 - share for share in shares.values())
    assert missed > 0
    for found in state.roles:
        part = min(max((1 - shares[found.role]) / missed, 0.1), 0.9)
        assert found.aim == pytest.approx(1 - 0.09 * part, abs=2e-3)
