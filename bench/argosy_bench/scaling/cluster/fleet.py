"""A fleet with the product's defaults on a one-machine Kubernetes, and its pods over time.

The cluster, the chart, the operator, the gateway, Prometheus and the engines are the real ones; the
engines' runner takes the time of a 70B model's steps and computes nothing.
"""

import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import yaml

from local.cluster.cluster import Cluster
from local.demo.kube import Kube, await_answer, is_ready
from local.demo.places.place import SYSTEM, helm_install
from local.demo.traffic import pods
from local.demo.traffic.watch import last_decision

NAME, NAMESPACE = "twin", "twin"
PROFILE, GPUS = "llama-70b-h100-tp4", 4
MOST = 12
"""Replicas of a role; far more than the load needs."""
READ_EVERY_S = 0.5
INTERVAL_S = 15.0
"""From one decision to the next: the default of autoscaling.interval."""
_SD = f"/apis/serving.argosy.dev/v1alpha1/namespaces/{NAMESPACE}/servingdeployments/{NAME}"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def manifest(ttft_s: float, tpot_s: float) -> dict[str, Any]:
    """The ServingDeployment: what `argosy simulate` takes as given, and defaults otherwise."""
    role = {"replicas": {"min": 1, "max": MOST}, "resources": {"gpu": GPUS}}
    return {
        "apiVersion": "serving.argosy.dev/v1alpha1",
        "kind": "ServingDeployment",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"uri": f"sim://{PROFILE}"},
            "mode": "disaggregated",
            "routing": {"replicas": 1},
            "roles": {"prefill": role, "decode": role},
            "slo": {
                "ttft": {"target": f"{ttft_s * 1000:.0f}ms"},
                "tpot": {"target": f"{tpot_s * 1000:.0f}ms"},
            },
        },
    }


@contextlib.contextmanager
def running(spec: dict[str, Any]) -> Iterator[tuple[Kube, str]]:
    """The fleet, Ready and scraped, and its gateway's URL. All ends with the block."""
    with tempfile.TemporaryDirectory(prefix="argosy-twin-") as folder:
        cluster = Cluster(NAME, gpus_per_node=2 * MOST * GPUS, state_dir=Path(folder) / "c")
        cluster.start(tied=True)
        try:
            kube = Kube(cluster.kubeconfig)
            scrapes = ("--set", "prometheus.scrapeInterval=15s")
            helm_install(kube, "--wait", "--timeout", "180s", *scrapes)
            kube.kubectl("create", "namespace", NAMESPACE)
            kube.kubectl("apply", "-n", NAMESPACE, "-f", "-", given=yaml.safe_dump(spec))
            kube.wait(_SD, is_ready, timeout_s=120, what="the fleet is Ready")
            _await_scrapes(f"http://127.0.0.1:{_port(cluster, 'argosy-prometheus', 9090, SYSTEM)}")
            yield kube, await_answer(f"http://127.0.0.1:{_port(cluster, NAME, 80, NAMESPACE)}")
        finally:
            cluster.stop()


def _port(cluster: Cluster, service: str, port: int, namespace: str) -> int:
    return cluster.host_port(service, port, namespace)


def _await_scrapes(prometheus: str) -> None:
    """Until Prometheus has scraped the gateway and both engines. TimeoutError after two minutes."""
    await_answer(prometheus)
    query = {"query": f'count(up{{fleet="{NAME}",namespace="{NAMESPACE}"}} == 1)'}
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        answer = httpx.get(f"{prometheus}/api/v1/query", params=query, timeout=5, trust_env=False)
        found = answer.raise_for_status().json()["data"]["result"]
        if found and float(found[0]["value"][1]) >= 3:
            return
        time.sleep(0.5)
    raise TimeoutError(f"Prometheus does not scrape the fleet: see {prometheus}/targets")


@dataclass(frozen=True, slots=True)
class Reading:
    """The fleet's pods at one moment."""

    at_s: float
    """Seconds since the load began."""
    present: dict[str, int]
    """Pods that exist and have not ended, by role."""
    ready: dict[str, int]
    wanted: dict[str, int]
    """Replicas of the Deployments."""
    decision: str
    """The law's last decision, as status has it."""


@dataclass
class Watch:
    """Reads the fleet's pods in a thread of its own."""

    kube: Kube
    readings: list[Reading] = field(default_factory=list)
    starts: dict[str, float] = field(default_factory=dict)
    """By uid of a pod: seconds from its creation to Ready, of whole seconds."""
    _first: frozenset[str] | None = None
    """Uids of the pods that were Ready before the load."""
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def reading(self, begin: float) -> Iterator[None]:
        """Read inside the block. `begin`: second 0 on the monotonic clock."""
        thread = threading.Thread(target=self._run, args=(begin,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self, begin: float) -> None:
        while not self._stop.wait(READ_EVERY_S):
            with contextlib.suppress(httpx.HTTPError):
                self._read(begin)

    def _read(self, begin: float) -> None:
        found = pods.items(self.kube, _PODS, labelSelector=f"{pods.FLEET}={NAME}")
        label = {"labelSelector": f"{pods.FLEET}={NAME}"}
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
        counted = pods.count(found, pods.items(self.kube, path, **label)).roles
        status = (self.kube.get(_SD) or {}).get("status", {})
        self.readings.append(
            Reading(
                time.monotonic() - begin,
                {role: counted[role].present for role in pods.ROLES},
                {role: counted[role].ready for role in pods.ROLES},
                {role: counted[role].desired for role in pods.ROLES},
                last_decision(status),
            )
        )
        for pod in found:
            if pod["metadata"]["labels"][pods.ROLE] in pods.ROLES and pods.is_ready(pod):
                self.starts[pod["metadata"]["uid"]] = _start_s(pod)
        if self._first is None:
            self._first = frozenset(self.starts)

    @property
    def cold_s(self) -> float:
        """Mean time from the creation of a pod to Ready, of those that the law has added if it has
        added any: the first ones start while the cluster does."""
        first = self._first or frozenset()
        added = [seconds for uid, seconds in self.starts.items() if uid not in first]
        return statistics.mean(added or self.starts.values())


def _start_s(pod: dict[str, Any]) -> float:
    created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    ready = next(c for c in pod["status"]["conditions"] if c["type"] == "Ready")
    return (datetime.fromisoformat(ready["lastTransitionTime"]) - created).total_seconds()


def phase_s(readings: list[Reading]) -> float:
    """How much later the simulator's requests begin, so that its decisions fall on the moments of
    the operator's: those are INTERVAL_S apart, and the first change of replicas shows one."""
    for one, after in pairwise(readings):
        if one.wanted != after.wanted:
            return -after.at_s % INTERVAL_S
    return 0.0


def gpu_seconds(readings: list[Reading], begin_s: float, end_s: float) -> float:
    """GPUs of all pods from their creation until they are gone, between two moments."""
    return sum(
        GPUS * sum(one.present.values()) * max(min(after.at_s, end_s) - max(one.at_s, begin_s), 0.0)
        for one, after in pairwise(readings)
    )
