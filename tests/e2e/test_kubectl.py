"""Every verb of `kubectl argosy`, through the real kubectl, on the installed product."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.installed import Installed, traffic

pytestmark = pytest.mark.cluster
TOOLS = Path(sys.executable).parent
FLEET = "plugged"
SLO = {"ttft": {"target": "500ms"}, "tpot": {"target": "40ms"}}


class Plugin:
    """`kubectl argosy …` in the tests' namespace."""

    def __init__(self, argosy: Installed) -> None:
        self.argosy = argosy

    def run(self, verb: str, *words: str, given: str | None = None) -> tuple[int, str, str]:
        where = () if verb in ("lint", "render") else ("-n", self.argosy.namespace)
        done = subprocess.run(
            [TOOLS / "kubectl", "argosy", verb, *words, *where],
            env=self.argosy.kube.env,
            input=given,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    def ok(self, verb: str, *words: str, given: str | None = None) -> str:
        status, out, said = self.run(verb, *words, given=given)
        assert status == 0, said
        return out


@pytest.fixture(scope="module")
def plugin(argosy: Installed) -> Iterator[Plugin]:
    """A fleet that follows its SLO, with two decode pods."""
    one, two = ({"replicas": {"min": n, "max": 4}, "resources": {"gpu": 0}} for n in (1, 2))
    argosy.apply(
        FLEET,
        mode="disaggregated",
        slo=SLO,
        roles={"prefill": one, "decode": two},
        autoscaling={"interval": "2s", "coldStart": "3s"},
        metrics={"scrapeInterval": "1s", "rateWindow": "4s"},
    )
    argosy.until_ready(FLEET)
    yield Plugin(argosy)
    argosy.kubectl("delete", "sd", FLEET, "--wait=false")


def engine_pods(plugin: Plugin, role: str) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in plugin.argosy.pods(FLEET, role))


def test_status_shows_the_fleet_its_pods_and_its_address(plugin: Plugin) -> None:
    assert FLEET in plugin.ok("status")
    text = plugin.ok("status", FLEET)
    assert "decode" in text
    assert f"http://{FLEET}.{plugin.argosy.namespace}.svc/v1" in text
    assert json.loads(plugin.ok("status", FLEET, "-o", "json"))["kind"] == "ServingDeployment"
    assert yaml.safe_load(plugin.ok("status", "-o", "yaml"))["kind"] == "List"
    assert "sim://llama-70b-h100-tp4" in plugin.ok("status", "-A", "-o", "wide")


def test_status_divides_the_start_of_a_pod_as_the_kubelet_saw_it(plugin: Plugin) -> None:
    def decode() -> dict[str, Any]:
        fleet = json.loads(plugin.ok("status", FLEET, "-o", "json"))
        found: dict[str, Any] = fleet["status"]["roles"]["decode"]
        return found

    plugin.argosy.until("a measured start", lambda: "startPhases" in decode(), 30)
    role = decode()
    phases = [float(text.removesuffix("s")) for text in role["startPhases"].values()]
    assert len(phases) == 4
    # Each is the median of its own, within a second of the last one written.
    assert abs(sum(phases) - float(role["timeToReady"].removesuffix("s"))) <= 5
    assert "SCHEDULING" in plugin.ok("status", FLEET)


def test_explain_prints_a_plan_that_changes_nothing(plugin: Plugin) -> None:
    assert json.loads(plugin.ok("explain", FLEET, "--plan", "-o", "json"))["steps"]
    assert f"ServingDeployment {FLEET}" in plugin.ok("explain", FLEET)


def test_drain_waits_for_the_streams_of_a_pod_and_loses_none(plugin: Plugin) -> None:
    victim, other = engine_pods(plugin, "decode")[:2]
    with traffic(plugin.argosy.url(FLEET), FLEET, tokens=120) as outcomes:
        time.sleep(1)  # both decode pods have streams
        status, out, said = plugin.run("drain", victim, "--timeout", "60s")
    assert status == 0, said
    assert "is empty" in out
    assert set(outcomes) == {"ok"}
    assert "takes requests again" in plugin.ok("drain", victim, "--undo")
    plugin.argosy.until("serves again", lambda: "draining" not in plugin.ok("status", FLEET).lower()
                        or victim in engine_pods(plugin, "decode"))  # fmt: skip
    assert other in engine_pods(plugin, "decode")


def test_what_render_prints_is_what_the_operator_made(plugin: Plugin) -> None:
    fleet = json.loads(plugin.ok("status", FLEET, "-o", "json"))
    manifest = {key: fleet[key] for key in ("apiVersion", "kind", "spec")}
    meta = {"name": FLEET, "namespace": plugin.argosy.namespace}
    images = fleet["status"]["images"]
    text = plugin.ok(
        "render", "-", "--engine-image", images["engine"], "--gateway-image", images["gateway"],
        given=yaml.safe_dump({**manifest, "metadata": meta}),
    )  # fmt: skip
    rendered = {(o["kind"], o["metadata"]["name"]) for o in yaml.safe_load_all(text)}
    for kind in ("Deployment", "ServingRole", "Service", "PodDisruptionBudget"):
        listed = plugin.argosy.kubectl(
            "get", kind.lower(), "-l", f"serving.argosy.dev/fleet={FLEET}", "-o", "name"
        )
        made = {line.partition("/")[2] for line in listed.splitlines()}
        assert {name for of, name in rendered if of == kind} == made, kind


@pytest.mark.long
def test_an_account_without_rights_is_told_which_are_missing(plugin: Plugin) -> None:
    account = f"system:serviceaccount:{plugin.argosy.namespace}:default"
    token = plugin.argosy.kubectl("create", "token", "default").strip()
    config = yaml.safe_load(Path(plugin.argosy.kube.env["KUBECONFIG"]).read_text())
    config["users"][0]["user"] = {"token": token}
    path = Path(plugin.argosy.kube.env["KUBECONFIG"]).with_name("without-rights")
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    try:
        status, _, said = plugin.run("status", "--kubeconfig", str(path))
    finally:
        path.unlink()
    assert status == 4
    assert account in said
    assert 'cannot list resource "servingdeployments"' in said
