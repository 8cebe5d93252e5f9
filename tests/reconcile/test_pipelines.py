"""What a pipeline sees: `kubectl wait` right after an edit, by the real kubectl.

This operator is outside of the cluster's network and reaches no gateway, so it waits half a minute
for edits of their settings. `tests/e2e/test_live_settings.py` waits with one that asks them.
"""

import json
import time

import pytest
import yaml

from local.demo.errors import CommandError
from tests.reconcile.conftest import FLEET

pytestmark = [pytest.mark.cluster, pytest.mark.long]
CHANGES = 20
LABEL = "serving.argosy.dev/fleet=chat"


@pytest.fixture
def quick(world):
    """Its pods leave after two seconds: this operator, outside of the cluster, cannot ask them."""
    short = {"drain": {"timeout": "2s"}, "kvTransfer": {"timeout": "500ms"}}
    spec = FLEET["spec"] | short
    world.operator()
    world.kubectl("apply", "-f", "-", given=yaml.safe_dump(FLEET | {"spec": spec}))
    world.until_ready()
    return world


OF_GATEWAYS = {
    6: {"model": {"servedNames": ["chat", "org/renamed"]}},
    13: {"slo": {"ttft": {"target": "8123ms"}, "tpot": {"target": "900ms"}}},
}
"""Edits that no pod shows: a rename and an SLO."""


def edits(number: int) -> dict:
    """The spec of one change: engines, gateways, replicas in turn, and twice their settings."""
    return (
        OF_GATEWAYS.get(number)
        or (
            {"engine": {"env": [{"name": "CHANGE", "value": str(number)}]}},
            {"routing": {"template": {"metadata": {"labels": {"change": str(number)}}}}},
            {"roles": {"colocated": {"replicas": {"min": 1 + number // 4 % 2}}}},
            {"autoscaling": {"interval": f"{10 + number}s"}},
        )[number % 4]
    )


def lie(world, spec: dict) -> str:
    """What is not as the spec asks, as the pods themselves show it; "" for a fleet that is."""
    path = f"/api/v1/namespaces/{world.namespace}/pods"
    pods = world.kube.get(path, labelSelector=LABEL)["items"]
    serving = {"gateway": 0, "colocated": 0}
    for pod in pods:
        role = pod["metadata"]["labels"]["serving.argosy.dev/role"]
        container = pod["spec"]["containers"][0]
        ready = {c["type"]: c["status"] for c in pod["status"].get("conditions", ())}.get("Ready")
        serves = ready == "True" and "deletionTimestamp" not in pod["metadata"]
        serving[role] += serves
        env = {e["name"]: e.get("value") for e in container.get("env", ())}
        wanted = next((e["value"] for e in spec.get("engine", {}).get("env", ())), None)
        if role == "colocated" and env.get("CHANGE") != wanted:
            return f"{pod['metadata']['name']} has {env.get('CHANGE')}, not {wanted}"
        template = spec.get("routing", {}).get("template", {})
        change = template.get("metadata", {}).get("labels", {}).get("change")
        if role == "gateway" and pod["metadata"]["labels"].get("change") != change:
            return f"{pod['metadata']['name']} has {pod['metadata']['labels']}, not {change}"
        if role == "gateway" and serves and (said := older(world, pod["metadata"]["name"], spec)):
            return said
    least = {"gateway": 1, "colocated": spec["roles"]["colocated"]["replicas"]["min"]}
    few = {role: n for role, n in least.items() if serving[role] < n}
    return f"{serving} serve, not {few}" if few else ""


def older(world, gateway: str, spec: dict) -> str:
    """Which settings of the spec this gateway does not use, by its own answers; "" for none."""

    def said(page: str) -> str:
        proxy = f"/api/v1/namespaces/{world.namespace}/pods/{gateway}:{page}"
        return world.kubectl("get", "--raw", proxy)

    try:
        models, metrics = said("8080/proxy/v1/models"), said("8081/proxy/metrics")
    except CommandError as error:  # it ends
        return f"{gateway} does not answer: {error}"
    names = [model["id"] for model in json.loads(models)["data"]]
    if names != spec["model"].get("servedNames", ["chat"]):
        return f"{gateway} answers to {names}"
    slo = spec.get("slo")
    limit = f'le="{int(slo["ttft"]["target"].removesuffix("ms")) / 1000}"' if slo else ""
    return "" if limit in metrics else f"{gateway} does not judge by {slo}"


@pytest.mark.timeout(570)
def test_a_wait_for_rolledout_right_after_an_edit_never_lies(quick, record_property):
    lies, ready_lies, waited = [], 0, []
    for number in range(CHANGES):
        quick.patch(**edits(number))
        quick.kubectl("wait", "sd/chat", "--for=condition=Ready", "--timeout=60s")
        spec = quick.fleet()["spec"]
        ready_lies += lie(quick, spec) != ""
        began = time.monotonic()
        quick.kubectl("wait", "sd/chat", "--for=condition=RolledOut", "--timeout=120s")
        waited.append(round(time.monotonic() - began, 1))
        lies += [said] if (said := lie(quick, spec)) else []
    record_property("wait_ready_lies", len(lies))
    record_property("wait_ready_edits", CHANGES)
    print(f"wait_ready_lies {len(lies)} of {CHANGES}; Ready: {ready_lies}; waited {waited} s")
    assert lies == []
    assert ready_lies > 0, "Ready would do, and this test shows nothing"
