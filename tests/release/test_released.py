"""A cluster with the files of a release alone: its images run as containers, its chart installs.

CoreDNS and Prometheus are programs of this machine, because no registry is asked for theirs.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from local.cluster.cluster import Cluster
from local.cluster.config.images import read_registry
from local.demo.kube import TOOLS, Kube
from local.release import checks
from local.release.__main__ import Asked, make
from local.release.images import DEBOOTSTRAP, native_platform

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: debootstrap makes the base"),
]

ROOT = Path(__file__).parents[2]
HELLO = ROOT / "examples" / "hello.yaml"


@pytest.fixture(scope="module")
def release() -> Path:
    """A release of the checkout, in build/release, without CUDA."""
    if made := os.environ.get("ARGOSY_RELEASE"):
        return Path(made)
    version = checks.read_committed((ROOT / "pyproject.toml").read_text())
    small = ("operator", "gateway", "fetch", "engine-cpu")
    return make(version, Asked(DEBOOTSTRAP, (native_platform(),), small))


@pytest.fixture(scope="module")
def released(release: Path) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="argosy-test-") as folder:
        started = Cluster("released", nodes=1, state_dir=Path(folder) / "c", images_file=release)
        started.start(tied=True)
        yield started
        started.stop()


def test_the_archives_have_the_names_that_the_readme_and_the_chart_ask_for(release: Path) -> None:
    (packed,) = release.glob("argosy-*.tgz")
    version = packed.stem.removeprefix("argosy-")
    named = {archive.name.removesuffix(f"-{version}.oci.tar"): _name(archive)
             for archive in release.glob("*.oci.tar")}  # fmt: skip
    assert set(named.values()) == {f"{read_registry()}/{image}:{version}" for image in named}
    (install,) = _lines("helm install")
    small = {named[image] for image in ("operator", "gateway", "fetch", "engine-cpu")}
    assert _images(packed, *shlex.split(install)[4:]) == small
    others = {f"{read_registry()}/{image}:{version}" for image in ("engine", "engine-cpu")}
    assert _images(packed) - others == small - others


def test_the_readmes_lines_for_kind_lead_to_an_answer_without_the_checkout(
    release: Path, released: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packed,) = release.glob("argosy-*.tgz")
    version = packed.stem.removeprefix("argosy-")
    for file, folder in ((packed, f"build/release/{version}"), (HELLO, "examples")):
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(file, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    kube = Kube(released.kubeconfig)
    (install,) = _lines("helm install")
    kube.helm(*shlex.split(install)[1:])
    for line in _lines("kubectl apply") + _lines("kubectl wait"):
        kube.kubectl(*shlex.split(line)[1:])
    found = kube.kubectl("get", "pods", "-A", "-o", "jsonpath={.items[*].spec.containers[*].image}")
    assert {name for name in found.split() if name.startswith(read_registry())} == {
        f"{read_registry()}/{image}:{version}" for image in ("operator", "gateway", "engine-cpu")
    }
    (curl,) = (shlex.split(line) for line in _lines("curl"))
    address = f"http://127.0.0.1:{released.host_port('hello', 80, 'default')}"
    url = curl[1].replace("http://127.0.0.1:8080", address)
    asked = json.loads(curl[curl.index("-d") + 1])
    answer = httpx.post(url, json=asked, timeout=30, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == asked["max_tokens"] == 16
    # What answers is the image's Python, and nothing of this checkout.
    programs = {os.readlink(f"/proc/{pid}/exe") for pid in _pids("argosy engine")}
    assert programs == {"/usr/bin/python3.13"}


def _lines(beginning: str) -> list[str]:
    """Return the README's commands for kind that begin so."""
    section = (ROOT / "README.md").read_text().split("\n## Try it\n")[1].split("\n## ")[0]
    script = "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL)).replace("\\\n", " ")
    return [line for line in script.splitlines() if line.startswith(beginning)]


def _name(archive: Path) -> str:
    """Return the name that `kind load image-archive` gives the image: containerd takes it."""
    with tarfile.open(archive) as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        (manifest,) = json.load(index)["manifests"]
    name: str = manifest["annotations"]["org.opencontainers.image.ref.name"]
    return name


def _images(packed: Path, *words: str) -> set[str]:
    """Return those of our images that a chart names when it is rendered."""
    command = [str(TOOLS / "helm"), "template", "argosy", str(packed), *words]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return set(re.findall(rf"{re.escape(read_registry())}/[\w-]+:[\w.-]+", text))


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
