"""A fleet that nobody uses gives back its engine pods, and gets them again for the next request."""

from dataclasses import replace

import pytest

from argosy_operator.core.snapshot.actions import Scale
from argosy_operator.core.snapshot.pods import GatewayLoad, Pod, unheard
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.core.steps.draft import LOOK_AGAIN_S, StepReason
from tests.support.model import condition, converged

AFTER_S = 600.0
ZERO = {"scaleToZero": {"after": "10m", "wait": "5m"}}
SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
SPECS = {
    "colocated without an SLO": {},
    "colocated": {"slo": SLO},
    "disaggregated": {"slo": SLO, "mode": "disaggregated"},
    "policy None": {"slo": SLO, "autoscaling": {"policy": "None"}},
}
KINDS = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def fleet_of(spec):
    """A fleet that serves, and may go to zero."""
    return converged(**{**spec, "autoscaling": {**ZERO, **spec.get("autoscaling", {})}})


def idle(model, seconds=AFTER_S):
    model.says(GatewayLoad(0, seconds))


def at_zero(spec):
    model = fleet_of(spec)
    idle(model)
    model.converge()
    return model


def engines(model):
    return [pod for pod in model.pods.values() if pod.role != "gateway"]


def step_of(planned):
    return next(step for step in planned.draft.steps if step.name == "choose_targets")


@KINDS
def test_all_engine_pods_go_and_the_gateways_stay(spec):
    model = at_zero(spec)
    assert engines(model) == []
    assert len(model.pods) == 2
    last = model.fleet.status.autoscaling.last_decision
    assert last is not None
    assert (last.reason, set(last.to.values())) == ("ScaledToZero", {0})
    ready = condition(model, "Ready")
    assert (ready.status, ready.reason) == ("True", "ScaledToZero")
    assert condition(model, "Reconciling").status == "False"
    assert condition(model, "Stalled").status == "False"


@KINDS
def test_the_next_request_starts_the_fleet_in_one_round(spec):
    model = at_zero(spec)
    model.says(GatewayLoad(1, 0.0))
    planned = model.round()
    scaled = {action.kind for action in planned.actions if isinstance(action, Scale)}
    assert scaled == {"ServingRole", "Deployment"}
    assert step_of(planned).reason is StepReason.WAKING
    ready = condition(model, "Ready")
    assert (ready.status, ready.reason) == ("False", "Waking")
    assert condition(model, "Progressing").status == "True"
    assert condition(model, "Reconciling").status == "False"
    model.converge()
    roles = 2 if spec.get("mode") else 1
    assert len(engines(model)) == roles
    assert condition(model, "Ready").reason == "AsSpecified"


@KINDS
def test_a_fleet_at_zero_writes_nothing_and_rests(spec):
    model = at_zero(spec)
    before = model.fleet.status
    for _ in range(3):
        model.tick(200)
        planned = model.round()
        assert planned.actions == ()
        assert planned.wake_s == LOOK_AGAIN_S
        assert step_of(planned).reason is StepReason.AT_ZERO
        assert planned.memory.listen == tuple(
            (pod.name, pod.ip) for pod in model.pods.values() if pod.role == "gateway"
        )
    assert model.fleet.status == before


@KINDS
def test_a_new_operator_leaves_a_fleet_at_zero(spec):
    model = at_zero(spec)
    model.memory = LoopMemory()
    model.converge()
    assert engines(model) == []
    assert condition(model, "Ready").reason == "ScaledToZero"


@KINDS
def test_a_request_during_the_way_to_zero_calls_the_pods_back(spec):
    model = fleet_of(spec)
    before = {pod.uid for pod in engines(model)}
    idle(model)
    while not any(pod.draining for pod in engines(model)):
        model.requests = dict.fromkeys(before, 100)  # a stream that outlives the decision
        model.round()
        model.tick()
    model.says(GatewayLoad(1, 0.0))
    model.converge()
    assert {pod.uid for pod in engines(model)} == before
    assert model.lost == 0


@KINDS
def test_while_a_gateway_does_not_answer_nothing_is_removed(spec):
    model = fleet_of(spec)
    idle(model)
    silent = next(pod.name for pod in model.pods.values() if pod.role == "gateway")
    model.gateway_loads = {**model.gateway_loads, silent: None}
    for _ in range(20):
        model.round()
        model.tick(60)
    assert len(engines(model)) == (2 if spec.get("mode") else 1)


@KINDS
def test_at_zero_a_silent_gateway_starts_the_fleet_after_a_while(spec):
    model = at_zero(spec)
    model.gateway_loads = dict.fromkeys(model.gateway_loads)
    assert model.round().wake_s == 5
    model.tick(30)
    assert model.round().actions == ()
    model.tick(1)
    assert model.round().actions != ()


def test_a_new_revision_of_a_fleet_at_zero_starts_no_pod():
    model = at_zero({"slo": SLO})
    model.edit(engine={"maxNumSeqs": 32})
    model.converge()
    assert engines(model) == []
    assert condition(model, "Ready").reason == "ScaledToZero"


def test_a_fleet_without_an_slo_looks_again_when_it_may_be_idle():
    model = fleet_of({})
    idle(model, 450)
    assert model.round().wake_s == 150
    idle(model, 590)
    assert model.round().wake_s == 15


def test_the_figures_of_before_are_gone_at_zero():
    model = fleet_of({"slo": SLO})
    model.fleet = model.fleet.model_copy(
        update={"status": model.fleet.status.model_copy(update={"goodput": None})}
    )
    idle(model)
    model.converge()
    status = model.fleet.status
    assert (status.goodput, status.columns.slo, status.columns.reason) == (
        None,
        "Idle",
        "ScaledToZero",
    )


GATEWAY = Pod("g-1", "u-1", "gateway", "", ip="10.0.0.1")


@pytest.mark.parametrize(
    ("looks", "is_unheard"),
    [({}, True), ({"ready": False}, False), ({"terminating": True}, False)],
)
def test_only_a_ready_gateway_may_keep_a_request_unheard(looks, is_unheard):
    assert unheard((replace(GATEWAY, **looks),), {}) is is_unheard
    assert unheard((replace(GATEWAY, **looks),), {"g-1": GatewayLoad(0, 1.0)}) is False


def office_hours(model, **bounds):
    """A window that is always open, with these bounds."""
    window = {
        "name": "office",
        "start": "0 * * * *",
        "duration": "2h",
        "roles": {"colocated": bounds},
    }
    model.edit(autoscaling={**ZERO, "schedules": [window]})


@pytest.mark.parametrize("bounds", [{"min": 1}, {"min": 2}])
def test_a_window_with_a_minimum_keeps_the_fleet_from_zero_and_starts_it(bounds):
    model = fleet_of({})
    office_hours(model, **bounds)
    idle(model)
    model.converge()
    assert len(engines(model)) == bounds["min"]
    model = at_zero({})
    office_hours(model, **bounds)
    model.converge()
    assert len(engines(model)) == bounds["min"]
