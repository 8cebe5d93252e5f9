"""Operators as processes of their own against a real API server, to be started and killed.

They run outside the cluster's network: engines' admin ports are out of their reach, which costs
drains their haste and nothing else.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from argosy_bench.ports import free_ports
from local.demo.kube import Kube, await_answer, condition, is_ready

if TYPE_CHECKING:
    from local.cluster.cluster import Cluster

GROUP = "/apis/serving.argosy.dev/v1alpha1"
ROUNDS = "argosy_operator_reconcile_total"
WRITES = "argosy_operator_writes_total"
DECISIONS = "argosy_operator_decisions_total"
ARGOSY = Path(sys.executable).parent / "argosy"


class Operator:
    """One process of `argosy operator run` that looks after one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str, name: str, *more: str) -> None:
        """`more` are further flags."""
        (self.port,) = free_ports(1)
        words = ("operator", "run", "--namespace", namespace, "--lease-namespace", namespace)
        words = (*words, *more)
        self.name = name
        self.process = subprocess.Popen(
            [ARGOSY, *words, "--metrics-port", str(self.port), "--kubeconfig", kubeconfig],
            env={**os.environ, "POD_NAME": name},
            stderr=subprocess.DEVNULL,
        )

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels; 0 while the process does not answer."""
        try:
            text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", trust_env=False).text
        except httpx.HTTPError:
            return 0.0
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def healthy(self) -> bool:
        """What the liveness probe would see."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=5, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.is_success

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)

    def kill(self) -> None:
        """As a node that loses power: nothing is given back."""
        self.process.kill()
        self.process.wait(timeout=20)


class World:
    """A namespace with one fleet `chat` and any number of operators."""

    def __init__(self, cluster: "Cluster", kube: Kube, namespace: str) -> None:
        self.cluster, self.kube, self.namespace = cluster, kube, namespace
        self.operators: list[Operator] = []

    def operator(self, name: str = "one", *more: str, kubeconfig: Path | None = None) -> Operator:
        """One more operator; with the cluster's own kubeconfig unless another one is given."""
        given = kubeconfig or self.kube.kubeconfig
        self.operators.append(Operator(given, self.namespace, name, *more))
        return self.operators[-1]

    def url(self) -> str:
        """The fleet's gateway on loopback, once the Service reaches it."""
        return await_answer(
            f"http://127.0.0.1:{self.cluster.host_port('chat', 80, self.namespace)}"
        )

    def kubectl(self, *words: str, given: str | None = None) -> str:
        return self.kube.kubectl("-n", self.namespace, *words, given=given)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        groups = {
            "servingdeployments": GROUP,
            "deployments": "/apis/apps/v1",
            "leases": "/apis/coordination.k8s.io/v1",
            "horizontalpodautoscalers": "/apis/autoscaling/v2",
        }
        root = groups.get(kind, "/api/v1")
        return self.kube.get(f"{root}/namespaces/{self.namespace}/{kind}/{name}")

    def condition(self, kind: str) -> dict[str, Any]:
        """One condition of the fleet; empty when it is not there."""
        return condition(self.fleet(), kind)

    def fleet(self) -> dict[str, Any]:
        return self.get("servingdeployments", "chat") or {"metadata": {}}

    def until(self, what: str, holds: Callable[[], Any], timeout_s: float = 30) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := holds():
                return found
            time.sleep(0.1)
        raise AssertionError(f"not within {timeout_s:.0f} s: {what}: {self.fleet().get('status')}")

    def until_ready(self) -> None:
        self.until("Ready", lambda: is_ready(self.fleet()), 80)

    def within_a_round(
        self, what: str, cause: Callable[[], Any], effect: Callable[[], Any], counter: str = ROUNDS
    ) -> None:
        """The first round that begins after `cause` holds brings the `effect`.

        A round that runs at that moment may have read what was before, so the second round that
        ends must have it. `counter` counts the rounds that can see the cause.
        """
        self.until(f"the cause of {what}", cause)
        operator = self.operators[-1]
        before = operator.metric(counter)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            ended = operator.metric(counter)
            if effect():
                return
            assert ended < before + 2, f"{what}: not by the next round: {self.fleet()['status']}"
            time.sleep(0.05)
        raise AssertionError(f"{what}: no round for 30 s: {self.fleet().get('status')}")

    def until_at_rest(self) -> None:
        """Until a round of the newest operator, which an annotation causes, writes nothing."""
        operator = self.operators[-1]

        def rested() -> bool:
            writes, rounds = operator.metric(WRITES), operator.metric(ROUNDS)
            self.kubectl("annotate", "sd", "chat", "--overwrite", f"tests/seen={rounds:g}")
            self.until("a round", lambda: operator.metric(ROUNDS) > rounds)
            return operator.metric(WRITES) == writes

        self.until("a round without a write", rested)

    def until_seen(self) -> None:
        """Until status speaks about the newest generation."""
        self.until("seen", lambda: _seen(self.fleet()))

    def patch(self, **spec: Any) -> None:
        self.kubectl("patch", "sd", "chat", "--type=merge", "-p", json.dumps({"spec": spec}))

    def engines(self) -> list[dict[str, Any]]:
        """Deployments of the fleet's engines."""
        found = self.kube.get(
            f"/apis/apps/v1/namespaces/{self.namespace}/deployments",
            labelSelector="serving.argosy.dev/role=colocated",
        )
        return (found or {})["items"]

    def events(self, reason: str) -> list[str]:
        """Notes of the operator's Events with this reason."""
        found = self.kube.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        return [e["note"] for e in (found or {})["items"] if e["reason"] == reason]


def _seen(fleet: dict[str, Any]) -> bool:
    seen = fleet.get("status", {}).get("observedGeneration")
    return seen is not None and seen == fleet["metadata"].get("generation")
