"""A cluster with the files of a release alone: its images run as containers, its chart installs.

CoreDNS and Prometheus are programs of this machine, because no registry is asked for theirs.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from local.cluster.cluster import Cluster
from local.demo.kube import Kube
from local.release import checks
from local.release.__main__ import Asked, make
from local.release.chart import read_registry
from local.release.images import DEBOOTSTRAP, native_platform

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: debootstrap makes the base"),
]

ROOT = Path(__file__).parents[2]
FLEET = """
apiVersion: serving.argosy.dev/v1alpha1
kind: ServingDeployment
metadata: {name: hello}
spec:
  model: {uri: "sim://llama-70b-h100-tp4"}
  mode: disaggregated
  roles: {prefill: {resources: {gpu: 0}}, decode: {resources: {gpu: 0}}}
"""


@pytest.fixture(scope="module")
def release() -> Path:
    """A release of the checkout, in build/release, without CUDA."""
    if made := os.environ.get("ARGOSY_RELEASE"):
        return Path(made)
    version = checks.read_committed((ROOT / "pyproject.toml").read_text())
    small = ("operator", "gateway", "fetch", "engine-cpu")
    return make(version, Asked(read_registry(), DEBOOTSTRAP, (native_platform(),), small))


@pytest.fixture(scope="module")
def released(release: Path) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="argosy-test-") as folder:
        started = Cluster("released", nodes=1, state_dir=Path(folder) / "c", images_file=release)
        started.start(tied=True)
        yield started
        started.stop()


def test_a_fleet_of_released_images_and_chart_answers(
    release: Path, released: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packed,) = release.glob("argosy-*.tgz")
    shutil.copy(packed, tmp_path)
    monkeypatch.chdir(tmp_path)  # no checkout in sight
    kube = Kube(released.kubeconfig)
    version = packed.stem.removeprefix("argosy-")
    engine = f"images.engine={read_registry()}/engine-cpu:{version}"
    kube.helm("install", "argosy", packed.name, "--namespace", "argosy-system",
              "--create-namespace", "--set", engine, "--wait", "--timeout", "240s")  # fmt: skip
    kube.kubectl("apply", "-f", "-", given=FLEET)
    kube.kubectl("wait", "servingdeployment/hello", "--for=condition=Ready", "--timeout=240s")
    found = kube.kubectl("get", "pods", "-A", "-o", "jsonpath={.items[*].spec.containers[*].image}")
    assert {name for name in found.split() if name.startswith(read_registry())} == {
        f"{read_registry()}/{image}:{version}" for image in ("operator", "gateway", "engine-cpu")
    }
    address = f"http://127.0.0.1:{released.host_port('hello', 80, 'default')}"
    asked = {"model": "hello", "prompt": "The capital of France is", "max_tokens": 16}
    answer = httpx.post(f"{address}/v1/completions", json=asked, timeout=30, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 16
    # What answers is the image's Python, and nothing of this checkout.
    programs = {os.readlink(f"/proc/{pid}/exe") for pid in _pids("argosy engine")}
    assert programs == {"/usr/bin/python3.13"}


def _pids(words: str) -> list[str]:
    """Return the processes whose command line has the words."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = file.read_text().replace("\0", " ")
        except OSError:
            continue  # it has ended
        if words in said and "/opt/argosy" in said:
            found.append(file.parent.name)
    return found
