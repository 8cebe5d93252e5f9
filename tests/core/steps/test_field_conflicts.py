"""Another manager writes a field of ours each time that it is put back: a tug of war."""

import pytest

from argosy_operator.core.snapshot.actions import Apply, EventReason, Scale, key_of
from argosy_operator.core.snapshot.snapshot import role_of
from argosy_operator.core.steps.failures import (
    FREE,
    LONGEST_PAUSE_S,
    QUIET_S,
    pause_s,
)
from tests.support.model import Model, condition, converged

SERVICE = ("Service", "chat")
FIELD = {"f:spec": {"f:ports": {'k:{"port":80}': {"f:targetPort": {}}}}}


def alice_edits(model: Model) -> None:
    child = model.children[SERVICE]
    ports = [{**port, "targetPort": 9999} for port in child["spec"]["ports"]]
    entry = {"manager": "alice", "time": "2026-01-01T00:00:00Z", "fieldsV1": FIELD}
    meta = {**child["metadata"], "managedFields": [entry]}
    model.children[SERVICE] = {**child, "metadata": meta, "spec": {**child["spec"], "ports": ports}}


def is_edited(model: Model) -> bool:
    return model.children[SERVICE]["spec"]["ports"][0]["targetPort"] == 9999


def fight(model: Model, for_s: float, each_s: float = 0.1) -> tuple[int, list[str]]:
    """A stranger's watch answers each of our writes at once; our own wakes us as fast."""
    writes, told, end = 0, [], model.now + for_s
    while model.now < end:
        alice_edits(model)
        p = model.round()
        writes += sum(isinstance(action, Apply) for action in p.actions)
        told += [event.message for event in p.events if event.reason == EventReason.PUT_BACK]
        model.tick(each_s)
    return writes, told


@pytest.mark.long
@pytest.mark.slow
def test_a_tug_of_war_over_one_field_is_few_writes_with_an_event_for_each_step() -> None:
    model = converged()
    writes, told = fight(model, 10.0)
    assert FREE <= writes <= FREE + 4
    assert all("alice changed" in message for message in told)
    assert len(told) == writes - FREE + 2, "the first, and each that waits"
    writes, told = fight(model, 3600.0, each_s=5.0)
    assert writes <= 3600 / LONGEST_PAUSE_S + 10
    assert len(told) < 10, "an Event an hour once the pause grows no more"


@pytest.mark.slow
def test_a_condition_names_who_changes_what_and_stays_as_it_is() -> None:
    model = converged()
    assert condition(model, "FieldConflict").status == "False"
    fight(model, 10.0)
    said = condition(model, "FieldConflict")
    assert said.status == "True"
    assert "alice changed spec.ports" in said.message
    assert "Service chat" in said.message
    fight(model, 200.0, each_s=1.0)
    assert condition(model, "FieldConflict") == said


def test_when_the_other_side_is_quiet_the_field_is_ours_and_the_condition_goes() -> None:
    model = converged()
    fight(model, 100.0, each_s=1.0)
    alice_edits(model)
    p = model.round()
    assert p.wake_s <= LONGEST_PAUSE_S
    model.tick(LONGEST_PAUSE_S)
    model.round()
    assert not is_edited(model)
    p = model.round()
    assert p.wake_s <= QUIET_S
    model.tick(QUIET_S)
    model.round()
    assert condition(model, "FieldConflict").status == "False"
    alice_edits(model)
    model.round()
    assert not is_edited(model), "a mistake is put back at once again"


def test_an_edit_of_the_spec_does_not_wait_for_a_contest() -> None:
    model = converged()
    fight(model, 60.0, each_s=1.0)
    alice_edits(model)
    model.edit(routing={"replicas": 5})
    actions = model.round().actions
    assert any("Deployment/chat-gateway" in key_of(action) for action in actions)


@pytest.mark.slow
def test_a_child_that_is_deleted_each_time_is_back_within_seconds() -> None:
    """Ever more slowly, too, but the fleet may not serve without it."""
    model = converged()
    writes = missing = 0
    for _ in range(600):
        model.children.pop(SERVICE, None)
        writes += sum(isinstance(action, Apply) for action in model.round().actions)
        missing = 0 if SERVICE in model.children else missing + 1
        assert missing <= 51, "tenths of a second"
        model.tick(0.1)
    assert FREE <= writes <= FREE + 4 + 60 / 5


@pytest.mark.parametrize("kind", ["ServingRole", "Deployment"])
def test_a_number_that_another_scaler_turns_each_time_is_put_back_ever_more_slowly(
    kind: str,
) -> None:
    model = converged(autoscaling={"policy": "None"})
    (key,) = [
        (of, name)
        for (of, name), child in model.children.items()
        if of == kind and role_of(child) == "colocated"
    ]
    writes = 0
    for _ in range(100):
        live = model._with_replicas(*key, 0)
        owner = {"manager": "hpa", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        model.children[key] = {**live, "metadata": {**live["metadata"], "managedFields": [owner]}}
        writes += sum(isinstance(action, Scale) for action in model.round().actions)
        model.tick(0.1)
    assert FREE <= writes <= FREE + 5


@pytest.mark.parametrize(
    ("times", "waits_s"),
    [(1, 0), (4, 0), (5, 1), (6, 2), (7, 4), (8, 8), (9, 16), (10, 32), (11, 60), (5000, 60)],
)
def test_five_reverts_are_free_and_then_each_waits_twice_as_long(times: int, waits_s: int) -> None:
    assert pause_s(times, 60.0) == waits_s
    assert pause_s(times, 5.0) == min(waits_s, 5), "a child that is missing"
