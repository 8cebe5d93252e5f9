"""Where the demo runs: our own one-machine Kubernetes, or a cluster that the user names.

A place starts a cluster, installs the chart with the real helm, makes weights available as a
volume, and gives addresses on loopback for what the user's browser should reach.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import httpx
import yaml

from local.demo.figures import DemoFigures
from local.demo.kube import TOOLS, Kube, await_answer
from local.demo.places import farewell
from local.demo.view import console, say

NAMESPACE = "demo"
SYSTEM = "argosy-system"
WEIGHTS = "SmolLM2-135M-Instruct"
CHART = "charts/argosy"
SCALED = "sim-70b"
"""The fleet that the ramp scales."""
GPUS_PER_NODE = 16
"""Pretended: room for eight replicas of four on three nodes, beside the real small model."""


class Place(Protocol):
    """What the stages need of a cluster."""

    kube: Kube
    is_ours: bool
    is_complete: bool
    system: str
    audit_log: Path | None

    def start(self, figures: DemoFigures) -> None: ...
    def install(self, figures: DemoFigures) -> None: ...
    def complete(self, figures: DemoFigures) -> None: ...
    def provide_weights(self) -> None: ...
    def publish(self, service: str, namespace: str = NAMESPACE, port: int = 80) -> str: ...
    def wait_scraped(self, fleet: str) -> None: ...
    def operator_rss_mib(self) -> float: ...
    def diagnose(self, out: Path) -> None: ...
    def try_hints(self, figures: DemoFigures) -> None: ...
    def leave(self, *, keep: bool) -> None: ...


def helm_install(kube: Kube, *settings: str, embedded: bool = True) -> None:
    """Install the chart with Prometheus scraping at the demo's pace.

    Not `embedded`: with the address that the embedded one will have, so that adding it later
    leaves the operator as it is.
    """
    later = f"prometheus.url=http://argosy-prometheus.{SYSTEM}.svc:9090"
    source = "prometheus.embedded=true" if embedded else later
    pace = ("--set", source, "--set", "prometheus.scrapeInterval=1s")
    done = kube.helm(
        *("upgrade", "--install", "argosy", CHART, "--namespace", SYSTEM, "--create-namespace"),
        *(*pace, *settings),
    )
    status = next(line for line in done.splitlines() if line.startswith("STATUS"))
    say(f"helm install argosy {CHART}: {status.lower()}")


def prometheus_value(url: str, query: str) -> float | None:
    """One instant query; None when there is no sample."""
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=5, trust_env=False)
    answer.raise_for_status()
    found = answer.json()["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def wait_scraped(url: str, fleet: str) -> None:
    """Until Prometheus has seen every pod of the fleet at least once."""
    query = f'count(up{{fleet="{fleet}",namespace="{NAMESPACE}"}} == 1)'
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (prometheus_value(url, query) or 0) >= 4:  # 2 gateways, 1 prefill, 1 decode
            return
        time.sleep(0.5)
    raise TimeoutError(f"Prometheus does not scrape fleet {fleet}: see {url}/targets")


def operator_rss_mib(url: str) -> float:
    """Largest resident size among the operator's replicas."""
    value = prometheus_value(url, f'max(process_resident_memory_bytes{{namespace="{SYSTEM}"}})')
    if value is None:
        raise TimeoutError("Prometheus has no process_resident_memory_bytes of the operator")
    return value / 2**20


class OneMachine:
    """Our own Kubernetes, started for the demo and left running for the user."""

    is_ours = True
    system = SYSTEM

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
        """The cluster starts as soon as Kubernetes is built; weights unpack meanwhile."""
        self._weights = threading.Thread(target=self._make_weights, daemon=True)
        self._weights.start()
        self._await_build("kube")
        self._cluster("down")  # what an earlier demo left running
        begun = time.monotonic()
        report = json.loads(self._cluster("up", "--json", "--gpus-per-node", str(GPUS_PER_NODE)))
        self._started = True
        figures.put("cluster_start_s", report["ready_s"])
        self.kube = Kube(Path(report["kubeconfig"]))
        self.audit_log = Path(report["audit_log"])
        say(f"Kubernetes is ready after {report['ready_s']:.1f} s ({time.monotonic() - begun:.1f})")
        say(f"export KUBECONFIG={report['kubeconfig']}")

    def install(self, figures: DemoFigures) -> None:
        """Prometheus may still be building; CRDs and the operator need not wait for it."""
        from local.cluster.build import is_built

        self.kube.kubectl("create", "namespace", NAMESPACE)
        self.is_complete = is_built("prometheus")
        if self.is_complete:
            figures.caches_complete = max(figures.began, _newest_cache_time())
        helm_install(self.kube, embedded=self.is_complete)
        assert self._weights is not None
        self._weights.join()

    def complete(self, figures: DemoFigures) -> None:
        """Add Prometheus when it had to be built first; fleets without an SLO need none."""
        self._await_build("all")
        figures.caches_complete = _newest_cache_time()
        helm_install(self.kube, embedded=True)
        self.is_complete = True

    def provide_weights(self) -> None:
        """A PersistentVolume on the cache's folder, and the claim `models`."""
        if self._weights_at is None:
            raise RuntimeError("the weights could not be made: see build/demo/weights.log")
        self.kube.kubectl("apply", "-f", "-", given=_volume(Path(self._weights_at).parent))

    def publish(self, service: str, namespace: str = NAMESPACE, port: int = 80) -> str:
        """A loopback address of a Service."""
        key = (service, namespace, port)
        if key not in self._addresses:
            words = ("publish", f"{namespace}/{service}:{port}")
            self._addresses[key] = await_answer(self._cluster(*words).strip().splitlines()[-1])
        return self._addresses[key]

    def wait_scraped(self, fleet: str) -> None:
        wait_scraped(self.publish("argosy-prometheus", SYSTEM, 9090), fleet)

    def operator_rss_mib(self) -> float:
        return operator_rss_mib(self.publish("argosy-prometheus", SYSTEM, 9090))

    def diagnose(self, out: Path) -> None:
        """What a maintainer would ask for first."""
        if self._started:
            _diagnose(self.kube, out)

    def leave(self, *, keep: bool) -> None:
        """Keep the cluster and say how to reach it, or stop it."""
        if not self._started:
            return
        if not keep:
            self._cluster("down")
            say("the cluster is stopped; nothing is left behind")
            return
        console.print("\nThe cluster still runs:")
        for line in (*self._settings(), *self._hints()):
            console.print(f"  {line}", soft_wrap=True, markup=False)
        for (service, namespace, _), url in self._addresses.items():
            if namespace == SYSTEM:
                console.print(f"  {service:18} {url}")
        console.print(f"Stop it with: make cluster-down NAME={self._name}", soft_wrap=True)

    def try_hints(self, figures: DemoFigures) -> None:
        """Run what `leave` will print; a hint that fails is a miss of the demo."""
        failed = farewell.try_out(self._settings(), self._hints())
        for sentence in failed:
            say(f"a closing hint fails: {sentence}")
        figures.put("hints_work", not failed)

    def _settings(self) -> list[str]:
        return farewell.settings(self.kube.kubeconfig, TOOLS)

    def _hints(self) -> list[str]:
        """Of fleets only those that still run: the demo deletes one of its own."""
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
        done = subprocess.run(words, check=False)
        if done.returncode:
            raise RuntimeError(f"the build failed: see {self._out}/build.log")

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
            raise RuntimeError(f"cluster {' '.join(words)} failed: {done.stdout[-2000:]}")
        return done.stdout


