"""Our own one-machine Kubernetes: started for the demo and left running for the user."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import yaml

from local.demo.errors import DemoError
from local.demo.figures import DemoFigures
from local.demo.kube import TOOLS, Kube, await_answer
from local.demo.places import farewell
from local.demo.places.place import NAMESPACE, SYSTEM, helm_install, write_diagnosis
from local.demo.view import console, say

SCALED = "sim-70b"
"""The fleet that the ramp scales."""
GPUS_PER_NODE = 16
"""Pretended GPUs: three nodes then hold eight simulated replicas of four, and the real model."""


class OneMachine:
    """Our own Kubernetes, started for the demo and left running for the user."""

    is_ours = True

    def __init__(self, out: Path, name: str) -> None:
        self._out = out
        self._name = name
        self._weights: threading.Thread | None = None
        self._weights_at: str | None = None
        self._started = False
        self.is_complete = False
        self._addresses: dict[tuple[str, str, int], str] = {}
        self.audit_log: Path | None = None

    def start(self, figures: DemoFigures) -> None:
        """Start the cluster as soon as Kubernetes is built; the weights are unpacked meanwhile."""
        self._weights = threading.Thread(target=self._make_weights, daemon=True)
        self._weights.start()
        self._await_build("kube")
        self._cluster("down")  # an earlier demo leaves its cluster running
        report = json.loads(self._cluster("up", "--json", "--gpus-per-node", str(GPUS_PER_NODE)))
        self._started = True
        figures.put("cluster_start_s", report["ready_s"])
        self.kube = Kube(Path(report["kubeconfig"]))
        self.audit_log = Path(report["audit_log"])
        say(f"Kubernetes is ready; it took {report['ready_s']:.1f} s to start")
        say(f"export KUBECONFIG={report['kubeconfig']}")

    def install(self, figures: DemoFigures) -> None:
        """Install the chart, without Prometheus if that is still being built."""
        from local.cluster.build import is_built

        self.kube.kubectl("create", "namespace", NAMESPACE)
        self.is_complete = is_built("prometheus")
        if self.is_complete:
            figures.caches_complete = max(figures.began, _newest_cache_time())
        helm_install(self.kube, embedded=self.is_complete)
        assert self._weights is not None
        self._weights.join()

    def complete(self, figures: DemoFigures) -> None:
        """Add Prometheus once it is built; a fleet without an SLO needs none."""
        self._await_build("all")
        figures.caches_complete = _newest_cache_time()
        helm_install(self.kube, embedded=True)
        self.is_complete = True

    def provide_weights(self) -> None:
        """A PersistentVolume over the cache's folder, and the claim `models`."""
        if self._weights_at is None:
            raise DemoError(f"the weights could not be written: see {self._out}/weights.log")
        self.kube.kubectl("apply", "-f", "-", given=_volume(Path(self._weights_at).parent))

    def publish(self, service: str, namespace: str = NAMESPACE, port: int = 80) -> str:
        """The Service's URL on loopback, once it answers."""
        key = (service, namespace, port)
        if key not in self._addresses:
            words = ("publish", f"{namespace}/{service}:{port}")
            self._addresses[key] = await_answer(self._cluster(*words).strip().splitlines()[-1])
        return self._addresses[key]

    def diagnose(self, out: Path) -> None:
        """Nothing if the cluster never started: the build's log has the reason then."""
        if self._started:
            write_diagnosis(self.kube, out)

    def leave(self, *, keep: bool) -> None:
        """Stop the cluster, or print how to reach it and how to stop it."""
        if not self._started:
            return
        if not keep:
            self._cluster("down")
            say("the cluster is stopped; no process, mount or network namespace is left")
            return
        console.print("\nThe cluster is still running. To look around:")
        for line in (*self._settings(), *self._hints()):
            console.print(f"  {line}", soft_wrap=True, markup=False)
        for (service, namespace, _), url in self._addresses.items():
            if namespace == SYSTEM:
                console.print(f"{service}: {url}", soft_wrap=True)
        console.print(f"Stop it with: make cluster-down NAME={self._name}", soft_wrap=True)

    def try_hints(self, figures: DemoFigures) -> None:
        """Run the commands that `leave` prints."""
        failed = farewell.try_out(self._settings(), self._hints())
        for sentence in failed:
            say(f"a command that the demo prints at its end failed: {sentence}")
        figures.put("hints_work", not failed)

    def _settings(self) -> list[str]:
        return farewell.settings(self.kube.kubeconfig, TOOLS)

    def _hints(self) -> list[str]:
        """Commands for the fleets that still run: the demo deletes one of its own."""
        listed = json.loads(self.kube.kubectl("get", "sd", "-n", NAMESPACE, "-o", "json"))
        running = {
            item["metadata"]["name"]
            for item in listed["items"]
            if "deletionTimestamp" not in item["metadata"]
        }
        addresses = {
            service: url
            for (service, namespace, _), url in self._addresses.items()
            if namespace == NAMESPACE and service in running
        }
        return farewell.commands(NAMESPACE, SCALED, addresses)

    def _await_build(self, stage: str) -> None:
        words = [sys.executable, "-m", "local.cluster.build", "--stage", stage]
        # Its standard output is the binaries' folder, which says nothing to a user.
        done = subprocess.run(words, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise DemoError(f"the binaries could not be built: see {self._out}/build.log")

    def _make_weights(self) -> None:
        with (self._out / "weights.log").open("w") as log:
            words = [sys.executable, "-m", "local.weights.smollm2", "--dtype", "float32"]
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
        if not done.returncode:
            self._weights_at = done.stdout.strip().splitlines()[-1]

    def _cluster(self, *words: str) -> str:
        verb, *rest = words
        done = subprocess.run(
            [sys.executable, "-m", "local.cluster", verb, "--name", self._name, *rest],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoError(
                f"python -m local.cluster {' '.join(words)} failed: {done.stdout[-2000:]}"
            )
        return done.stdout


def _newest_cache_time() -> float:
    """Unix time at which the last of binaries, environment and weights was complete."""
    from local.cluster.build import completed_at

    environment = os.path.getmtime(".venv/.all") if os.path.exists(".venv/.all") else 0.0
    return max(environment, completed_at())


def _volume(folder: Path) -> str:
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "demo-models"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"namespace": NAMESPACE, "name": "models"},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models", "namespace": NAMESPACE},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeName": "demo-models",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    return yaml.safe_dump_all([volume, claim])
