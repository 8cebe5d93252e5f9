"""A change of replicas by the spec leaves what one by the law does: decision, record, Event."""

from dataclasses import replace
from itertools import pairwise

import pytest

from argosy_law.decide import decide
from argosy_law.goals import Goals
from argosy_law.observe import FleetMetrics, Observations, Value
from argosy_law.record import from_json
from argosy_law.state import ScalingState
from argosy_operator.core.plan import Plan
from argosy_operator.core.snapshot.actions import EventReason
from tests.support.model import Model, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}


def bounds(least: int, most: int) -> dict[str, object]:
    return {"colocated": {"replicas": {"min": least, "max": most}}}


def converged(**spec: object) -> Model:
    model = Model(fleet(**spec))
    model.converge()
    model.memory = replace(model.memory, decide_at=1e12)  # between two ticks of the law
    return model


def events(p: Plan) -> list[str]:
    return [n.message for n in p.events if n.reason == EventReason.SCALED]


def last(model: Model):
    return model.fleet.status.autoscaling.last_decision


@pytest.mark.parametrize(
    ("before", "after", "move", "rule"),
    [
        (bounds(1, 4), bounds(3, 4), "colocated 1 → 3", "MinReplicas"),
        (bounds(3, 4), bounds(1, 2), "colocated 3 → 2", "MaxReplicas"),
    ],
)
def test_a_change_by_min_or_max_leaves_a_decision_and_an_event(
    before: dict[str, object], after: dict[str, object], move: str, rule: str
) -> None:
    model = converged(slo=SLO, roles=before)
    model.edit(roles=after)
    (said,) = events(model.round())
    assert said.startswith(move)
    decision = last(model)
    assert decision is not None
    assert decision.bound_by == rule
    assert model.fleet.status.autoscaling.history[0].bound_by == rule
    model.converge()
    assert model.replicas("colocated") == int(move[-1])


def test_removing_the_slo_sends_an_event_when_replicas_go_to_their_minimum() -> None:
    model = converged(slo=SLO, roles=bounds(1, 4))
    grown(model, 3)
    model.edit(slo=None)
    (said,) = events(model.round())
    assert "colocated 3 → 1" in said
    assert last(model).bound_by == "NoSLO"


def grown(model: Model, replicas: int) -> None:
    """The law raised the fleet to so many."""
    model.children["ServingRole", "chat-colocated"] = model._with_replicas(
        "ServingRole", "chat-colocated", replicas
    )
    model.converge()
    model.memory = replace(model.memory, decide_at=1e12)


def test_such_a_record_replays_to_the_same_decision() -> None:
    model = converged(slo=SLO, roles=bounds(1, 4))
    model.edit(roles=bounds(3, 4))
    record = model.round().draft.record
    assert record is not None
    state, decision = decide(
        from_json(ScalingState, record["state"]),
        from_json(Observations, record["observations"]),
        from_json(Goals, record["goals"]),
        record["now"],
    )
    assert [t.replicas for t in decision.targets] == [3]
    assert state == model.memory.scaling


def test_a_change_of_bounds_does_not_postpone_the_next_decision() -> None:
    model = converged(slo=SLO, roles=bounds(1, 4))
    due, said = model.memory.decide_at, model.memory.decision
    model.edit(roles=bounds(3, 4))
    model.round()
    assert model.memory.decide_at == due
    assert model.memory.decision == said


def test_replicas_outside_the_bounds_under_external_send_one_event() -> None:
    model = converged(roles=bounds(1, 4), autoscaling={"policy": "External"})
    model.scale_role("colocated", 9)
    told = [n.message for n in model.round().events if "replicas.max" in n.message]
    assert told == [
        "ServingRole chat-colocated asks for 9 replicas and gets 4: "
        "spec.roles.colocated.replicas.max is 4"
    ]
    model.converge()
    assert model.replicas("colocated") == 4
    assert model.round().events == ()


def test_varying_traffic_does_not_write_status_at_every_decision() -> None:
    """Poisson noise over a rate window of seconds moves every figure by more than a tenth."""
    model = Model(fleet(slo=SLO))
    model.converge()
    statuses = []
    for i in range(60):
        wave = 1.0 + 0.4 * (i % 3)
        model.metrics = FleetMetrics(
            at=model.now,
            arrivals=Value(8.0 * wave, model.now),
            attainment=Value(0.99 - 0.02 * (i % 2), model.now),
            scored=50.0,
            ttft_p90_s=Value(0.4 * wave, model.now),
            tpot_p90_s=Value(0.02 * wave, model.now),
        )
        model.memory = replace(model.memory, decide_at=0.0)
        model.round()
        statuses.append(model.fleet.status)
        model.now += 2.0
    changes = sum(a != b for a, b in pairwise(statuses))
    assert 2 <= changes <= 5  # 120 s, at most one write in 30 s


def test_a_changed_verdict_is_written_at_once() -> None:
    model = Model(fleet(slo=SLO))
    model.converge()
    for share in (0.99, 0.5):
        model.metrics = FleetMetrics(
            at=model.now, arrivals=Value(8.0, model.now), attainment=Value(share, model.now)
        )
        model.memory = replace(model.memory, decide_at=0.0)
        model.round()
        model.now += 2.0
    assert model.fleet.status.columns.slo == "Missed"
    assert model.fleet.status.goodput.attainment == "0.500"
