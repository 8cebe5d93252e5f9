"""What pods need comes later: status names it, is Stalled only after progressDeadline, and heals.

GitOps makes objects in an order of its own, so an object that is missing is usual for seconds.
"""

from datetime import datetime
from typing import Any

import pytest
import yaml

from tests.reconcile.conftest import FLEET
from tests.reconcile.operators import World

pytestmark = [pytest.mark.cluster, pytest.mark.long]
DEADLINE_S = 4


def apply(world: World, *objects: dict[str, Any]) -> None:
    world.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(objects))


def start(world: World, **pod: Any) -> None:
    """Start an operator, and the fleet with these fields in the spec of its engine pods."""
    world.operator()
    colocated = FLEET["spec"].get("roles", {}).get("colocated", {})
    roles = {"roles": {"colocated": colocated | {"template": {"spec": pod}}}}
    spec = FLEET["spec"] | roles | {"progressDeadline": f"{DEADLINE_S}s"}
    apply(world, FLEET | {"spec": spec})


def since(conditions: list[dict[str, Any]], kind: str) -> float:
    """When this condition became what it is."""
    (found,) = (c["lastTransitionTime"] for c in conditions if c["type"] == kind)
    return datetime.fromisoformat(found).timestamp()


def stalled(world: World, reason: str) -> str:
    """The message of Stalled, once it is True for this reason."""
    says = lambda: world.condition("Stalled").get("reason") == reason  # noqa: E731
    world.until(f"Stalled for {reason}", says)
    return world.condition("Stalled")["message"]


def stalled_since(world: World) -> float:
    return since(world.fleet()["status"]["conditions"], "Stalled")


def test_a_secret_of_a_volume_that_comes_later_is_waited_for_and_the_fleet_heals(
    world: World,
) -> None:
    mounts = [{"name": "keys", "mountPath": "/data"}]
    start(
        world,
        volumes=[{"name": "keys", "secret": {"secretName": "late"}}],
        containers=[{"name": "engine", "volumeMounts": mounts}],
    )
    stalled(world, "PodNotStarted")
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    (pod,) = world.kube.get(pods, labelSelector="serving.argosy.dev/role=colocated")["items"]
    name, conditions = pod["metadata"]["name"], pod["status"]["conditions"]
    # Until its kubelet writes the pod's status, the message says that the kubelet does not.
    world.until(
        "the kubelet's word",
        lambda: f"pod {name} is ContainerCreating since" in world.condition("Stalled")["message"],
    )
    message = stalled(world, "PodNotStarted")
    assert "its volumes are not mounted, or it has no network" in message
    assert stalled_since(world) >= since(conditions, "PodScheduled") + DEADLINE_S
    apply(world, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}})
    world.until_ready()
    world.until("all is well", lambda: world.condition("Stalled")["status"] == "False")
