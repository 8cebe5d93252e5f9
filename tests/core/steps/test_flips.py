"""The writes of a flip in their order, and what the Deployments do meanwhile."""

from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.core.plan import Plan, plan
from argosy_operator.core.snapshot.actions import (
    AnnotatePod,
    ErrorKind,
    FlipRole,
    Scale,
    TakeWorkAgain,
)
from argosy_operator.core.snapshot.objects import rfc3339
from argosy_operator.core.snapshot.pods import Load
from argosy_operator.core.snapshot.snapshot import Failure, LoopMemory, Snapshot
from tests.support.model import Model, converged

DRAIN = "serving.argosy.dev/drain"
COST = "controller.kubernetes.io/pod-deletion-cost"
FLIPS: dict[str, Any] = {
    "mode": "disaggregated",
    "roles": {role: {"replicas": {"min": 1, "max": 4}} for role in ("prefill", "decode")},
    "autoscaling": {"policy": "External", "roleFlip": True},
}


def due(**spec: Any) -> Model:
    """Two prefill pods and one decode pod, which are to be one and two."""
    model = converged(**{**FLIPS, **spec})
    model.scale_role("prefill", 2)
    model.converge()
    model.scale_role("prefill", 1)
    model.scale_role("decode", 2)
    return model


def names_of(model: Model) -> tuple[str, str]:
    digits = model.snapshot().revision
    return f"chat-prefill-{digits}", f"chat-decode-{digits}"


def step(planned: Plan) -> tuple[str, str]:
    found = next(s for s in planned.draft.steps if s.name == "flip_roles")
    return str(found.reason), found.message


def test_the_writes_of_a_flip_in_their_order() -> None:
    model = due()
    _, decode = names_of(model)
    assert model.round().actions == ()  # asks the engines; no decode pod is started
    (mark, _hasten) = model.round().actions
    assert isinstance(mark, AnnotatePod)
    pod = mark.name
    raised = model.round()
    assert raised.actions == (Scale("Deployment", decode, 2),)
    assert raised.wake_s == 0.2
    flipping = model.round()
    labels = {"serving.argosy.dev/role": "decode", "pod-template-hash": f"hash-of-{decode}"}
    (flip,) = flipping.actions
    assert isinstance(flip, FlipRole)
    assert (flip.name, flip.uid, flip.labels) == (pod, pod, labels)
    assert flip.annotations == {"serving.argosy.dev/flipped": rfc3339(model.now), COST: "1000"}
    (event,) = flipping.events
    assert (event.reason, event.after) == ("Flipped", frozenset({f"FlipRole Pod/{pod}"}))
    assert event.message == f"prefill pod {pod} is empty and becomes a decode pod"
    lowered = model.round()
    prefill, _ = names_of(model)
    (scale,) = lowered.actions
    assert (scale.name, scale.replicas) == (prefill, 1)
    assert step(lowered)[0] == "RoleChanging"
    model.tick()  # the engine takes the role
    back = model.round()
    assert back.actions == (
        AnnotatePod(pod, pod, {DRAIN: None, COST: None}),
        TakeWorkAgain(pod, pod),
    )
    model.tick()
    assert model.round().actions == ()
    assert model.pods[pod].role == "decode"


def test_the_role_that_gets_a_pod_starts_the_others_at_once() -> None:
    model = due()
    model.scale_role("decode", 4)
    _, decode = names_of(model)
    assert Scale("Deployment", decode, 3) in model.round().actions


def test_a_pod_that_is_being_started_already_is_not_taken_back_for_a_flip() -> None:
    model = due()
    _, decode = names_of(model)
    model.children["Deployment", decode] = model._with_replicas("Deployment", decode, 2)
    assert model.round().actions == ()
    assert step(model.round())[0] == "FlipDrains"
    assert model.replicas("decode") == 2


def test_the_labels_change_only_when_the_replica_set_wants_one_more() -> None:
    model = due()
    for _ in range(3):
        model.round()
    snapshot = model.snapshot()
    for late in ({"replicas": 1}, {"seen": False}):
        sets = {
            uid: replace(child, **late) if child.role == "decode" else child  # type: ignore[arg-type]
            for uid, child in snapshot.replica_sets.items()
        }
        waiting = plan(replace(snapshot, replica_sets=sets))
        assert (waiting.actions, waiting.wake_s, step(waiting)[0]) == ((), 0.2, "Flipping")
    assert isinstance(plan(snapshot).actions[0], FlipRole)


