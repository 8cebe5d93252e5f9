"""Children are as rendered: a hand edit goes back, what others add stays."""

from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.core.plan import Plan, conclude, plan
from argosy_operator.core.snapshot.actions import (
    Apply,
    Create,
    ErrorKind,
    Event,
    EventReason,
    Outcome,
)
from argosy_operator.render.common import Images
from tests.support.model import Model, converged, fleet

WIDE = {"colocated": {"replicas": {"min": 1, "max": 4}}}


def engine(model: Model) -> str:
    (name,) = (n for k, n in model.children if k == "Deployment" and n != "chat-gateway")
    return name


def edited(model: Model, kind: str, name: str, path: tuple[str | int, ...], value: Any) -> None:
    """Alice writes this field of a child; None removes it."""

    def write(at: Any, steps: tuple[str | int, ...]) -> Any:
        if not steps:
            return value
        step, rest = steps[0], steps[1:]
        if isinstance(step, int):
            return [write(x, rest) if n == step else x for n, x in enumerate(at)]
        found = {**at, step: write(at.get(step, {}), rest)}
        return {key: x for key, x in found.items() if x is not None}

    child = write(model.children[kind, name], path)
    owned: dict[str, Any] = {}
    for step in reversed([step for step in path if isinstance(step, str)]):
        owned = {f"f:{step}": owned}
    entry = {"manager": "alice", "time": "2026-01-01T00:00:00Z", "fieldsV1": owned}
    meta = {**child["metadata"], "managedFields": [entry]}
    model.children[kind, name] = {**child, "metadata": meta}


def said(planned: Plan, step: str = "apply_children") -> str:
    return next(f"{s.reason}: {s.message}" for s in planned.draft.steps if s.name == step)


EDITS: dict[str, tuple[str, str, tuple[str | int, ...], Any, str]] = {
    "a field of the Service": (
        "Service", "chat", ("spec", "type"), "NodePort", "spec.type",
    ),
    "a label": (
        "Service", "chat", ("metadata", "labels", "serving.argosy.dev/role"), "x",
        "metadata.labels.serving.argosy.dev/role",
    ),
    "the selector of a disruption budget": (
        "PodDisruptionBudget", "chat-colocated",
        ("spec", "selector", "matchLabels", "serving.argosy.dev/fleet"), "other",
        "spec.selector.matchLabels.serving.argosy.dev/fleet",
    ),
    "a field of the gateway's Deployment": (
        "Deployment", "chat-gateway", ("spec", "template", "spec", "serviceAccountName"), "admin",
        "spec.template.spec.serviceAccountName",
    ),
    "the role that a ServingRole is of": (
        "ServingRole", "chat-colocated", ("spec", "role"), "decode", "spec.role",
    ),
}  # fmt: skip
"""Object, field, value, and the field as the Event writes it."""


@pytest.mark.parametrize(("kind", "name", "path", "value", "field"), EDITS.values(), ids=EDITS)
def test_a_hand_edit_is_put_back_and_its_author_named(
    kind: str, name: str, path: tuple[str | int, ...], value: Any, field: str
) -> None:
    model = converged()
    before = model.children[kind, name]
    edited(model, kind, name, path, value)
    planned = model.round()
    (apply,) = planned.actions
    assert isinstance(apply, Apply)
    assert apply.uid == before["metadata"]["uid"], "only on the object that was read"
    assert planned.events == (
        Event(
            "PutBack",
            f"alice changed {field} of {kind} {name}; it was put back. "
            f"Change the ServingDeployment instead",
            True,
            frozenset({f"Apply {kind}/{name}"}),
        ),
    )
    assert said(planned) == f"ApplyingChildren: Apply {kind}/{name}"
    assert model.children[kind, name]["spec"] == before["spec"]
    assert model.children[kind, name]["metadata"]["labels"] == before["metadata"]["labels"]
    assert model.round().actions == ()


@pytest.mark.parametrize(
    "path",
    [
        ("metadata", "annotations", "example.com/team"),
        ("metadata", "labels", "team"),
        ("spec", "sessionAffinity"),
    ],
    ids=" ".join,
)
def test_what_another_writer_adds_stays(path: tuple[str | int, ...]) -> None:
    model = converged()
    edited(model, "Service", "chat", path, "red")
    before = model.children["Service", "chat"]
    planned = model.round()
    assert (planned.actions, planned.events) == ((), ())
    assert model.children["Service", "chat"] is before


def test_an_edit_of_the_spec_is_applied_and_nobody_blamed() -> None:
    model = converged()
    model.edit(routing={"replicas": 3})
    planned = model.round()
    assert "Deployment/chat-gateway" in said(planned)
    assert planned.events == ()
    assert model.children["Deployment", "chat-gateway"]["spec"]["replicas"] == 3


def refused(model: Model, value: str) -> Plan:
    """A round in which a webhook writes this type into the Service, whatever is applied."""
    snapshot = model.snapshot()
    planned = plan(snapshot)
    outcomes = []
    for action in planned.actions:
        outcome = model.do(action)
        assert outcome.applied is not None
        changed = {**outcome.applied, "spec": {**outcome.applied["spec"], "type": value}}
        model.children["Service", "chat"] = changed
        outcomes.append(replace(outcome, applied=changed))
    model.memory = conclude(snapshot, planned, tuple(outcomes)).memory
    return planned


