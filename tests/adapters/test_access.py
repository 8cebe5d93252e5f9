"""How the API server is reached where the environment names proxies."""

from pathlib import Path

import pytest
import yaml
from kubernetes.aio.client import Configuration

from argosy_operator.adapters import access
from argosy_operator.adapters.access import Access, AccessError
from argosy_operator.adapters.cluster import ApiCluster
from argosy_operator.adapters.lease import Term
from tests.adapters.api_server import ApiServer

PROXY = "http://127.0.0.1:1"
"""Nothing answers there."""


@pytest.fixture(autouse=True)
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a platform gives all pods."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,.svc,.example.com")


def kubeconfig(folder: Path, server: str, **cluster: str) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return str(path)


async def test_in_a_cluster_the_api_server_is_reached_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "203.0.113.7")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    async with ApiServer(places=1, work_s=0.0).serving(tmp_path) as config:
        host = (await Access(config).configuration()).host

        def in_cluster(configuration: Configuration) -> None:
            configuration.host = host

        monkeypatch.setattr(access, "load_incluster_config", in_cluster)
        async with ApiCluster(Access(), Term(), lambda *_: None) as cluster:
            assert await cluster.get("Lease", "ns", "absent") is None
        assert (await Access().configuration()).proxy is None


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        ("https://10.96.0.1", None),
        ("https://203.0.113.7:6443", PROXY),
        ("https://api.example.com", None),
        ("https://api.example.org", PROXY),
        ("https://127.0.0.1:6443", None),
        ("https://localhost:6443", None),
        ("https://[::1]:6443", None),
    ],
)
async def test_a_kubeconfigs_server_has_the_environments_proxy_as_for_kubectl(
    server: str, proxy: str | None, tmp_path: Path
) -> None:
    of = Access(kubeconfig(tmp_path, server))
    assert (await of.configuration()).proxy == proxy
    assert (await of.configuration()).proxy == proxy


@pytest.mark.parametrize("text", ["a: [", "[1]", "text", "contexts: 1", "contexts: [1]", ""])
async def test_a_file_that_is_no_kubeconfig_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    found = Access(str(file))
    with pytest.raises(AccessError, match="no access to a cluster"):
        found.namespace(), await found.configuration()
