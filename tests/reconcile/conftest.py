"""A namespace with a fleet on the real API server, without the chart's operator."""

from collections.abc import Iterator
from contextlib import suppress
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


@pytest.fixture(scope="module")
def kube(cluster: "Cluster") -> Iterator[Kube]:
    """The cluster with our CRDs; an operator that the chart installed is sent away meanwhile."""
    kube = Kube(cluster.kubeconfig)
    missing = not kube.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAMES[0]}")
    if missing:
        kube.kubectl("apply", "--server-side", "-f", str(CRDS))
        kube.kubectl("wait", "crd", *NAMES, "--for=condition=Established", "--timeout=30s")
    installed = kube.get("/apis/apps/v1/namespaces/argosy-system/deployments/argosy-operator")
    if installed:
        kube.kubectl("scale", *CHARTS, "--replicas=0")
    yield kube
    if installed:
        kube.kubectl("scale", *CHARTS, "--replicas=2")
    if missing:
        kube.kubectl("delete", "crd", *NAMES, "--timeout=30s")


@pytest.fixture
def world(kube: Kube, namespace: str) -> Iterator[World]:
    """Nothing runs in it yet."""
    world = World(kube, namespace)
    yield world
    for operator in world.operators:
        if operator.process.poll() is None:
            operator.stop()
    with suppress(CommandError):
        world.kubectl("delete", "sd", "--all", "--wait=false")


@pytest.fixture
def running(world: World) -> World:
    """One operator, and the fleet is Ready."""
    world.operator()
    world.kubectl("apply", "-f", "-", given=yaml.safe_dump(FLEET))
    world.until_ready()
    return world