def test_a_field_that_a_webhook_writes_again_is_left_to_it() -> None:
    model = converged()
    edited(model, "Service", "chat", ("spec", "type"), "NodePort")
    assert len(refused(model, "NodePort").actions) == 1
    for _ in range(3):
        assert refused(model, "NodePort").actions == ()


@pytest.mark.parametrize("change", ["another field is edited", "the rendered Service changes"])
def test_it_is_tried_again_when(change: str) -> None:
    model = converged()
    edited(model, "Service", "chat", ("spec", "type"), "NodePort")
    refused(model, "NodePort")
    if change == "the rendered Service changes":
        live = model.snapshot()
        (service,) = (obj for obj in live.wanted if obj["kind"] == "Service")
        spec = {**service["spec"], "sessionAffinity": "ClientIP"}
        others = tuple(obj for obj in live.wanted if obj is not service)
        planned = plan(replace(live, wanted=(*others, {**service, "spec": spec})))
    else:
        edited(model, "Service", "chat", ("spec", "ports", 0, "targetPort"), 9999)
        planned = plan(model.snapshot())
    assert [type(action) for action in planned.actions] == [Apply]


def test_a_serving_role_is_created_with_its_replicas_not_applied_without() -> None:
    """An applied object without replicas would have one pod."""
    applied = [a.obj["kind"] for a in plan(Model(fleet()).snapshot()).actions if type(a) is Apply]
    assert "Service" in applied
    assert not {"ServingRole"} & set(applied)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Service", "chat"), ("PodDisruptionBudget", "chat-colocated"), ("Role", "chat-gateway")],
)
def test_a_child_that_is_gone_is_created_again_with_an_event(kind: str, name: str) -> None:
    model = converged()
    del model.children[kind, name]
    planned = model.round()
    (apply,) = planned.actions
    assert isinstance(apply, Apply)
    assert apply.uid is None
    assert planned.events == (
        Event(
            "CreatedAgain",
            f"{kind} {name} was gone; it was created again",
            True,
            frozenset({f"Apply {kind}/{name}"}),
        ),
    )


def test_a_deployment_that_is_gone_is_created_again_with_the_pods_that_were_wanted() -> None:
    model = converged(roles=WIDE, autoscaling={"policy": "External"})
    model.scale_role("colocated", 3)
    model.converge()
    name = engine(model)
    del model.children["Deployment", name]
    planned = plan(model.snapshot())
    (create,) = planned.actions
    assert isinstance(create, Create)
    assert create.obj["spec"]["replicas"] == 3
    assert "serving.argosy.dev/applied" in create.obj["metadata"]["annotations"]
    (event,) = planned.events
    assert event.message == f"Deployment {name} was gone; it was created again"
    assert event.after == {f"Create Deployment/{name}"}
    assert said(planned, "create_workloads") == f"CreatingWorkloads: Create Deployment/{name}"


def test_a_first_child_and_a_first_deployment_of_a_revision_are_no_events() -> None:
    model = Model(fleet())
    assert model.round().events == ()
    model.converge()
    model.edit(engine={"image": "engine:2"})
    for _ in range(3):
        assert not any(event.reason == "CreatedAgain" for event in model.round().events)


def test_a_child_that_is_being_deleted_is_waited_for() -> None:
    model = converged()
    edited(model, "Service", "chat", ("spec", "type"), "NodePort")
    live = model.children["Service", "chat"]
    meta = {**live["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    model.children["Service", "chat"] = {**live, "metadata": meta}
    planned = plan(model.snapshot())
    assert planned.actions == ()
    assert planned.wake_s == 2.0


def test_an_event_of_a_change_that_was_not_put_back_is_not_published() -> None:
    model = converged()
    edited(model, "Service", "chat", ("spec", "type"), "NodePort")
    snapshot = model.snapshot()
    planned = plan(snapshot)
    outcome = Outcome(planned.actions[0], ErrorKind.FORBIDDEN, "no")
    assert conclude(snapshot, planned, (outcome,)).events == ()
    assert len(conclude(snapshot, planned, (Outcome(planned.actions[0]),)).events) == 1


def test_a_revision_that_a_new_operator_renders_is_no_deployment_that_was_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The spec is of the generation that status shows; only the default image is newer."""
    model = converged(imageUpdates="Follow")
    before = engine(model)
    monkeypatch.setattr(
        "tests.support.model.IMAGES",
        Images(engine="engine:2", gateway="g:1", fetch="f:1"),
    )
    planned = plan(model.snapshot())
    created = [a.obj["metadata"]["name"] for a in planned.actions if isinstance(a, Create)]
    assert len(created) == 1
    assert created != [before]
    assert not any(event.reason == "CreatedAgain" for event in planned.events)


def test_another_value_in_a_field_that_is_left_to_a_webhook_is_put_back() -> None:
    model = converged()
    edited(model, "Service", "chat", ("spec", "type"), "NodePort")
    refused(model, "NodePort")
    assert plan(model.snapshot()).actions == ()
    edited(model, "Service", "chat", ("spec", "type"), "LoadBalancer")
    planned = plan(model.snapshot())
    assert [type(action) for action in planned.actions] == [Apply]
    assert [event.reason for event in planned.draft.events] == [EventReason.PUT_BACK]
    edited(model, "Service", "chat", ("spec", "type"), "NodePort")
    assert plan(model.snapshot()).actions == ()
