"""What a round asks of the world."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from argosy_law.observe import Value, unknown_metrics
from argosy_law.signals.gateways import Reading
from argosy_operator.adapters.protocols import FleetPods, Measurement
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.status import ServingDeploymentStatus
from argosy_operator.core.snapshot.pods import (
    FailingPair,
    FetchProgress,
    GatewayLoad,
    Handovers,
    SettingsRead,
)
from argosy_operator.core.snapshot.snapshot import Clock, LoopMemory, ReplicaSet
from argosy_operator.shell.gather import Sources, gather
from tests.support.model import IMAGES, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}


def pod(name: str, role: str, ready: str, **meta: Any) -> dict[str, Any]:
    labels = {"serving.argosy.dev/role": role, "serving.argosy.dev/fleet": "chat"}
    owners = [{"kind": "ReplicaSet", "uid": "set", "controller": True}]
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "labels": labels,
            "ownerReferences": owners,
            **meta,
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }


DEPLOYMENT = {
    "kind": "Deployment",
    "metadata": {"name": "d", "uid": "d", "ownerReferences": [{"uid": "fleet-1"}]},
    "spec": {},
}
SET = {
    "metadata": {
        "uid": "set",
        "ownerReferences": [{"kind": "Deployment", "uid": "d", "controller": True}],
    },
}


class World:
    """A namespace with these pods and a Prometheus that records which pods count."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = list(pods)
        self.asked: FleetPods | None = None

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Any:
        return {"Pod": self.pods, "ReplicaSet": [SET], "Deployment": [DEPLOYMENT]}.get(kind, [])

    async def get(self, kind: str, namespace: str, name: str) -> Any:
        return None

    async def measure(self, fleet: Any, pods: FleetPods) -> Measurement:
        self.asked = pods
        return Measurement(unknown_metrics(1e6, "NoTargets"), next_at=60.0)


