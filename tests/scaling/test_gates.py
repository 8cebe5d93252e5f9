"""Every gate can be the one that keeps capacity, and none holds when all is well."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from argosy_law.decision import Rule
from argosy_law.estimate import capacity
from argosy_law.goals import Inputs
from argosy_law.observe import Observations, Unknown, Value
from argosy_law.pace.gates import GATES, RoleView, blocked_by
from argosy_law.size.pools import Limits, model_of
from argosy_law.size.sizing import Counts, Horizon, Load, size
from argosy_law.size.work import Work
from argosy_law.state import HoldState, Lengths, RoleState, ScalingState
from tests.scaling.known import LLAMA, USUAL, goals, metrics, supply

NOW = 1_000_000.0


def well() -> RoleView:
    """Six replicas of prefill where one is enough, measured for an hour: one may go."""
    estimate = replace(capacity.begin("prefill", LLAMA, USUAL), rows=100, steps=1000.0)
    replica = capacity.replica(estimate, 0.0)
    model = model_of("prefill", replica, Work(1000.0, 1e6, 200.0), Limits(1.0, 0.04, 0.9))
    (have,) = supply({"prefill": 6})
    needed = size(model, Load(1.0, 1000.0), Counts(1, 1), have, 0.9, Horizon(15.0, 60.0, 1.0))
    role = RoleState("prefill", estimate)
    state = ScalingState(valid_since=NOW - 3600, lengths=Lengths(1000.0, 1.0, 200.0, 0.0))
    seen = Observations(metrics(NOW, 1.0, {"prefill": 6}), (have,))
    return RoleView(role, state, {"prefill": needed}, Inputs(seen, goals(), USUAL, NOW))


def observing(view: RoleView, **metrics: object) -> RoleView:
    seen = view.inputs.observations
    changed = replace(seen, metrics=replace(seen.metrics, **metrics))  # type: ignore[arg-type]
    return replace(view, inputs=replace(view.inputs, observations=changed))


def supplied(view: RoleView, **pods: object) -> RoleView:
    seen = view.inputs.observations
    changed = replace(seen, supply=(replace(seen.supply[0], **pods),))  # type: ignore[arg-type]
    return replace(view, inputs=replace(view.inputs, observations=changed))


def silent_pods() -> RoleView:
    (role,) = well().metrics.roles
    return observing(well(), roles=(replace(role, pods_reporting=3),))


def backlogged() -> RoleView:
    (only,) = well().sizes.values()
    return replace(well(), sizes={"prefill": replace(only, rule=Rule.BACKLOG)})


def pending() -> RoleView:
    role = replace(well().role, holds=HoldState(raised_at=NOW - 10))
    return supplied(replace(well(), role=role), pending=1)


WORLDS: list[Callable[[], RoleView]] = [
    lambda: observing(well(), gateways_alone="PrometheusAway: it does not answer"),
    lambda: observing(well(), silent_gateways=("gateway-b",)),
    lambda: replace(well(), state=replace(well().state, valid_since=NOW - 1)),
    silent_pods,
    lambda: observing(well(), attainment=Unknown("NoSamples")),
    lambda: supplied(well(), mixed=True),
    lambda: replace(well(), state=replace(well().state, lengths=Lengths())),
    pending,
    backlogged,
    lambda: observing(well(), attainment=Value(0.5, NOW), ttft_attainment=Value(0.5, NOW)),
]


def test_no_gate_holds_when_all_is_well() -> None:
    assert blocked_by(well()) is None


@pytest.mark.parametrize("index", range(len(GATES)))
def test_each_gate_can_be_the_one_that_keeps_capacity(index: int) -> None:
    view = WORLDS[index]()
    gate = blocked_by(view)
    assert gate is GATES[index]
    assert gate.message(view)


def test_a_message_names_what_is_missing() -> None:
    for index, words in (
        (0, "PrometheusAway"),
        (1, "gateway-b"),
        (3, "3 of 6 ready pods"),
        (4, "attainment"),
    ):
        assert words in GATES[index].message(WORLDS[index]())


def test_an_idle_fleet_is_not_kept_for_a_capacity_that_was_not_measured() -> None:
    view = replace(well(), sizes={}, state=replace(well().state, lengths=Lengths()))
    assert blocked_by(view) is None


# --- where each gate begins -----------------------------------------------------------------------


def held_by(view: RoleView) -> Rule | None:
    gate = blocked_by(view)
    return gate.rule if gate else None


@pytest.mark.parametrize(
    ("reporting", "ready", "silent"),
    [(3, 6, True), (4, 6, False), (0, 0, False), (0, 1, True), (2, 3, False)],
)
def test_half_of_the_ready_pods_must_be_silent(reporting: int, ready: int, silent: bool) -> None:
    (role,) = well().metrics.roles
    seen = observing(
        supplied(well(), ready=ready), roles=(replace(role, pods_reporting=reporting),)
    )
    assert (blocked_by(seen) is GATES[3]) is silent


@pytest.mark.parametrize(
    ("share", "scored", "below"),
    [
        (0.86, 100.0, True),  # 0.9 less one standard error of 0.03 is 0.87
        (0.88, 100.0, False),
        (0.895, 10_000.0, True),
        (0.898, 10_000.0, False),
        (0.5, 4.0, True),
        (0.8, 4.0, False),
        (0.0, 0.0, False),  # no request was judged
    ],
)
def test_attainment_is_below_the_goal_by_more_than_its_standard_error(
    share: float, scored: float, below: bool
) -> None:
    measured = Value(share, NOW)
    view = observing(well(), attainment=measured, ttft_attainment=measured, scored=scored)
    assert held_by(view) is (Rule.ATTAINMENT_BELOW_GOAL if below else None)


def test_a_role_that_is_not_at_fault_may_shrink_while_the_fleet_misses_its_goal() -> None:
    view = observing(well(), attainment=Value(0.5, NOW), tpot_attainment=Value(0.5, NOW))
    assert held_by(view) is None
    unknown = observing(view, ttft_attainment=Unknown("NoSamples"))
    assert held_by(unknown) is not None


def test_only_reasons_that_leave_the_need_known_let_a_small_budget_take_replicas() -> None:
    known = {gate.rule for gate in GATES if gate.need_known}
    assert known == {Rule.BACKLOG, Rule.ATTAINMENT_BELOW_GOAL}
