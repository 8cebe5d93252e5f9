"""A new revision, or another mode, with strategy BlueGreen: old pods drain only when the new ones
suffice. And what becomes of old Deployments with any strategy."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.core.plan import Plan, plan
from argosy_operator.core.snapshot.actions import (
    AnnotatePod,
    Delete,
    Event,
    Scale,
    key_of,
)
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import Snapshot
from tests.support.model import converged

PAIR = {"prefill": {"replicas": {"min": 1, "max": 4}}, "decode": {"replicas": {"min": 2, "max": 4}}}
BLUE_GREEN = {"strategy": "BlueGreen"}
FLEET = {"mode": "disaggregated", "roles": PAIR, "rollout": BLUE_GREEN}

SERVES: dict[str, Any] = {}
STARTS: dict[str, Any] = {"ready": False, "ready_at": None, "started": False, "phase": "Pending"}
UNREADY: dict[str, Any] = {"ready": False, "ready_at": None}
DRAINS: dict[str, Any] = {"draining": True}
DELETED: dict[str, Any] = {"terminating": True}
ENDED: dict[str, Any] = {"phase": "Failed"}

Pods = Iterable[tuple[str, dict[str, Any]]]


def with_pods(snapshot: Snapshot, old: str, new: Pods) -> Snapshot:
    """One prefill and two decode pods of the revision `old` serve; `new` are roles and looks."""
    roles = ("prefill", "decode", "decode")
    left = [Pod(f"old-{n}", f"old-{n}", role, old, ip=f"ip-{n}") for n, role in enumerate(roles)]
    come = [
        Pod(f"new-{n}", f"new-{n}", role, snapshot.revision, **looks)
        for n, (role, looks) in enumerate(new)
    ]
    return replace(snapshot, pods=(*left, *come))


def rolling(new: Pods = ()) -> Snapshot:
    """The image was changed, and the Deployments of the new revision exist."""
    model = converged(**FLEET)
    old = model.snapshot().revision
    model.edit(engine={"image": "engine:2"})
    model.round()
    return with_pods(model.snapshot(), old, new)


def drained(planned: Plan) -> list[str]:
    """The pods that this round marks."""
    return sorted(action.name for action in planned.actions if isinstance(action, AnnotatePod))


def said(planned: Plan) -> str:
    return next(str(s) for s in planned.draft.steps if s.name == "retire_old_revisions")


@pytest.mark.parametrize(
    ("new", "suffice"),
    [
        pytest.param([], False, id="there is none yet"),
        pytest.param(
            [("prefill", STARTS), ("decode", STARTS), ("decode", STARTS)], False, id="all start"
        ),
        pytest.param([("prefill", SERVES)], False, id="prefill serves, decode is missing"),
        pytest.param(
            [("prefill", SERVES), ("decode", SERVES)], False, id="one decode pod is missing"
        ),
        pytest.param(
            [("decode", SERVES), ("decode", SERVES)], False, id="the prefill pod is missing"
        ),
        pytest.param([("decode", SERVES)] * 3, False, id="decode pods do not stand in for prefill"),
        pytest.param(
            [("prefill", SERVES), ("decode", SERVES), ("decode", UNREADY)],
            False,
            id="one is not ready",
        ),
        pytest.param(
            [("prefill", SERVES), ("decode", SERVES), ("decode", DRAINS)], False, id="one drains"
        ),
        pytest.param(
            [("prefill", SERVES), ("decode", SERVES), ("decode", DELETED)],
            False,
            id="one is being deleted",
        ),
        pytest.param(
            [("prefill", SERVES), ("decode", SERVES), ("decode", ENDED)], False, id="one has ended"
        ),
        pytest.param(
            [("prefill", SERVES), ("decode", SERVES), ("decode", SERVES)], True, id="all serve"
        ),
        pytest.param(
            [("prefill", SERVES), *[("decode", SERVES)] * 3, ("decode", STARTS)],
            True,
            id="more than all serve, and one more starts",
        ),
    ],
)
def test_a_rollout_drains_old_pods_only_when_the_new_ones_suffice(new: Pods, suffice: bool) -> None:
    planned = plan(rolling(new))
    assert drained(planned) == (["old-0", "old-1", "old-2"] if suffice else [])
    assert not any(isinstance(action, Delete | Scale) for action in planned.actions)
    assert planned.draft.rolling


def test_a_change_of_mode_drains_the_old_roles_only_when_both_new_ones_serve() -> None:
    for new, suffice in (
        ([("prefill", SERVES), ("decode", SERVES)], False),
        ([("prefill", SERVES), ("decode", SERVES), ("decode", SERVES)], True),
    ):
        model = converged(roles=PAIR, rollout=BLUE_GREEN)
        old = model.snapshot().revision
        model.edit(mode="disaggregated")
        model.round()
        snapshot = with_pods(model.snapshot(), "", new)
        colocated = Pod("old", "old", "colocated", old, ip="ip")
        news = tuple(pod for pod in snapshot.pods if pod.name.startswith("new"))
        planned = plan(replace(snapshot, pods=(colocated, *news)))
        assert drained(planned) == (["old"] if suffice else [])


def test_old_pods_that_were_marked_serve_on_when_a_new_one_fails() -> None:
    snapshot = rolling([("prefill", SERVES), ("decode", SERVES), ("decode", UNREADY)])
    marks: dict[str, Any] = {"draining": True, "victim": True, "cost": -1000}
    pods = tuple(
        replace(pod, **marks, drain_at=snapshot.now) if pod.name.startswith("old") else pod
        for pod in snapshot.pods
    )
    planned = plan(replace(snapshot, pods=pods))
    given_up = [a for a in planned.actions if isinstance(a, AnnotatePod)]
    assert {action.name for action in given_up} == {"old-0", "old-1", "old-2"}
    assert {value for action in given_up for value in action.values.values()} == {None}


def retired(replicas: int, *pods: Pod) -> tuple[Plan, str, str]:
    """A plan with one old Deployment, the name of that Deployment and its uid."""
    model = converged()
    old = model.snapshot().revision
    model.edit(engine={"image": "engine:2"})
    model.round()
    name = f"chat-colocated-{old}"
    model.children["Deployment", name]["spec"]["replicas"] = replicas
    snapshot = model.snapshot()
    new = Pod("new", "new", "colocated", snapshot.revision)
    left = tuple(replace(pod, revision=old) for pod in pods)
    uid = model.children["Deployment", name]["metadata"]["uid"]
    return plan(replace(snapshot, pods=(new, *left))), name, uid


def test_an_old_deployment_is_deleted_when_its_last_pod_is_gone() -> None:
    planned, name, uid = retired(0)
    assert planned.actions == (Delete("Deployment", name, uid),)
    assert planned.events == (Event("RolledOut", f"the last pod of {name} is gone"),)
    assert said(planned) == f"retire_old_revisions: RetiringOldRevision: delete {name}"


@pytest.mark.parametrize(
    ("replicas", "pods"),
    [
        pytest.param(0, [Pod("old", "old", "colocated", "", terminating=True)], id="a pod ends"),
        pytest.param(1, [], id="a pod is about to be created"),
    ],
)
def test_an_old_deployment_stays_while(replicas: int, pods: list[Pod]) -> None:
    planned, name, _ = retired(replicas, *pods)
    assert not any(isinstance(action, Delete) for action in planned.actions)
    assert not any(event.reason == "RolledOut" for event in planned.events)
    assert name in said(planned)


def test_old_disruption_budgets_and_serving_roles_go_after_the_last_pods_of_their_role() -> None:
    """A disruption budget protects pods that drain."""
    model = converged(roles=PAIR)
    model.edit(mode="disaggregated")
    model.round()
    gone_with_pods = {
        "Delete ServingRole/chat-colocated",
        "Delete PodDisruptionBudget/chat-colocated",
    }
    while any(pod.role == "colocated" for pod in model.pods.values()):
        assert not gone_with_pods & {key_of(action) for action in model.round().actions}
        model.tick()
    model.converge()
    assert not [name for _, name in model.children if "colocated" in name]
