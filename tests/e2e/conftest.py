"""The chart, installed once on the one-machine Kubernetes, for all tests of this folder."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from local.demo.kube import Kube
from local.demo.places.place import helm_install
from tests.e2e.installed import Installed

if TYPE_CHECKING:
    from local.cluster.cluster import Cluster

NAMESPACE = "e2e"


@pytest.fixture(scope="session")
def install_chart(cluster: "Cluster") -> Callable[..., None]:
    """Installs or upgrades the chart as the demo does, with further settings, and waits for it."""
    kube = Kube(cluster.kubeconfig)
    return partial(helm_install, kube, "--wait", "--timeout", "120s")


@pytest.fixture(scope="session")
def argosy(cluster: "Cluster", install_chart: Callable[..., None]) -> Iterator[Installed]:
    """The installed product, and a namespace for the tests' fleets."""
    from local.cluster.build import is_built

    if not is_built("prometheus"):
        pytest.fail("Prometheus is not built: python -m local.cluster build")
    install_chart()
    kube = Kube(cluster.kubeconfig)
    kube.kubectl("create", "namespace", NAMESPACE)

    def publish(service: str, namespace: str, port: int) -> str:
        return f"http://127.0.0.1:{cluster.host_port(service, port, namespace)}"

    yield Installed(kube, publish, NAMESPACE)
    kube.kubectl("delete", "sd", "--all", "-n", NAMESPACE, "--wait=false")