class ExistingCluster:
    """A cluster of the user's, with images that the user built. Untried where this was written."""

    is_ours = False
    is_complete = True
    system = SYSTEM
    audit_log: Path | None = None

    def __init__(self, kubeconfig: Path, registry: str) -> None:
        if not registry:
            raise SystemExit(
                "an existing cluster pulls images: build the Dockerfile's targets operator, "
                "gateway and engine, push them, and say make demo KUBECONFIG=… REGISTRY=…"
            )
        self.kube = Kube(kubeconfig)
        self._registry = registry
        self._forwards: dict[tuple[str, str, int], tuple[subprocess.Popen[bytes], str]] = {}

    def start(self, figures: DemoFigures) -> None:
        figures.caches_complete = time.time()
        nodes = self.kube.get("/api/v1/nodes")
        say(f"using {self.kube.kubeconfig} with {len((nodes or {}).get('items', []))} nodes")
        console.print("[yellow]this path could not be tried by its authors[/yellow]")

    def install(self, figures: DemoFigures) -> None:  # noqa: ARG002 — the protocol's
        self.kube.kubectl("create", "namespace", NAMESPACE)
        images = []
        for name in ("operator", "gateway", "engine"):
            images += ["--set", f"images.{name}={self._registry}/{name}:{version('argosy')}"]
        helm_install(self.kube, *images)

    def complete(self, figures: DemoFigures) -> None:
        """Nothing was left out."""

    def provide_weights(self) -> None:
        """The user's own claim `models` must hold the weights."""
        claim = self.kube.get(f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/models")
        if claim is None:
            raise RuntimeError(
                f"make a PersistentVolumeClaim `models` in namespace {NAMESPACE} that holds "
                f"{WEIGHTS}/ (python -m local.weights.smollm2 --out DIR writes it), then again"
            )

    def publish(self, service: str, namespace: str = NAMESPACE, port: int = 80) -> str:
        key = (service, namespace, port)
        if key not in self._forwards:
            words = ["port-forward", "-n", namespace, f"service/{service}", f":{port}"]
            process = subprocess.Popen(
                [str(TOOLS / "kubectl"), *words], env=self.kube.env, stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            told = process.stdout.readline().decode()  # Forwarding from 127.0.0.1:40001 -> 8080
            address = told.removeprefix("Forwarding from ").split(" ")[0]
            self._forwards[key] = (process, f"http://{address}")
        return self._forwards[key][1]

    def wait_scraped(self, fleet: str) -> None:
        wait_scraped(self.publish("argosy-prometheus", SYSTEM, 9090), fleet)

    def operator_rss_mib(self) -> float:
        return operator_rss_mib(self.publish("argosy-prometheus", SYSTEM, 9090))

    def diagnose(self, out: Path) -> None:
        _diagnose(self.kube, out)

    def try_hints(self, figures: DemoFigures) -> None:
        """The addresses end with the demo's own port-forwards, so none is printed."""

    def leave(self, *, keep: bool) -> None:  # noqa: ARG002 — the protocol's
        for process, _ in self._forwards.values():
            process.terminate()
        say(f"left as it is: helm uninstall argosy -n {SYSTEM}; kubectl delete ns {NAMESPACE}")


def _diagnose(kube: Kube, out: Path) -> None:
    with (out / "diagnosis.txt").open("w") as file:
        for words in (
            ("get", "pods", "-A", "-o", "wide"),
            ("get", "sd", "-A", "-o", "yaml"),
            ("get", "events", "-A", "--sort-by=.lastTimestamp"),
            ("logs", "-n", SYSTEM, "-l", "app.kubernetes.io/name=argosy", "--tail=200"),
        ):
            with contextlib.suppress(RuntimeError):
                file.write(f"$ kubectl {' '.join(words)}\n{kube.kubectl(*words)}\n")


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
