"""A real Prometheus that knows nothing, or scrapes what is not a number: nothing is removed.

The exporter passes on what the fleet's own pods expose, until it is told to lie. The fleet has two
engines and may have one, under traffic that one engine can serve: with the truth the second one
goes. What was learnt from the truth outlives the operator.
"""

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import yaml

from argosy_law.estimate.capacity import ENOUGH_ROWS
from argosy_law.record import kept_of
from local.demo.kube import Kube
from tests.e2e.installed import traffic
from tests.prometheus.processes import prometheus
from tests.reconcile.conftest import FLEET, fleets_world
from tests.reconcile.operators import DECISIONS, World
from tests.support.cluster import new_namespace

if TYPE_CHECKING:
    from local.cluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.long]
HOLD_S = 5
WATCHED_S = 12
"""Longer than the hold, the rate window and an interval together."""
WINDOWS = {
    "slo": {"ttft": {"target": "2s"}, "tpot": {"target": "200ms"}},
    "autoscaling": {
        "interval": "2s",
        "coldStart": "3s",
        "scaleDown": {"stabilization": f"{HOLD_S}s"},
    },
    "metrics": {"scrapeInterval": "1s", "rateWindow": "4s"},
}
CONFIG = """
global: {scrape_interval: 1s, scrape_timeout: 900ms}
scrape_configs:
- job_name: fleets
  file_sd_configs: [{files: [TARGETS]}]
"""
NUMBER = re.compile(r" [0-9.e+-]+$", re.MULTILINE)


