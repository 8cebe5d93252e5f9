"""Which objects of the namespace a fleet counts as its own, its current and its retired ones."""

from typing import Any

import pytest

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import LoopMemory, Snapshot

FLEET = ServingDeployment.model_validate(
    {
        "metadata": {"name": "chat", "namespace": "prod", "uid": "of-the-fleet"},
        "spec": {"model": {"uri": "sim://opt-13b-a100"}, "mode": "disaggregated"},
    }
)


def child(kind: str, name: str, role: str, revision: str = "", **metadata: Any) -> Any:
    labels = {"serving.argosy.dev/role": role}
    if revision:
        labels["serving.argosy.dev/revision"] = revision
    owners = [{"uid": "of-the-fleet"}]
    return {
        "kind": kind,
        "metadata": {"name": name, "labels": labels, "ownerReferences": owners, **metadata},
    }


CURRENT = child("Deployment", "chat-decode-22222222", "decode", "22222222")
OLD = child("Deployment", "chat-decode-11111111", "decode", "11111111")
OTHER_MODE = child("Deployment", "chat-colocated-22222222", "colocated", "22222222")
GATEWAY = child("Deployment", "chat-gateway", "gateway")
LEAVING = child(
    "Deployment", "chat-prefill-11111111", "prefill", "11111111",
    deletionTimestamp="2026-01-02T03:00:00Z",
)  # fmt: skip
FOREIGN = child("Deployment", "chat-foreign", "decode", "11111111", ownerReferences=[{"uid": "x"}])
ORPHAN = child("Deployment", "chat-orphan", "decode", "11111111", ownerReferences=None)
BARE = child("Deployment", "bare", "", labels=None)
SERVICE = child("Service", "chat", "gateway")

CHILDREN = (OLD, CURRENT, OTHER_MODE, GATEWAY, LEAVING, FOREIGN, ORPHAN, BARE, SERVICE)

PODS = (
    Pod("new", "1", "decode", "22222222"),
    Pod("leaving", "2", "decode", "22222222", terminating=True),
    Pod("old", "3", "decode", "11111111"),
    Pod("prefill", "4", "prefill", "22222222"),
    Pod("gateway", "5", "gateway", ""),
)


def snapshot() -> Snapshot:
    return Snapshot(
        fleet=FLEET,
        revision="22222222",
        wanted=(),
        engines={
            "prefill": {"metadata": {"name": "chat-prefill-22222222"}},
            "decode": {"metadata": {"name": "chat-decode-22222222"}},
        },
        children={(c["kind"], c["metadata"]["name"]): c for c in CHILDREN},
        pods=PODS,
        now=0.0,
        monotonic=0.0,
    )


def test_a_fleet_owns_what_carries_its_uid_and_is_not_being_deleted() -> None:
    assert snapshot().owned("Deployment") == {
        "bare": BARE,
        "chat-colocated-22222222": OTHER_MODE,
        "chat-decode-11111111": OLD,
        "chat-decode-22222222": CURRENT,
        "chat-gateway": GATEWAY,
    }
    assert snapshot().owned("Service") == {"chat": SERVICE}
    assert snapshot().owned("ServingRole") == {}


@pytest.mark.parametrize(
    ("deployment", "ours"), [(CURRENT, True), (LEAVING, True), (FOREIGN, False), (ORPHAN, False)]
)
def test_an_object_is_ours_by_its_owner_and_not_by_its_labels(deployment: Any, ours: bool) -> None:
    assert snapshot().is_ours(deployment) is ours


def test_the_deployment_of_a_role_is_the_one_of_the_current_revision() -> None:
    assert snapshot().deployment("decode") == CURRENT
    assert snapshot().deployment("prefill") is None


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [pod.name for pod in pods]


def test_pods_belong_to_the_deployment_of_their_role_and_revision() -> None:
    assert names(snapshot().pods_of(CURRENT)) == ["new", "leaving"]
    assert names(snapshot().pods_of(OLD)) == ["old"]
    assert names(snapshot().pods_of(OTHER_MODE)) == []
    assert names(snapshot().pods_of(BARE)) == []
    assert names(snapshot().current("decode")) == ["new", "leaving"]
    assert names(snapshot().current("prefill")) == ["prefill"]


def test_memory_is_kept_for_one_fleet_and_not_for_its_successor_of_the_same_name() -> None:
    memory = LoopMemory("of-the-fleet", decide_at=5.0)
    assert memory.of("of-the-fleet") is memory
    assert memory.of("of-the-next") == LoopMemory("of-the-next")