async def test_ready_gateways_must_report_and_no_other_pod() -> None:
    world = World(
        pod("gateway-a", "gateway", "True"),
        pod("gateway-starting", "gateway", "False"),
        pod("gateway-leaving", "gateway", "True", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("engine", "decode", "True"),
    )
    sources = Sources(world, world, world, IMAGES)  # type: ignore[arg-type]
    await gather(sources, fleet(slo=SLO), LoopMemory(), Clock(1e6, 50.0))
    assert world.asked == FleetPods(frozenset({"gateway-a"}), frozenset({"engine"}))


@pytest.mark.parametrize(
    ("ready", "closed"), [(("True", "False"), False), (("False", "False"), True), ((), False)]
)
async def test_gateways_of_which_none_is_ready_are_closed(
    ready: tuple[str, ...], closed: bool
) -> None:
    world = World(*(pod(f"gateway-{n}", "gateway", said) for n, said in enumerate(ready)))
    sources = Sources(world, world, world, IMAGES)  # type: ignore[arg-type]
    await gather(sources, fleet(slo=SLO), LoopMemory(), Clock(1e6, 50.0))
    assert world.asked is not None
    assert world.asked.closed == closed


def replica_set(uid: str, deployment: str, **labels: str) -> dict[str, Any]:
    owner = {"kind": "Deployment", "uid": deployment, "controller": True}
    metadata = {"uid": uid, "ownerReferences": [owner], **({"labels": labels} if labels else {})}
    return {"metadata": metadata, "spec": {"replicas": 3}}


async def replica_sets_read(
    monkeypatch: pytest.MonkeyPatch, flips: bool, *sets: Any
) -> Mapping[str, ReplicaSet]:
    """Those of the snapshot of a fleet with the Deployment `d`, where these exist."""

    async def listed(kind: str, namespace: str | None, selector: str = "") -> Any:
        return {"ReplicaSet": list(sets), "Deployment": [DEPLOYMENT]}.get(kind, [])

    world = World()
    monkeypatch.setattr(world, "list", listed)
    sources = Sources(world, world, world, IMAGES)  # type: ignore[arg-type]
    scaling = {"policy": "External", "roleFlip": flips}
    split = fleet(mode="disaggregated", autoscaling=scaling)
    return (await gather(sources, split, LoopMemory(), Clock(1e6, 50.0))).replica_sets


@pytest.mark.parametrize("flips", [True, False])
async def test_a_fleet_that_flips_roles_knows_the_replica_sets_of_its_deployments(
    monkeypatch: pytest.MonkeyPatch, flips: bool
) -> None:
    labels = {"serving.argosy.dev/role": "decode", "pod-template-hash": "abc"}
    read = await replica_sets_read(
        monkeypatch,
        flips,
        replica_set("s1", "d", **labels),
        replica_set("s2", "d"),
        replica_set("s3", "of another fleet", **labels),
        {"metadata": {"uid": "nobodys"}, "spec": {"replicas": 1}},
    )
    expected = {"s1": ReplicaSet("d", "decode", "abc", 3), "s2": ReplicaSet("d", "", "", 3)}
    assert read == (expected if flips else {})


async def test_ready_gateways_of_a_split_fleet_say_which_pairs_fail() -> None:
    """One that does not answer names nobody."""
    pairs = {
        "10.0.0.1": FailingPair("p", "d", "silent", 2),
        "10.0.0.2": FailingPair("p", "d2", "silent", 2),
    }
    ages, asked = {"10.0.0.1": 9.0, "10.0.0.2": 8.0}, []

    class Gateways:
        async def handovers(self, ip: str) -> Handovers:
            asked.append(ip)
            return Handovers(frozenset({pairs[ip]}), {"d3": ages[ip], ip: 7.0})

    world = World(
        *(pod(f"gateway-{n}", "gateway", "True") for n in (1, 2)),
        pod("gateway-starting", "gateway", "False"),
        pod("engine", "decode", "True"),
    )
    for number, raw in enumerate(world.pods, 1):
        raw["status"]["podIP"] = f"10.0.0.{number}"
    sources = Sources(world, world, world, IMAGES, gateways=Gateways())  # type: ignore[arg-type]
    split = fleet(slo=SLO, mode="disaggregated")
    snapshot = await gather(sources, split, LoopMemory(), Clock(1e6, 50.0))
    seen = snapshot.handovers
    assert seen.failing == set(pairs.values())
    assert seen.whole_s == {"d3": 8.0, "10.0.0.1": 7.0, "10.0.0.2": 7.0}, "the latest counts"
    assert sorted(asked) == sorted(pairs)
    asked.clear()
    snapshot = await gather(sources, fleet(slo=SLO), LoopMemory(), Clock(1e6, 50.0))
    assert (snapshot.handovers, asked) == (Handovers(), [])
    world.pods.clear()
    snapshot = await gather(sources, split, LoopMemory(), Clock(1e6, 50.0))
    assert (snapshot.handovers, asked) == (Handovers(), []), "a fleet that has no pods yet"


async def test_pods_that_fetch_a_model_are_asked_how_far_they_are() -> None:
    asked = []

    class Fetchers:
        async def progress(self, ip: str) -> FetchProgress | None:
            asked.append(ip)
            return FetchProgress(3, 4) if ip == "10.0.0.1" else None

    fetching = [pod(f"fetch-{n}", "fetch", "True") for n in (1, 2, 3)]
    for number, raw in enumerate(fetching, 1):
        owner = {"kind": "Job", "uid": "job", "controller": True}
        raw["metadata"]["ownerReferences"] = [owner]
        running = [{"name": "fetch", "state": {"running": {}}}]
        raw["status"] |= {"podIP": f"10.0.0.{number}", "containerStatuses": running}
    fetching[2]["status"]["phase"] = "Succeeded"
    world = World(*fetching)
    sources = Sources(world, world, world, IMAGES, fetchers=Fetchers())  # type: ignore[arg-type]
    snapshot = await gather(sources, fleet(slo=SLO), LoopMemory(), Clock(1e6, 50.0))
    assert snapshot.fetch_progress == {"fetch-1": FetchProgress(3, 4)}
    assert sorted(asked) == ["10.0.0.1", "10.0.0.2"]


async def test_every_gateway_that_runs_is_asked_whether_a_fleet_that_may_go_to_zero_is_used() -> (
    None
):
    asked = []

    class Gateways:
        async def handovers(self, ip: str) -> Handovers:
            return Handovers()

        async def load(self, ip: str, name: str) -> GatewayLoad | None:
            asked.append((ip, name))
            return GatewayLoad(0, 60.0) if name == "gateway-1" else None

    world = World(
        pod("gateway-1", "gateway", "True"),
        pod("gateway-2", "gateway", "False"),
        pod("engine", "colocated", "True"),
    )
    for number, raw in enumerate(world.pods, 1):
        raw["status"] |= {
            "podIP": f"10.0.0.{number}",
            "phase": "Running",
            "containerStatuses": [{"name": "main", "state": {"running": {}}}],
        }
    sources = Sources(world, world, world, IMAGES, gateways=Gateways())  # type: ignore[arg-type]
    zero = {"autoscaling": {"scaleToZero": {}}}
    snapshot = await gather(sources, fleet(**zero), LoopMemory(), Clock(1e6, 50.0))
    assert snapshot.gateway_loads == {"gateway-1": GatewayLoad(0, 60.0), "gateway-2": None}
    assert sorted(asked) == [("10.0.0.1", "gateway-1"), ("10.0.0.2", "gateway-2")]
    asked.clear()
    for spec in ({}, {**zero, "paused": True}):
        settled = rolled_out(fleet(**spec))
        snapshot = await gather(sources, settled, LoopMemory(), Clock(1e6, 50.0))
        assert (snapshot.gateway_loads, asked) == ({}, [])


def rolled_out(found: ServingDeployment, generation: int = 1, status: str = "True") -> Any:
    """The fleet, with a status that says so of this generation."""
    said = {"type": "RolledOut", "status": status, "reason": "RolledOut", "message": "m"}
    said |= {"observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    told = ServingDeploymentStatus.model_validate({"conditions": [said]})
    return found.model_copy(update={"status": told})


@pytest.mark.parametrize(
    ("settled", "asks"),
    [
        (fleet(), True),
        (rolled_out(fleet()), False),
        (rolled_out(fleet(), status="False"), True),
        (rolled_out(fleet(generation=2)), True),
        (rolled_out(fleet(generation=2), generation=2), False),
    ],
    ids=["new", "at rest", "on its way", "edited", "at rest again"],
)
async def test_gateways_are_asked_for_their_settings_until_the_fleet_is_rolled_out(
    settled: ServingDeployment, asks: bool
) -> None:
    class Gateways:
        async def load(self, ip: str, name: str) -> GatewayLoad | None:
            return GatewayLoad(0, 1.0, settings=SettingsRead("0123456789abcdef"))

    world = World(pod("gateway-1", "gateway", "True"))
    world.pods[0]["status"] |= {
        "podIP": "10.0.0.1",
        "containerStatuses": [{"name": "main", "state": {"running": {}}}],
    }
    sources = Sources(world, world, world, IMAGES, gateways=Gateways())  # type: ignore[arg-type]
    snapshot = await gather(sources, settled, LoopMemory(), Clock(1e6, 50.0))
    assert bool(snapshot.gateway_loads) is asks


async def test_a_start_from_zero_does_not_wait_for_prometheus() -> None:
    class Never:
        async def measure(self, fleet: Any, pods: Any) -> None:
            pytest.fail("asked Prometheus")

    world = World(pod("gateway-1", "gateway", "True"))
    sources = Sources(world, Never(), world, IMAGES)  # type: ignore[arg-type]
    asked = fleet(slo=SLO, autoscaling={"scaleToZero": {}})
    memory = LoopMemory(uid="fleet-1", listen=(("gateway-1", "10.0.0.1"),))
    snapshot = await gather(sources, asked, memory, Clock(1e6, 50.0))
    assert snapshot.metrics is None


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("away", [True, False])
async def test_gateways_are_asked_for_their_load_while_prometheus_has_no_arrivals(
    away: bool, asks: bool
) -> None:
    order = list[str]()
    accepted = iter((100.0, 130.0, 160.0))

    class Gateways:
        async def load(self, ip: str, name: str) -> GatewayLoad | None:
            order.append("gateway")
            at = clock.now + (0.0 if asks else 1.0)  # after the query that failed
            return GatewayLoad(1, 0.0, Reading(name, at, next(accepted), 0.0, 7.0))

    class Prometheus:
        async def measure(self, fleet: Any, pods: FleetPods) -> Measurement:
            order.append("prometheus")
            seen = unknown_metrics(clock.now, "PrometheusAway: it is gone")
            if not away:
                seen = replace(seen, arrivals=Value(3.0, clock.now), clock_skew_s=5.0)
            return Measurement(seen, next_at=60.0)

    world = World(pod("gateway-1", "gateway", "True"))
    world.pods[0]["status"] |= {
        "podIP": "10.0.0.1",
        "containerStatuses": [{"name": "main", "state": {"running": {}}}],
    }
    sources = Sources(world, Prometheus(), world, IMAGES, gateways=Gateways())  # type: ignore[arg-type]
    spec = rolled_out(fleet(slo=SLO, metrics={"askGateways": asks}))
    clock, memory = Clock(1e6, 50.0), LoopMemory()
    snapshot = await gather(sources, spec, memory, clock)
    first = ["gateway", "prometheus"] if asks else ["prometheus", "gateway"]
    assert order == (first if asks or away else ["prometheus"])
    assert snapshot.metrics is not None
    assert snapshot.metrics.gateways_alone == "", "one answer is no rate yet"
    assert snapshot.heard.skew_s == (0.0 if away else 5.0)
    if not away:
        return
    clock, memory = Clock(1e6 + 15, 65.0), replace(memory, heard=snapshot.heard)
    snapshot = await gather(sources, spec, memory, clock)
    assert snapshot.metrics is not None
    assert snapshot.metrics.gateways_alone == "PrometheusAway: it is gone"
    assert snapshot.metrics.arrivals == Value(2.0, clock.now + (0.0 if asks else 1.0))
