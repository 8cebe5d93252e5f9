"""The product on the one-machine Kubernetes, as the e2e tests see it.

`Installed` wraps a running cluster into which the chart was installed; tests speak to it with
kubectl and HTTP only. Fleets are made of simulated engines, so that a test takes seconds.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import yaml

from local.demo.kube import Kube, await_answer, condition, is_ready
from tests.e2e.traffic import run_burst

GROUP = "/apis/serving.argosy.dev/v1alpha1"
FLEET = "serving.argosy.dev/fleet"
SYSTEM = "argosy-system"


@dataclass
class Installed:
    """A cluster with the chart in it; `publish` gives a loopback address of a Service."""

    kube: Kube
    publish: Callable[[str, str, int], str]
    namespace: str

    def fleet(self, name: str) -> dict[str, Any] | None:
        """The ServingDeployment; None when it is gone."""
        return self.kube.get(f"{GROUP}/namespaces/{self.namespace}/servingdeployments/{name}")

    def apply(self, name: str, **spec: Any) -> None:
        """`kubectl apply` of a fleet; simulated and without GPUs unless `spec` says otherwise."""
        whole = {
            "model": {"uri": "sim://llama-70b-h100-tp4"},
            "routing": {"replicas": 1},
            "drain": {"timeout": "40s"},
            "roles": {
                role: {"replicas": {"min": 1, "max": 4}, "resources": {"gpu": 0}}
                for role in ("prefill", "decode", "colocated")
            },
            **spec,
        }
        manifest = {
            "apiVersion": "serving.argosy.dev/v1alpha1",
            "kind": "ServingDeployment",
            "metadata": {"name": name},
            "spec": whole,
        }
        self.kubectl("apply", "-f", "-", given=yaml.safe_dump(manifest))

    def kubectl(self, *words: str, given: str | None = None) -> str:
        """kubectl in the tests' namespace."""
        return self.kube.kubectl("-n", self.namespace, *words, given=given)

    def until(self, what: str, holds: Callable[[], Any], timeout_s: float = 40) -> Any:
        """Poll until `holds()` is truthy and give that value; says `what` when it never is."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := holds():
                return found
            time.sleep(0.2)
        raise AssertionError(f"not within {timeout_s:.0f} s: {what}")

    def until_ready(self, name: str, timeout_s: float = 60) -> None:
        """Until the fleet is Ready for its newest generation."""
        try:
            self.until("Ready", lambda: is_ready(self.fleet(name) or {"metadata": {}}), timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}: {self.conditions(name)}") from None

    def conditions(self, name: str) -> str:
        """All conditions in short, for messages."""
        found = (self.fleet(name) or {}).get("status", {}).get("conditions", [])
        return json.dumps(
            [{k: c[k] for k in ("type", "status", "reason", "message")} for c in found]
        )

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """One condition of a fleet; empty when it is not there."""
        return condition(self.fleet(name) or {}, kind)

    def until_condition(self, name: str, kind: str, reason: str, timeout_s: float = 40) -> str:
        """Until the condition has that reason; gives its message."""

        def found() -> dict[str, Any] | None:
            now = self.condition(name, kind)
            return now if now.get("reason") == reason else None

        try:
            message: str = self.until(f"{kind}/{reason}", found, timeout_s)["message"]
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.conditions(name)}") from None
        return message

    def pods(self, fleet: str, role: str | None = None) -> list[dict[str, Any]]:
        """Pods of a fleet that are not being deleted."""
        selector = f"{FLEET}={fleet}" + (f",serving.argosy.dev/role={role}" if role else "")
        found = self.kube.get(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=selector)
        return [p for p in (found or {})["items"] if "deletionTimestamp" not in p["metadata"]]

    def url(self, fleet: str) -> str:
        """The fleet's gateway on loopback, once the Service reaches it."""
        return await_answer(self.publish(fleet, self.namespace, 80))

    def operator_pods(self) -> list[str]:
        """Names of the operator's pods."""
        found = self.kube.get(
            f"/api/v1/namespaces/{SYSTEM}/pods", labelSelector="app.kubernetes.io/name=argosy"
        )
        return [
            p["metadata"]["name"]
            for p in (found or {})["items"]
            if "prometheus" not in p["metadata"]["name"]
            and "deletionTimestamp" not in p["metadata"]
        ]

    @contextmanager
    def operator_away(self) -> Iterator[None]:
        """No operator runs inside the block; it is back, by Kubernetes' own means, after it."""
        self.kube.kubectl("-n", SYSTEM, "scale", "deployment/argosy-operator", "--replicas=0")
        self.until("operator gone", lambda: not self.operator_pods())
        try:
            yield
        finally:
            self.kube.kubectl("-n", SYSTEM, "scale", "deployment/argosy-operator", "--replicas=2")
            self.kube.kubectl(
                "-n", SYSTEM, "rollout", "status", "deployment/argosy-operator", "--timeout=60s"
            )


def complete(url: str, model: str, *, prompt: str = "a b c", tokens: int = 8) -> httpx.Response:
    """One completion without streaming."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=30, trust_env=False)


@contextmanager
def traffic(url: str, model: str, *, per_s: float = 4, tokens: int = 60) -> Iterator[list[str]]:
    """Streamed requests at a steady rate while the block runs; the block begins when the first
    answer has begun. Yields the list of outcomes, which is filled at the block's end.

    Outcomes are `ok`, `lost` (accepted, but without its end) or the refused request's status.
    """
    outcomes: list[str] = []
    client = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.traffic", url, model, str(per_s), str(tokens)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout is not None
        flowing = client.stdout.readline()
        assert flowing == "flowing\n", f"no answer began: {flowing}"
        yield outcomes
    finally:
        answers, _ = client.communicate(input="stop\n", timeout=60)
        outcomes.extend(answers.split())


class Burst:
    """Requests that were sent at once."""

    def __init__(self, count: int) -> None:
        self.events = [threading.Event() for _ in range(count)]
        self.outcomes: list[str] = []
        """Of the requests that have ended."""

    @property
    def begun(self) -> int:
        """Answers that have their first byte."""
        return sum(event.is_set() for event in self.events)


@contextmanager
def burst(
    url: str, model: str, count: int, *, words: int = 40, tokens: int = 60
) -> Iterator[Burst]:
    """So many streamed requests at once; all outcomes, as those of `traffic`, are known at the
    block's end."""
    sent = Burst(count)

    async def send() -> None:
        async for outcome in run_burst(url, model, sent.events, tokens, words):
            sent.outcomes.append(outcome)

    thread = threading.Thread(target=lambda: asyncio.run(send()), daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        thread.join(90)