def test_nobody_lowers_the_role_that_loses_the_pod_before_its_replica_set_has_let_go() -> None:
    model = due()
    prefill, _ = names_of(model)
    for _ in range(3):
        model.round()
    (flip,) = model.round().actions
    assert isinstance(flip, FlipRole)
    kept = replace(model.pods[flip.uid], owner=prefill)
    snapshot = model.snapshot()
    others = tuple(pod for pod in snapshot.pods if pod.uid != flip.uid)
    held = plan(replace(snapshot, pods=(*others, kept)))
    assert (held.actions, held.wake_s) == ((), 0.2)
    assert step(held) == (
        "RoleChanging",
        f"{flip.name} still belongs to the ReplicaSet of its old role",
    )
    assert [action.name for action in plan(snapshot).actions if isinstance(action, Scale)] == [
        prefill
    ]


def test_a_flipped_pod_is_called_back_only_when_its_engine_has_the_role() -> None:
    model = due()
    for _ in range(5):
        model.round()
    snapshot = model.snapshot()
    pod = next(pod for pod in snapshot.pods if pod.flipped_at is not None)
    for load, recalled in (
        (None, False),
        (Load(True, 0, 0, 59.0, "prefill"), False),
        (Load(True, 0, 0, 59.0, ""), False),
        (Load(True, 0, 0, 59.0, "decode"), True),
    ):
        actions = plan(replace(snapshot, loads={pod.uid: load})).actions
        assert (TakeWorkAgain(pod.name, pod.uid) in actions) is recalled, load


def hindered(snapshot: Snapshot, what: str) -> Snapshot:
    sets = dict(snapshot.replica_sets)
    match what:
        case "a ReplicaSet of an old template":
            (uid,) = (u for u, child in sets.items() if child.role == "decode")
            return replace(snapshot, replica_sets={**sets, "old": sets[uid]})
        case "no ReplicaSet":
            return replace(snapshot, replica_sets={})
        case _:
            failure = Failure("Pod/x", False, ErrorKind.FORBIDDEN, "no", 0.0, 1, 1e9, 1)
            memory = LoopMemory(uid=snapshot.memory.uid, failed={"AnnotatePod Pod/x": failure})
            return replace(snapshot, memory=memory)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (
            "a ReplicaSet of an old template",
            "Deployment {decode} does not have exactly one ReplicaSet in use",
        ),
        ("no ReplicaSet", "Deployment {prefill} does not have exactly one ReplicaSet in use"),
        ("a mark that failed", "a pod could not be marked to drain"),
    ],
)
def test_without_what_a_flip_needs_a_new_pod_starts_at_once(what: str, says: str) -> None:
    model = due()
    prefill, decode = names_of(model)
    planned = plan(hindered(model.snapshot(), what))
    reason, message = step(planned)
    assert reason == "FlipWaits"
    assert says.format(prefill=prefill, decode=decode) in message
    assert Scale("Deployment", decode, 2) in planned.actions


def test_in_a_rollout_no_pod_is_flipped() -> None:
    model = due()
    prefill, _ = names_of(model)
    live = model.children["Deployment", prefill]
    labels = {**live["metadata"]["labels"], "serving.argosy.dev/revision": "0a0a0a0a"}
    old = {**live["metadata"], "name": "chat-prefill-0a0a0a0a", "labels": labels, "uid": "old"}
    model.children["Deployment", "chat-prefill-0a0a0a0a"] = {**live, "metadata": old}
    assert step(model.round()) == ("FlipWaits", "a rollout is in progress")


@pytest.mark.parametrize("off", [{"autoscaling": {"policy": "External"}}, {"mode": "colocated"}])
def test_without_the_field_or_the_mode_nothing_is_flipped(off: dict[str, Any]) -> None:
    model = converged(**{**FLIPS, **off})
    assert step(model.round()) == (
        "RoleFlipOff",
        "spec.autoscaling.roleFlip is false, or the fleet has no prefill and decode pods",
    )
