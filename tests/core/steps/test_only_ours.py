"""Orders reach only objects that the fleet owns, whatever names and labels others carry."""

from typing import Any

import pytest

from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.actions import (
    Action,
    AnnotatePod,
    Create,
    Delete,
    HastenDrain,
    Scale,
    TakeWorkAgain,
)
from argosy_operator.core.snapshot.snapshot import Clock, LoopMemory
from argosy_operator.shell.gather import Sources, gather
from tests.support.model import IMAGES, Model, converged

WIDE = {"colocated": {"replicas": {"min": 1, "max": 4}}}
EXTERNAL: dict[str, Any] = {"roles": WIDE, "autoscaling": {"policy": "External"}}

OWNERS: dict[str, list[dict[str, Any]]] = {
    "it has no owner": [],
    "another fleet owns it": [{"kind": "ServingDeployment", "name": "other", "uid": "fleet-2"}],
    "an earlier fleet of the same name owns it": [
        {"kind": "ServingDeployment", "name": "chat", "uid": "fleet-0"}
    ],
}


def given_away(model: Model, kind: str, name: str, owners: list[dict[str, Any]]) -> None:
    live = model.children[kind, name]
    model.children[kind, name] = {
        **live, "metadata": {**live["metadata"], "ownerReferences": owners},
    }  # fmt: skip


def engine(model: Model) -> str:
    (name,) = (n for k, n in model.children if k == "Deployment" and n != "chat-gateway")
    return name


def about(actions: tuple[Action, ...], kind: str, name: str) -> list[Action]:
    """Actions on this object that it must own; creating is refused by its name alone."""
    orders = [action for action in actions if isinstance(action, Scale | Delete)]
    return [action for action in orders if (action.kind, action.name) == (kind, name)]


@pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS)
def test_a_deployment_of_another_owner_is_not_scaled(owners: list[dict[str, Any]]) -> None:
    model = converged(**EXTERNAL)
    name = engine(model)
    model.scale_role("colocated", 3)
    assert about(plan(model.snapshot()).actions, "Deployment", name), "ours is"
    given_away(model, "Deployment", name, owners)
    planned = plan(model.snapshot())
    assert about(planned.actions, "Deployment", name) == []
    assert not any(isinstance(action, AnnotatePod | HastenDrain) for action in planned.actions)


@pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS)
def test_a_serving_role_of_another_owner_is_neither_read_nor_scaled(
    owners: list[dict[str, Any]],
) -> None:
    model = converged(roles=WIDE)
    model.scale_role("colocated", 3)
    assert about(plan(model.snapshot()).actions, "ServingRole", "chat-colocated"), "ours is"
    given_away(model, "ServingRole", "chat-colocated", owners)
    planned = plan(model.snapshot())
    assert about(planned.actions, "ServingRole", "chat-colocated") == []
    assert planned.draft.targets == {"colocated": 1}


@pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS)
def test_a_deployment_of_another_owner_with_our_labels_is_no_old_revision(
    owners: list[dict[str, Any]],
) -> None:
    model = converged()
    old = engine(model)
    model.edit(engine={"image": "engine:2"})
    for _ in range(4):
        model.round()
        model.tick()
    assert any(pod.draining for pod in model.pods.values()), "ours drains"
    model = converged()
    model.edit(engine={"image": "engine:2"})
    given_away(model, "Deployment", old, owners)
    before = model.children["Deployment", old]
    for _ in range(20):
        planned = model.round()
        assert about(planned.actions, "Deployment", old) == []
        assert not any(isinstance(a, AnnotatePod | HastenDrain) for a in planned.actions)
        model.tick()
    assert model.children["Deployment", old] is before


@pytest.mark.parametrize("kind", ["ServingRole", "PodDisruptionBudget"])
@pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS)
def test_what_the_mode_no_longer_uses_is_deleted_only_where_it_is_ours(
    kind: str, owners: list[dict[str, Any]]
) -> None:
    for ours in (True, False):
        model = converged(roles=WIDE)
        model.edit(mode="disaggregated")
        if not ours:
            given_away(model, kind, "chat-colocated", owners)
        for _ in range(30):
            model.round()
            model.tick()
        assert ((kind, "chat-colocated") in model.children) is not ours


def test_an_order_to_delete_names_the_uid_that_was_read() -> None:
    """So it cannot reach an object that takes the name meanwhile."""
    model = converged(roles=WIDE)
    uid = model.children["PodDisruptionBudget", "chat-colocated"]["metadata"]["uid"]
    model.edit(mode="disaggregated")
    deleted: list[Delete] = []
    for _ in range(30):
        deleted += [a for a in model.round().actions if isinstance(a, Delete)]
        model.tick()
    assert Delete("PodDisruptionBudget", "chat-colocated", uid) in deleted


@pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS)
def test_a_name_that_another_owner_holds_is_left_to_it(owners: list[dict[str, Any]]) -> None:
    for kind, name in (("Service", "chat"), ("Deployment", "chat-gateway")):
        model = converged()
        given_away(model, kind, name, owners)
        before = model.children[kind, name]
        model.edit(routing={"replicas": 3})
        planned = model.round()
        assert planned.draft.foreign == ((kind, name),)
        assert model.children[kind, name] is before


# Pods, through what the API server lists.


def controlled(raw: dict[str, Any], kind: str, uid: str) -> dict[str, Any]:
    refs = [{"kind": kind, "uid": uid, "name": "x", "controller": True}]
    return {**raw, "metadata": {**raw["metadata"], "ownerReferences": refs}}


def replica_set(name: str, deployment: str) -> dict[str, Any]:
    return controlled(
        {"kind": "ReplicaSet", "metadata": {"name": name, "uid": name}}, "Deployment", deployment
    )


def raw_pod(name: str, owner: str, revision: str, annotations: dict[str, str]) -> dict[str, Any]:
    labels = {
        "serving.argosy.dev/fleet": "chat",
        "serving.argosy.dev/role": "colocated",
        "serving.argosy.dev/revision": revision,
    }
    meta = {"name": name, "uid": name, "labels": labels, "annotations": annotations}
    running = {"name": "engine", "started": True, "state": {"running": {}}}
    status = {
        "phase": "Running",
        "podIP": f"ip-{name}",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [running],
    }
    raw = {"kind": "Pod", "metadata": meta, "spec": {"nodeName": "n"}, "status": status}
    return controlled(raw, "ReplicaSet", owner) if owner else raw


class Listed:
    """The API server and the engines of a namespace in which strangers carry our labels."""

    def __init__(self, model: Model, annotations: dict[str, str]) -> None:
        uid = model.children["Deployment", engine(model)]["metadata"]["uid"]
        revision = model.snapshot().revision
        self.children = list(model.children.values())
        self.sets = [replica_set("ours", uid), replica_set("theirs", "uid-of-another")]
        self.pods = [
            raw_pod("a-bare", "", revision, annotations),
            raw_pod("b-theirs", "theirs", revision, annotations),
            raw_pod("c-of-no-set", "gone", revision, annotations),
            raw_pod("ours-1", "ours", revision, annotations),
            raw_pod("ours-2", "ours", revision, {}),
        ]
        self.asked: list[str] = []

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Any:
        of_kind = {"ReplicaSet": self.sets, "Pod": self.pods}
        return of_kind.get(kind) or [c for c in self.children if c["kind"] == kind]

    async def get(self, kind: str, namespace: str, name: str) -> Any:
        found = [c for c in self.children if (c["kind"], c["metadata"]["name"]) == (kind, name)]
        return found[0] if found else None

    async def load(self, ip: str, fleet: object, uid: str) -> None:
        self.asked.append(ip)


MARK = {
    "serving.argosy.dev/drain": "2026-01-01T00:00:00Z",
    "controller.kubernetes.io/pod-deletion-cost": "-1000",
}


@pytest.mark.parametrize(
    ("annotations", "replicas", "order"),
    [
        pytest.param({}, 1, AnnotatePod, id="marked"),
        pytest.param(MARK, 1, HastenDrain, id="told to drain"),
        pytest.param(MARK, 2, TakeWorkAgain, id="called back"),
    ],
)
async def test_a_pod_of_another_owner_is_never(
    annotations: dict[str, str], replicas: int, order: type[Action]
) -> None:
    model = converged(**EXTERNAL)
    model.scale_role("colocated", 2)
    model.converge()
    model.scale_role("colocated", replicas)
    listed = Listed(model, annotations)
    engines = cluster = listed
    sources = Sources(cluster, None, engines, IMAGES)  # type: ignore[arg-type]
    snapshot = await gather(
        sources, model.fleet, LoopMemory(ask_loads=True), Clock(model.now, model.now)
    )
    planned = plan(snapshot)
    orders = [a for a in planned.actions if not isinstance(a, Scale | Delete | Create)]
    assert any(isinstance(action, order) for action in orders)
    reached = {getattr(a, "pod", getattr(a, "name", "")) for a in orders}
    assert reached <= {"ours-1", "ours-2"}
    assert set(listed.asked) <= {"ip-ours-1", "ip-ours-2"}
