"""What a round asks of the world."""

from typing import Any

from argosy_operator.core.fleet.snapshot import Clock, Memory
from argosy_operator.core.scaling.observe import FleetMetrics, unknown_metrics
from argosy_operator.shell.gather import Sources, gather
from tests.core.model import IMAGES, fleet

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
    """A namespace with these pods and a Prometheus that notes whom it must hear of."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = list(pods)
        self.must_report: frozenset[str] | None = None

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> Any:
        return {"Pod": self.pods, "ReplicaSet": [SET], "Deployment": [DEPLOYMENT]}.get(kind, [])

    async def fleet(self, fleet: Any, at: float, gateways: frozenset[str]) -> FleetMetrics:
        self.must_report = gateways
        return unknown_metrics(at, "NoTargets")


async def test_ready_gateways_must_report_and_no_other_pod() -> None:
    world = World(
        pod("gateway-a", "gateway", "True"),
        pod("gateway-starting", "gateway", "False"),
        pod("gateway-leaving", "gateway", "True", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("engine", "decode", "True"),
    )
    sources = Sources(world, world, world, IMAGES)  # type: ignore[arg-type]
    await gather(sources, fleet(slo=SLO), Memory(), Clock(1e6, 50.0))
    assert world.must_report == {"gateway-a"}
