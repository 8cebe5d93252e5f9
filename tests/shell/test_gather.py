"""What a round asks of the world."""

from typing import Any

from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.core.fleet.snapshot import Clock
from argosy_operator.core.scaling.observe import unknown_metrics
from argosy_operator.ports.protocols import FleetPods, Measurement
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
