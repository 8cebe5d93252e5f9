"""The webhook on a real API server: kubectl prints its warnings, and nothing depends on it."""

import base64
import json
import re
import subprocess
import time

import pytest
import yaml

from local.demo.kube import TOOLS
from tests.e2e.installed import SYSTEM

pytestmark = pytest.mark.cluster

CONFIGURATION = "argosy-system-argosy-webhook"
BUNDLE = "jsonpath={.webhooks[0].clientConfig.caBundle}"


@pytest.fixture(scope="module")
def warned(argosy, install_chart):
    """The product with the webhook, and without it again after the tests."""
    install_chart("--set", "webhook.enabled=true")
    yield argosy
    install_chart("--set", "webhook.enabled=false")


def manifest(name, ttft="2ms"):
    return yaml.safe_dump(
        {
            "apiVersion": "serving.argosy.dev/v1alpha1",
            "kind": "ServingDeployment",
            "metadata": {"name": name},
            "spec": {
                "model": {"uri": "sim://opt-13b-a100"},
                "paused": True,
                "slo": {"ttft": {"target": ttft}, "tpot": {"target": "50ms"}},
                "roles": {"colocated": {"resources": {"gpu": 4}}},
            },
        }
    )


def applied(world, text, *words):
    """(what kubectl printed, the warnings, seconds)."""
    began = time.monotonic()
    done = subprocess.run(
        [TOOLS / "kubectl", "-n", world.namespace, "apply", *words, "-f", "-"],
        env=world.kube.env,
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    warnings = [line for line in done.stderr.splitlines() if line.startswith("Warning: ")]
    return done.stdout, warnings, time.monotonic() - began


def pem(bundle):
    """The certificates of a bundle."""
    return re.findall(b"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", bundle, re.S)


def until_warned(world, name, *slo):
    """The API server takes a moment to learn of a new bundle or a new pod."""
    return world.until(
        "warnings", lambda: applied(world, manifest(name, *slo), "--dry-run=server")[1], 60
    )


def test_a_dry_run_prints_pods_gpus_and_an_slo_below_the_floor(warned):
    size, floor = until_warned(warned, "dry")
    assert size.startswith("Warning: spec.roles: 1 to 8 colocated pods, 4 to 32 GPUs")
    assert floor.startswith("Warning: spec.slo.ttft.target: is below the engine's floor")
    assert warned.fleet("dry") is None
    _, load = until_warned(warned, "dry", "1s")
    assert load.startswith("Warning: spec.slo: the most pods carry about ")


def test_an_upgrade_of_the_chart_leaves_the_bundle(warned, install_chart):
    until_warned(warned, "upgraded")
    words = ("get", "validatingwebhookconfiguration", CONFIGURATION, "-o", BUNDLE)
    before = base64.b64decode(warned.kube.kubectl(*words))
    install_chart("--set", "webhook.enabled=true", "--set", "webhook.resources.requests.cpu=21m")
    after = base64.b64decode(warned.kube.kubectl(*words))
    assert pem(before)
    assert set(pem(before)) <= set(pem(after))
    until_warned(warned, "upgraded")


def test_warnings_come_after_the_certificate_was_replaced(warned):
    until_warned(warned, "rotated")
    webhook = "deployment/argosy-webhook"
    flag = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": word}
            for word in ("--certificate-lifetime", "20s")]  # fmt: skip
    warned.kube.kubectl("-n", SYSTEM, "patch", webhook, "--type=json", "-p", json.dumps(flag))
    warned.kube.kubectl("-n", SYSTEM, "rollout", "status", webhook, "--timeout=60s")

    def bundle():
        return warned.kube.kubectl(
            "get", "validatingwebhookconfiguration", CONFIGURATION, "-o", BUNDLE
        )

    until_warned(warned, "rotated")
    seen, missed, ends = {bundle()}, 0, time.monotonic() + 45
    while time.monotonic() < ends:
        warnings = applied(warned, manifest("rotated"), "--dry-run=server")[1]
        missed += not warnings
        seen.add(bundle())
        time.sleep(0.5)
    assert len(seen) >= 4, "it was not replaced"
    assert missed == 0
    undo = [{"op": "remove", "path": f"/spec/template/spec/containers/0/args/{n}"}
            for n in (11, 10)]  # fmt: skip
    warned.kube.kubectl("-n", SYSTEM, "patch", webhook, "--type=json", "-p", json.dumps(undo))
    warned.kube.kubectl("-n", SYSTEM, "rollout", "status", webhook, "--timeout=60s")


def test_a_bundle_that_someone_removed_is_put_back(warned):
    until_warned(warned, "emptied")
    gone = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
    warned.kube.kubectl("patch", "validatingwebhookconfiguration", CONFIGURATION, "--type=json",
                        "-p", json.dumps(gone))  # fmt: skip
    until_warned(warned, "emptied")


def test_without_the_webhook_fleets_are_written_without_warnings(warned):
    webhook = "deployment/argosy-webhook"
    warned.kube.kubectl("-n", SYSTEM, "scale", webhook, "--replicas=0")
    selector = "app.kubernetes.io/component=webhook"
    warned.kube.kubectl("-n", SYSTEM, "wait", "--for=delete", "pod", "-l", selector,
                        "--timeout=60s")  # fmt: skip
    said, warnings, took_s = applied(warned, manifest("alone"))
    assert "created" in said
    assert warnings == []
    assert took_s < 5
    said, warnings, _ = applied(warned, manifest("alone", "3ms"))
    assert "configured" in said
    assert warnings == []
    warned.kube.kubectl("-n", SYSTEM, "scale", webhook, "--replicas=1")
    until_warned(warned, "alone")
    warned.kubectl("delete", "sd", "alone")
