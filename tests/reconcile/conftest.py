"""A namespace with a fleet on the real API server, without the chart's operator."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from local.demo.errors import CommandError
from local.demo.kube import Kube
from tests.reconcile.operators import World

if TYPE_CHECKING:
    from local.cluster.cluster import Cluster

CRDS = Path(__file__).resolve().parents[2] / "crds"
NAMES = ("servingdeployments.serving.argosy.dev", "servingroles.serving.argosy.dev")
CHARTS = ("-n", "argosy-system", "deployment/argosy-operator")
CHARTS_DEPLOYMENT = "/apis/apps/v1/namespaces/argosy-system/deployments/argosy-operator"
CHARTS_LABEL = "app.kubernetes.io/name=argosy,app.kubernetes.io/component=operator"
FLEET = {
    "apiVersion": "serving.argosy.dev/v1alpha1",
    "kind": "ServingDeployment",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"uri": "sim://opt-13b-a100"},
        "routing": {"replicas": 1},
        "roles": {"colocated": {"replicas": {"min": 1, "max": 4}, "resources": {"gpu": 0}}},
    },
}


@pytest.fixture(scope="package")
def kube(cluster: "Cluster") -> Iterator[Kube]:
    """The cluster with our CRDs; an operator that the chart installed is away meanwhile."""
    kube = Kube(cluster.kubeconfig)
    missing = not kube.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAMES[0]}")
    if missing:
        kube.apply_crds(CRDS)
    installed = kube.get(CHARTS_DEPLOYMENT)
    if installed:
        kube.kubectl("scale", *CHARTS, "--replicas=0")
        # A process that ends still leads and writes, and one that has just begun may take 30 s.
        cluster.until(lambda: not _pods_of_chart(kube), "the chart's operator is gone", 45)
    yield kube
    if installed:
        kube.kubectl("scale", *CHARTS, "--replicas=2")
    if missing:
        kube.kubectl("delete", "crd", *NAMES, "--timeout=30s")


def _pods_of_chart(kube: Kube) -> list[str]:
    """The chart's operators, those that are being deleted included."""
    found = kube.get("/api/v1/namespaces/argosy-system/pods", labelSelector=CHARTS_LABEL)
    return [pod["metadata"]["name"] for pod in (found or {"items": []})["items"]]


@contextmanager
def fleets_world(cluster: "Cluster", kube: Kube, namespace: str) -> Iterator[World]:
    """Operators and the fleet end with the block."""
    world = World(cluster, kube, namespace)
    yield world
    for operator in world.operators:
        if operator.process.poll() is None:
            operator.stop()
    with suppress(CommandError):
        world.kubectl("delete", "sd", "--all", "--wait=false")


@pytest.fixture
def world(cluster: "Cluster", kube: Kube, namespace: str) -> Iterator[World]:
    """Nothing runs in it yet."""
    with fleets_world(cluster, kube, namespace) as world:
        yield world


@pytest.fixture
def running(world: World) -> World:
    """One operator, and the fleet is Ready."""
    world.operator()
    world.kubectl("apply", "-f", "-", given=yaml.safe_dump(FLEET))
    world.until_ready()
    return world