class LyingExporter:
    """Passes on the pods' own /metrics; with `lies`, every number is NaN."""

    def __init__(self) -> None:
        self.lies = False
        self.pods: dict[str, str] = {}
        """Path → URL of a pod's metrics."""
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = httpx.get(exporter.pods[self.path], trust_env=False).text
                body = (NUMBER.sub(" NaN", text) if exporter.lies else text).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Lied:
    """The fleet, its Prometheus, and what stands between."""

    def __init__(self, world: World, url: str, targets: Path) -> None:
        self.world, self.url, self.targets = world, url, targets
        self.exporter = LyingExporter()

    def scrape(self, *, nothing: bool = False) -> None:
        """Prometheus scrapes the fleet's pods through the exporter, or nothing at all."""
        path = f"/api/v1/namespaces/{self.world.namespace}/pods"
        found = self.world.kube.get(path, labelSelector="serving.argosy.dev/fleet=chat")
        groups = []
        for pod in found["items"]:
            name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
            address = f"{pod['status']['podIP']}:8081"
            if labels["serving.argosy.dev/role"] != "gateway":
                address = f"{pod['status']['podIP']}:8001"
            port = self.world.cluster.publish(address, f"{self.world.namespace}.{name}")
            self.exporter.pods[f"/{name}"] = f"http://127.0.0.1:{port}/metrics"
            told = {
                "__metrics_path__": f"/{name}",
                "namespace": self.world.namespace,
                "fleet": "chat",
                "role": labels["serving.argosy.dev/role"],
                "pod": name,
            }
            address = f"127.0.0.1:{self.exporter.server.server_address[1]}"
            groups.append({"targets": [address], "labels": told})
        new = self.targets.with_suffix(".new")
        new.write_text(json.dumps([] if nothing else groups))
        new.replace(self.targets)

    def ask(self, query: str) -> list[str]:
        """Values of an instant query."""
        params = {"query": query}
        answer = httpx.get(f"{self.url}/api/v1/query", params=params, trust_env=False).json()
        return [row["value"][1] for row in answer["data"]["result"]]

    def says(self, reason: str) -> bool:
        return self.world.condition("MetricsAvailable").get("reason") == reason

    def two_engines_for(self, seconds: float) -> None:
        """Neither fewer replicas nor a pod that drains, for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert self.world.engines()[0]["spec"]["replicas"] == 2
            assert self.world.condition("Draining")["status"] == "False"
            time.sleep(0.5)


@pytest.fixture(scope="module")
def lied(
    cluster: "Cluster", kube: Kube, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lied]:
    home = tmp_path_factory.mktemp("prometheus")
    targets = home / "targets.json"
    targets.write_text("[]")
    config = CONFIG.replace("TARGETS", str(targets))
    with (
        prometheus(home, config) as url,
        new_namespace(cluster) as namespace,
        fleets_world(cluster, kube, namespace) as world,
    ):
        world.operator("one", "--prometheus-url", url)
        spec = {**FLEET["spec"], **WINDOWS}
        spec["roles"] = {"colocated": {"replicas": {"min": 2, "max": 4}, "resources": {"gpu": 0}}}
        world.kubectl("apply", "-f", "-", given=yaml.safe_dump({**FLEET, "spec": spec}))
        world.until_ready()
        yield Lied(world, url, targets)


def allow_one(world: World) -> None:
    world.patch(roles={"colocated": {"replicas": {"min": 1}}})


def test_an_empty_prometheus_removes_nothing_and_is_named_by_the_next_decision(lied):
    world = lied.world
    with traffic(world.url(), "chat", per_s=4, tokens=8) as outcomes:
        lied.scrape()
        world.until("Prometheus is believed", lambda: lied.says("Measured"))
        lied.scrape(nothing=True)
        world.within_a_round(
            "an empty Prometheus in status",
            lambda: lied.ask("count(up)") == [],
            lambda: lied.says("NoTargets"),
            DECISIONS,
        )
        allow_one(world)
        lied.two_engines_for(WATCHED_S)
    assert outcomes
    assert set(outcomes) == {"ok"}, outcomes


def test_metrics_that_are_no_numbers_remove_nothing_and_are_named_by_the_next_decision(lied):
    world = lied.world
    allow_one(world)
    with traffic(world.url(), "chat", per_s=4, tokens=8) as outcomes:
        lied.exporter.lies = True
        lied.scrape()
        world.within_a_round(
            "NaN in status",
            lambda: "NaN" in lied.ask("argosy_requests_received_total"),
            lambda: lied.says("NotANumber"),
            DECISIONS,
        )
        lied.two_engines_for(WATCHED_S)
    assert outcomes
    assert set(outcomes) == {"ok"}, outcomes


def test_with_the_truth_the_same_fleet_gives_the_second_engine_back(lied):
    world = lied.world
    allow_one(world)
    lied.exporter.lies = False
    lied.scrape()
    with traffic(world.url(), "chat", per_s=4, tokens=8) as outcomes:
        role = lambda: world.fleet()["status"]["roles"]["colocated"]  # noqa: E731
        world.until("1 replica", lambda: role()["desired"] == 1, 60)
    assert outcomes
    assert set(outcomes) == {"ok"}, outcomes


def test_an_operator_after_one_that_was_killed_goes_on_with_what_that_had_learnt(lied):
    world = lied.world
    lied.exporter.lies = False
    lied.scrape()

    def learnt() -> tuple[str, int]:
        """Version of the ConfigMap, and measured rows of the role; ("", 0) without one."""
        found = world.get("configmaps", "chat-learnt")
        if found is None:
            return "", 0
        (role,) = kept_of(found["data"]["learnt.json"]).state.roles
        return found["metadata"]["resourceVersion"], role.estimate.rows

    with traffic(world.url(), "chat", per_s=4, tokens=8) as outcomes:
        world.until("what was learnt is kept", lambda: learnt()[1] >= ENOUGH_ROWS, 90)
        world.operators[-1].kill()
        version, rows = learnt()
        world.operator("two", "--prometheus-url", lied.url)
        world.until("it is written again", lambda: learnt()[0] != version, 120)
    assert learnt()[1] > rows, "counted on, not anew"
    assert world.events("LearntUnreadable") == []
    assert set(outcomes) == {"ok"}, outcomes
    owner = world.get("configmaps", "chat-learnt")["metadata"]["ownerReferences"][0]
    assert owner["uid"] == world.fleet()["metadata"]["uid"]
