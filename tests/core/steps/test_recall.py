"""What the law has learnt is in a ConfigMap of the fleet, and the next operator goes on with it."""

from dataclasses import replace

import pytest

from argosy_law.observe import FleetMetrics, Idle
from argosy_law.record import kept_of
from argosy_law.slo import Verdicts
from argosy_law.state import ScalingState
from argosy_operator.core.plan import Plan, conclude, plan
from argosy_operator.core.snapshot.actions import Apply, ErrorKind, Outcome
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.core.snapshot.pods import Start
from argosy_operator.core.snapshot.snapshot import LoopMemory
from tests.scaling import known
from tests.support.model import Model, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "40ms"}}
ROLES = {"colocated": {"replicas": {"min": 3, "max": 9}}}
FILE = ("ConfigMap", "chat-learnt")


def model_of(**spec: object) -> Model:
    model = Model(fleet(slo=SLO, roles=ROLES, **spec))
    model.converge()
    return model


def measured(model: Model, rate: float = 2.0) -> FleetMetrics:
    return known.metrics(model.now, rate, {"colocated": 3})


def decide(model: Model, seconds: float = 15.0, rate: float = 2.0) -> Plan:
    """The next decision, so many seconds later."""
    model.now += seconds
    model.metrics = measured(model, rate)
    model.memory = replace(model.memory, decide_at=0.0)
    return model.round()


def step(planned: Plan, name: str) -> tuple[str, str]:
    found = next(s for s in planned.draft.steps if s.name == name)
    return str(found.reason), found.message


def writes(planned: Plan) -> list[Object]:
    found = [a.obj for a in planned.actions if isinstance(a, Apply)]
    return [dict(obj) for obj in found if obj["metadata"]["name"] == "chat-learnt"]


def learnt(model: Model) -> ScalingState:
    return kept_of(model.children[FILE]["data"]["learnt.json"]).state


def kept_model() -> Model:
    """A fleet whose operator has written once."""
    model = model_of()
    for _ in range(12):
        decide(model)
    assert FILE in model.children
    return model


def test_the_first_write_comes_half_a_hold_after_the_first_metrics_and_then_in_that_pace() -> None:
    model = model_of()
    begin = model.now + 15
    written = []
    for _ in range(45):
        if writes(decide(model)):
            written.append(model.now - begin)
    assert written == [150.0, 300.0, 450.0, 600.0], "half of the default hold"


def test_the_next_operator_goes_on_with_what_was_learnt() -> None:
    model = kept_model()
    before = model.memory.scaling
    model.memory = LoopMemory()
    planned = decide(model)
    assert step(planned, "read_learnt") == ("LearntRead", "from ConfigMap chat-learnt")
    after = model.memory.scaling
    assert after.roles[0].estimate.rows >= before.roles[0].estimate.rows - 6
    assert after.valid_since is not None
    assert after.valid_since < model.now - 60, "the hold goes on"
    assert step(decide(model), "read_learnt")[0] == "NothingToRead"


def test_the_error_budget_goes_on_where_it_was() -> None:
    model = model_of()

    def judged() -> None:
        model.now += 15
        ended = Verdicts(model.now, 8.0, 10.0)
        model.metrics = replace(measured(model), verdicts=(ended,))
        model.memory = replace(model.memory, decide_at=0.0)
        model.round()

    for _ in range(20):
        judged()
    before = model.memory.errors
    budget = model.fleet.status.error_budget
    assert budget is not None
    assert (budget.used, budget.burn_rates["5m"]) == ("2.00", "2.0")
    model.memory, model.metrics = LoopMemory(), None
    model.round()
    assert model.fleet.status.error_budget == budget, "without metrics nothing is read"
    judged()
    after = model.memory.errors
    assert after.began == before.began
    lost = before.slots[-1][0][2] - after.slots[-1][0][2]
    assert lost <= 10.0 * 120 / 15, "at most what came since the last write"


def test_measured_starts_are_kept_too() -> None:
    model = model_of()
    model.memory = replace(
        model.memory, starts={"one": Start("colocated", 41.5, model.snapshot().revision)}
    )
    for _ in range(12):
        decide(model)
    model.memory = LoopMemory()
    decide(model)
    revision = model.snapshot().revision
    assert 41.5 in [one.seconds for one in model.memory.starts_of("colocated", revision)]
    for _ in range(12):
        decide(model)
    model.memory = LoopMemory()
    decide(model)
    starts = [one.seconds for one in model.memory.starts_of("colocated", revision)]
    assert starts.count(41.5) == 1


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2}', "x" * 100_000])
def test_what_cannot_be_read_is_an_event_and_the_law_begins_anew(text: str) -> None:
    model = kept_model()
    model.children[FILE] = {**model.children[FILE], "data": {"learnt.json": text}}
    model.memory = LoopMemory()
    planned = decide(model)
    assert step(planned, "read_learnt")[0] == "LearntUnreadable"
    (event,) = (e for e in planned.events if e.reason == "LearntUnreadable")
    assert event.warning
    assert "ConfigMap chat-learnt is not used: " in event.message
    assert model.memory.scaling.valid_since == model.now
    for _ in range(12):
        planned = decide(model)
        assert not [e for e in planned.events if e.reason == "LearntUnreadable"]
    assert learnt(model) != ScalingState(), "it was written over"


def test_a_configmap_of_another_owner_is_not_read() -> None:
    model = kept_model()
    metadata = {**model.children[FILE]["metadata"], "ownerReferences": [{"uid": "other"}]}
    model.children[FILE] = {**model.children[FILE], "metadata": metadata}
    model.memory = LoopMemory()
    assert step(decide(model), "read_learnt")[0] == "NothingToRead"


def without_requests(model: Model) -> Plan:
    model.now += 15
    model.metrics = replace(measured(model), arrivals=Idle(model.now), bins=())
    model.memory = replace(model.memory, decide_at=0.0)
    return model.round()


def test_a_fleet_is_written_no_more_from_the_first_round_without_requests() -> None:
    model = kept_model()
    assert [writes(without_requests(model)) for _ in range(60)] == [[]] * 60
    assert writes(decide(model)), "half a hold is over, and a request came"


def test_a_change_of_replicas_is_kept_at_once_but_not_twice_in_thirty_seconds() -> None:
    model = kept_model()
    decide(model, 15.0)
    planned = decide(model, 15.0, rate=60.0)
    assert planned.draft.scaled
    assert len(writes(planned)) == 1
    assert learnt(model).roles[0].holds.raised_at == model.now
    planned = decide(model, 15.0, rate=120.0)
    assert writes(planned) == []


def test_a_write_that_fails_is_tried_again_at_the_next_decision() -> None:
    model = model_of()
    while True:
        model.now += 15
        model.metrics = measured(model)
        model.memory = replace(model.memory, decide_at=0.0)
        snapshot = model.snapshot()
        planned = plan(snapshot)
        if writes(planned):
            break
        model.memory = conclude(snapshot, planned, ()).memory
    (action,) = (a for a in planned.actions if isinstance(a, Apply))
    failed = conclude(snapshot, planned, (Outcome(action, ErrorKind.FORBIDDEN, "no"),))
    assert failed.memory.learnt_at < model.now
    assert "Apply ConfigMap/chat-learnt" in failed.memory.failed
    done = conclude(snapshot, planned, (Outcome(action),))
    assert done.memory.learnt_at == model.now
