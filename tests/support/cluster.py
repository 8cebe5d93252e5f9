"""Fixtures on a real one-machine cluster; it is started at the first test that asks for it.

The cluster ends with the test process, however that ends, and is none of the user's own: it has its
own state directory, network and ports.
"""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from local.cluster.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator["Cluster"]:
    """Three nodes with eight GPUs each."""
    from local.cluster.build import is_built
    from local.cluster.cluster import Cluster

    if not is_built("kube"):
        pytest.fail("the cluster's binaries are not built: python -m local.cluster build")
    with tempfile.TemporaryDirectory(prefix="argosy-test-") as folder:
        started = Cluster("test", state_dir=Path(folder) / "c")
        print(f"cluster ready after {started.start(tied=True).ready_s} s")
        yield started
        started.stop()


@pytest.fixture
def namespace(cluster: "Cluster") -> Iterator[str]:
    """A namespace of its own, deleted after the test without waiting for its end."""
    with new_namespace(cluster) as name:
        yield name


@contextmanager
def new_namespace(cluster: "Cluster") -> Iterator[str]:
    """A namespace with its default account, deleted at the end of the block."""
    name = f"test-{secrets.token_hex(4)}"
    cluster.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    cluster.until(lambda: bool(cluster.api.get(account)), "its ServiceAccount `default`")
    yield name
    cluster.api.delete(f"/api/v1/namespaces/{name}", {"gracePeriodSeconds": 0})
