"""Fleets in Git, as Argo CD and Flux see them by their own code (`judge`, a Go program)."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.cluster.build import find_go
from tests.e2e.installed import Installed

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1800)]
HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
SCRIPT = EXAMPLES / "argocd" / "health.lua"
IN_SYNC = {"sync": "Synced", "drift": "unchanged"}
HEALTHY = {**IN_SYNC, "health": "Healthy", "status": "Current"}
HEALTHS = {"Healthy", "Progressing", "Suspended", "Degraded"}


class Git:
    """A folder of manifests, which is applied as Argo CD applies it, and judged all the time."""

    def __init__(self, argosy: Installed, folder: Path, judge: Path, names: list[str]) -> None:
        self.argosy = argosy
        self.folder = folder
        self.verdicts: list[dict[str, str]] = []
        """What changed, oldest first."""
        self.commits: dict[str, int] = {}
        """By object, since they are judged."""
        self.running = subprocess.Popen(
            [
                judge,
                f"-kubeconfig={argosy.kube.env['KUBECONFIG']}",
                f"-health={SCRIPT}",
                *(folder / f"{name}.yaml" for name in names),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.running.stdout is not None
        for line in self.running.stdout:
            self.verdicts.append(json.loads(line))

    def write(self, manifest: dict[str, Any]) -> None:
        """Commit a manifest, and sync it as Argo CD does: by a client-side apply."""
        name = f"ServingDeployment/{manifest['metadata']['name']}"
        self.commits[name] = self.commits.get(name, 0) + 1
        sync(self.argosy, self.folder, manifest)

    def stop(self) -> None:
        assert self.running.stdin is not None
        self.running.stdin.close()
        assert self.running.wait(30) == 0
        self.reader.join(10)

    def of(self, name: str) -> list[dict[str, str]]:
        return [v for v in self.verdicts if v["object"] == f"ServingDeployment/{name}"]

    def until(self, name: str, timeout_s: float = 180, **wanted: str) -> dict[str, str]:
        def found() -> dict[str, str] | None:
            last = self.of(name)[-1:]
            return last[0] if last and wanted.items() <= last[0].items() else None

        try:
            verdict: dict[str, str] = self.argosy.until(f"{name} {wanted}", found, timeout_s)
        except AssertionError as error:
            said = f"{self.of(name)[-1:]} {self.argosy.conditions(name)}"
            raise AssertionError(f"{error}: {said}") from None
        return verdict


def sync(argosy: Installed, folder: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest, and apply it."""
    manifest["metadata"]["namespace"] = argosy.namespace
    path = folder / f"{manifest['metadata']['name']}.yaml"
    made = path.with_suffix(".new")
    made.write_text(yaml.safe_dump(manifest))
    made.rename(path)
    argosy.kubectl("apply", "-f", str(path))


def pods(number: int) -> dict[str, Any]:
    """So many pods of each role."""
    replicas = {"min": number, "max": number}
    roles = ("prefill", "decode")
    return {role: {"replicas": replicas, "resources": {"gpu": 0}} for role in roles}


def environment(value: str) -> dict[str, Any]:
    """An engine whose value makes another revision."""
    return {"env": [{"name": "A", "value": value}]}


def hello(**spec: Any) -> dict[str, Any]:
    """examples/hello.yaml with one pod of each role, and changes."""
    manifest: dict[str, Any] = yaml.safe_load((EXAMPLES / "hello.yaml").read_text())
    manifest["spec"] |= {"drain": {"timeout": "40s"}, **spec}
    return manifest


def examples() -> Iterator[dict[str, Any]]:
    """Every fleet of the examples, under its file's name."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            if manifest and manifest["kind"] == "ServingDeployment":
                manifest["metadata"]["name"] = f"{path.stem}-{manifest['metadata']['name']}"
                yield manifest


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go, made = find_go(), tmp_path_factory.mktemp("judge") / "judge"
    assert go is not None, "python -m local.cluster build fetches Go"
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    # 12 minutes on two cores for the first time, then seconds.
    words = [go, "build", "-buildvcs=false", "-gcflags=all=-dwarf=false -l", "-o", made, "."]
    subprocess.run(words, cwd=HERE / "judge", env=env, check=True)
    return made


@pytest.fixture
def git(argosy: Installed, judge: Path, tmp_path: Path) -> Iterator[Git]:
    manifests = [hello(), *examples()]
    for manifest in manifests:
        sync(argosy, tmp_path, manifest)
    watched = Git(argosy, tmp_path, judge, [m["metadata"]["name"] for m in manifests])
    yield watched
    watched.stop()
    argosy.kubectl("delete", "sd", "--all", "--wait=false")


def test_no_fleet_drifts_and_its_health_is_what_a_person_would_say(
    argosy: Installed, git: Git
) -> None:
    git.until("hello", **HEALTHY)

    # It scales.
    git.write(hello(roles=pods(2)))
    argosy.until("two decode pods", lambda: len(argosy.pods("hello", "decode")) == 2, 120)
    git.until("hello", **HEALTHY)

    # It rolls out a revision.
    git.write(hello(roles=pods(2), engine=environment("1")))
    git.until("hello", **IN_SYNC, health="Progressing", status="InProgress")
    git.until("hello", **HEALTHY)

    # The rollout of another one is paused.
    paused = hello(roles=pods(2), engine=environment("2"), rollout={"paused": True})
    git.write(paused)
    git.until("hello", **IN_SYNC, health="Suspended")
    git.write(hello(roles=pods(2), engine=environment("2")))
    git.until("hello", **HEALTHY)

    # Its revision is undone, and Git still asks for it.
    argosy.kube.kubectl("argosy", "rollout", "undo", "hello", "-n", argosy.namespace)
    git.until("hello", **IN_SYNC, health="Degraded", status="Failed")
    git.write(hello(roles=pods(2), engine=environment("1")))
    git.until("hello", **HEALTHY)

    # It is parked.
    git.write(hello(roles=pods(0), engine=environment("1")))
    argosy.until("no engine pods", lambda: not argosy.pods("hello", "decode"), 60)
    git.until("hello", **HEALTHY)

    for name in {verdict["object"] for verdict in git.verdicts}:
        said = [verdict for verdict in git.verdicts if verdict["object"] == name]
        drifts = [verdict for verdict in said if not IN_SYNC.items() <= verdict.items()]
        # Git is ahead of the cluster for a moment after each commit.
        assert len(drifts) <= git.commits.get(name, 0), drifts
        assert said[-1].items() >= IN_SYNC.items()
        assert {verdict["health"] for verdict in said} <= HEALTHS
