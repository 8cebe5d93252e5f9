"""One round against a cluster that refuses or hangs: it is reported, and tried again in time."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.api.conditions import ConditionType
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.objects import rfc3339
from argosy_operator.core.snapshot.pods import Start
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.shell.gather import Sources
from argosy_operator.shell.loop import ROUND_LIMIT_S, UnfinishedError, round_of
from tests.shell.store import Store
from tests.support.model import IMAGES
from tests.support.virtual import run

META = {"name": "chat", "namespace": "ns", "uid": "u", "generation": 1}
FLEET = {"metadata": META, "spec": {"model": {"uri": "sim://opt-13b-a100"}}}


class Refusing:
    """Has one fleet and nothing else; refuses every child, takes status."""

    def __init__(self, error_kind: ErrorKind) -> None:
        self.error_kind = error_kind
        self.status: dict[str, Any] = {}

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return FLEET if kind == "ServingDeployment" else None

    async def list(self, kind: str, namespace: str, selector: str) -> list[dict[str, Any]]:
        return []

    async def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        if obj["kind"] == "Event":
            return obj
        raise ClusterError(self.error_kind, "create", "no")

    async def apply(
        self, obj: dict[str, Any], uid: str | None, *, status: bool = False
    ) -> dict[str, Any]:
        if not status:
            raise ClusterError(self.error_kind, "apply", "no")
        self.status = obj["status"]
        return obj


@pytest.mark.parametrize("error_kind", [ErrorKind.FORBIDDEN, ErrorKind.QUOTA, ErrorKind.INVALID])
async def test_what_was_refused_is_tried_again_within_a_minute(error_kind: ErrorKind) -> None:
    """No event tells that a right was granted or a quota raised."""
    cluster = Refusing(error_kind)
    sources = Sources(cluster, None, None, IMAGES)  # type: ignore[arg-type]
    result = await round_of(sources, ("ns", "chat"), LoopMemory())
    assert result is not None
    assert 10 <= result[1] <= 60
    stalled = next(c for c in cluster.status["conditions"] if c["type"] == "Stalled")
    assert stalled["status"] == ("False" if error_kind is ErrorKind.QUOTA else "True")


async def test_the_round_in_which_a_person_must_act_comes_in_time() -> None:
    """Nothing happens at the end of spec.progressDeadline that would begin one."""
    store, memory, wakes = Store(), LoopMemory(), list[float]()
    sources = Sources(store, None, None, IMAGES)  # type: ignore[arg-type]
    for refused_s in (None, None, 580, 601):
        if refused_s is not None:
            (name,) = (n for kind, n in store.objects if kind == "Deployment" and "colo" in n)
            failure = {
                "type": "ReplicaFailure",
                "status": "True",
                "message": "exceeded quota: gpus",
                "lastTransitionTime": rfc3339(time.time() - refused_s),
            }
            store.objects["Deployment", name]["status"] = {"conditions": [failure]}
        result = await round_of(sources, ("ns", "chat"), memory)
        assert result is not None
        memory, wake_s = result
        wakes.append(wake_s)
        late = refused_s is not None and refused_s > 600
        assert store.condition("Stalled")["status"] == str(late)
    _, at_rest, before, after = wakes
    assert 0 < before <= 20 < at_rest
    assert after > 20


def series(name: str, **labels: str) -> float | None:
    fleet = {"fleet_namespace": "ns", "fleet_name": "chat"}
    return REGISTRY.get_sample_value(f"argosy_operator_{name}", fleet | labels)


def shown_conditions() -> dict[str, str]:
    found = {type_.value: series("condition", type=type_.value) for type_ in ConditionType}
    words = {0.0: "False", 1.0: "True"}
    return {type_: words[value] for type_, value in found.items() if value is not None}


async def test_the_series_of_a_fleet_are_those_of_its_status_until_it_is_gone() -> None:
    store = Store()
    sources = Sources(store, None, None, IMAGES)  # type: ignore[arg-type]
    await round_of(sources, ("ns", "chat"), LoopMemory())
    conditions = {c["type"]: c["status"] for c in store.fleet["status"]["conditions"]}
    known = {type_: status for type_, status in conditions.items() if status != "Unknown"}
    assert shown_conditions() == known
    assert "Stalled" in known
    assert series("replicas", role="colocated") == 1
    del store.objects["ServingDeployment", "chat"]
    assert await round_of(sources, ("ns", "chat"), LoopMemory()) is None
    assert shown_conditions() == {}
    assert series("replicas", role="colocated") is None


class ForbiddingLists(Refusing):
    """Refuses to list pods, as RBAC without the rule does."""

    async def list(self, kind: str, namespace: str, selector: str) -> list[dict[str, Any]]:
        if kind == "Pod":
            said = 'pods is forbidden: User "argosy" cannot list resource "pods"'
            raise ClusterError(ErrorKind.FORBIDDEN, "list Pod", said)
        return []

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return {**FLEET, "status": self.status}


async def test_a_list_that_rbac_forbids_is_a_condition_that_says_which_rule_is_missing() -> None:
    cluster = ForbiddingLists(ErrorKind.FORBIDDEN)
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "AsSpecified",
        "message": "it serves",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    cluster.status = {"conditions": [ready], "observedGeneration": 1, "url": "http://chat.ns"}
    sources = Sources(cluster, None, None, IMAGES)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(ClusterError, match="list Pod: Forbidden"):
            await round_of(sources, ("ns", "chat"), LoopMemory())
    conditions = {c["type"]: c for c in cluster.status["conditions"]}
    assert (conditions["Stalled"]["status"], conditions["Stalled"]["reason"]) == (
        "True",
        "Forbidden",
    )
    assert shown_conditions()["Stalled"] == "True"
    assert 'cannot list resource "pods"' in conditions["Stalled"]["message"]
    assert "Add the missing rule" in conditions["Stalled"]["message"]
    assert conditions["Ready"] == ready, "whether it serves is not known, so this stays as it was"
    assert cluster.status["url"] == "http://chat.ns"


class Hanging(Refusing):
    """Answers reads at once and writes never."""

    async def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return obj

    async def apply(
        self, obj: dict[str, Any], uid: str | None, *, status: bool = False
    ) -> dict[str, Any]:
        return await self.create(obj)


def test_a_round_that_is_cut_off_keeps_what_it_learnt() -> None:
    """Else a law that decides while writes hang would begin anew with every round."""

    async def main() -> LoopMemory:
        sources = Sources(Hanging(ErrorKind.TRANSPORT), None, None, IMAGES)  # type: ignore[arg-type]
        before = replace(LoopMemory("u"), starts={"pod-1": Start("decode", 42.0, "a")})
        began = asyncio.get_running_loop().time()
        with pytest.raises(UnfinishedError, match="not done within 90 s") as caught:
            await round_of(sources, ("ns", "chat"), before)
        assert asyncio.get_running_loop().time() - began < ROUND_LIMIT_S
        return caught.value.memory

    memory = run(main())
    assert memory.targets == {"colocated": 1}, "decided in this round"
    assert memory.starts == {"pod-1": Start("decode", 42.0, "a")}
