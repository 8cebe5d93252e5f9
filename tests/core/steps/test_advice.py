"""With `advisory` the law decides, status shows it, and others set the replicas."""

from dataclasses import replace

from argosy_operator.core.snapshot.actions import Scale
from argosy_operator.core.status.compose import status_of
from argosy_operator.core.steps.draft import StepReason
from argosy_operator.core.steps.targets import bid_of
from tests.scaling.known import metrics
from tests.support.model import Model, condition, converged

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
WIDE = {"colocated": {"replicas": {"min": 1, "max": 8}, "resources": {"gpu": 1}}}
BUSY = 40.0
"""Requests per second, which take several replicas."""


def advised(*, advisory: bool = True, rate: float = BUSY, rounds: int = 4) -> Model:
    """A fleet whose law has seen this load; nobody else has scaled it."""
    model = converged(
        model={"uri": "sim://llama-70b-h100-tp4"},
        slo=SLO,
        roles=WIDE,
        autoscaling={"advisory": advisory},
    )
    for _ in range(rounds):
        measured(model, rate)
    return model


def measured(model: Model, rate: float) -> None:
    model.tick(15)
    model.metrics = metrics(model.now, rate, {"colocated": 1}, running=60.0)
    model.memory = replace(model.memory, decide_at=0.0)
    model.round()


def test_the_decision_is_shown_and_not_carried_out() -> None:
    model = advised()
    advice = model.fleet.status.autoscaling.advice
    assert advice is not None
    assert advice.from_ == {"colocated": 1}
    assert advice.to["colocated"] > 1
    assert model.fleet.status.autoscaling.last_decision is None
    assert model.replicas("colocated") == 1
    assert condition(model, "ScalingActive").reason == "ExternalOwner"
    assert condition(model, "MetricsAvailable").status == "True"


def test_others_scale_the_role_and_the_advice_begins_where_they_are() -> None:
    model = advised()
    model.scale_role("colocated", 3)
    planned = model.round()
    steps = {step.name: step.reason for step in planned.draft.steps}
    assert steps["choose_targets"] is StepReason.EXTERNAL_OWNER
    assert steps["scale_roles"] is StepReason.EXTERNAL_OWNER
    assert Scale("ServingRole", "chat-colocated", 1) not in planned.actions
    model.metrics = None
    model.converge()
    assert model.replicas("colocated") == 3
    measured(model, BUSY)
    advice = model.fleet.status.autoscaling.advice
    assert advice is not None
    assert advice.from_ == {"colocated": 3}


def test_the_advice_stays_as_it_is_until_it_is_another() -> None:
    model = advised()
    before = model.fleet.status.autoscaling.advice
    measured(model, BUSY * 1.001)
    assert model.fleet.status.autoscaling.advice == before
    assert model.round().actions == ()


def test_without_advisory_the_advice_is_gone_and_what_was_learnt_counts() -> None:
    model = advised()
    learnt = model.memory.scaling
    model.edit(autoscaling={})
    snapshot = model.snapshot()
    assert snapshot.memory.scaling == learnt
    model.round()
    assert model.fleet.status.autoscaling.advice is None


def test_it_asks_a_shared_budget_for_what_it_runs_only() -> None:
    model = advised()
    snapshot = model.snapshot()
    planned = model.round()
    assert bid_of(snapshot, planned.draft).wanted == 1
    assert status_of(snapshot, planned.draft, ()).autoscaling.advice is not None
