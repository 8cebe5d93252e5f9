"""Every gate can be the one that keeps capacity, and none holds when all is well."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from argosy_operator.core.scaling.decision import Rule
from argosy_operator.core.scaling.estimate import capacity
from argosy_operator.core.scaling.goals import Inputs
from argosy_operator.core.scaling.observe import Observations, RoleMetrics, Unknown, Value
from argosy_operator.core.scaling.pace.gates import GATES, RoleView, blocked_by
from argosy_operator.core.scaling.size.model import Limits, model_of
from argosy_operator.core.scaling.size.sizing import Counts, Horizon, Load, size
from argosy_operator.core.scaling.size.work import Work
from argosy_operator.core.scaling.state import HoldState, Lengths, RoleState, ScalingState
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
    lambda: observing(well(), silent_gateways=("gateway-b",)),
    lambda: replace(well(), state=replace(well().state, valid_since=NOW - 1)),
    silent_pods,
    lambda: observing(well(), attainment=Unknown("NoSamples")),
    lambda: supplied(well(), rolling=True),
    lambda: replace(well(), state=replace(well().state, lengths=Lengths())),
    pending,
    backlogged,
    lambda: observing(well(), attainment=Value(0.5, NOW)),
]


def test_every_gate_has_a_world() -> None:
    assert len(WORLDS) == len(GATES)


def test_no_gate_holds_when_all_is_well() -> None:
    assert blocked_by(well()) is None


@pytest.mark.parametrize("index", range(len(GATES)))
def test_each_gate_can_be_the_one_that_keeps_capacity(index: int) -> None:
    view = WORLDS[index]()
    gate = blocked_by(view)
    assert gate is GATES[index]
    assert gate.message(view)


def test_a_message_names_what_is_missing() -> None:
    for index, words in ((0, "gateway-b"), (2, "3 of 6 ready pods"), (3, "attainment")):
        assert words in GATES[index].message(WORLDS[index]())


def test_an_idle_fleet_is_not_kept_for_a_capacity_that_was_not_measured() -> None:
    view = replace(well(), sizes={}, state=replace(well().state, lengths=Lengths()))
    assert blocked_by(view) is None


def test_attainment_that_no_number_of_replicas_gives_keeps_none() -> None:
    (only,) = well().sizes.values()
    hopeless = replace(only, model=replace(only.model, limit_s=1e-6))  # type: ignore[call-arg]
    view = replace(well(), sizes={"prefill": hopeless})
    assert blocked_by(observing(view, attainment=Value(0.0, NOW))) is None


def test_pods_that_all_report_are_enough() -> None:
    assert blocked_by(observing(well(), roles=well().metrics.roles)) is None
    none = observing(well(), roles=(RoleMetrics("prefill"),))
    assert blocked_by(none) is GATES[2]
