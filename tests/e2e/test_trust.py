"""Who may call the pods of a fleet, with tokens of a real API server and a real kubelet."""

import json

import httpx
import pytest

from local.demo.kube import await_answer
from tests.e2e.installed import complete

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture(scope="module")
def guarded(argosy):
    """A split fleet that verifies its callers, Ready."""
    argosy.apply("guarded", mode="disaggregated")
    argosy.until_ready("guarded")
    yield "guarded"
    argosy.kubectl("delete", "sd", "guarded", "--wait=false")


@pytest.fixture(scope="module")
def decode(argosy, guarded):
    """Addresses of the decode engine's ports: what a stranger in the cluster can reach."""
    selector = {"serving.argosy.dev/fleet": guarded, "serving.argosy.dev/role": "decode"}
    ports = [{"name": f"p{port}", "port": port} for port in (8000, 8001)]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "direct"},
        "spec": {"selector": selector, "ports": ports},
    }
    argosy.kubectl("apply", "-f", "-", given=json.dumps(service))
    yield {port: argosy.publish("direct", argosy.namespace, port) for port in (8000, 8001)}
    argosy.kubectl("delete", "service", "direct")


def ask(url, method, path, token=None):
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    body = {"model": "guarded", "prompt": "a b", "max_tokens": 2} if method == "POST" else None
    return httpx.request(
        method, url + path, json=body, headers=headers, timeout=10, trust_env=False
    )


def token(argosy, account, fleet):
    """As an administrator of the namespace can make one: valid, and bound to no pod."""
    audience = f"argosy.dev/{argosy.namespace}/{fleet}"
    return argosy.kubectl("create", "token", account, "--audience", audience).strip()


def test_a_fleet_verifies_its_callers_and_serves_through_its_gateway(argosy, guarded):
    argosy.until_condition(guarded, "PeersVerified", "AsSpecified")
    answer = complete(argosy.url(guarded), guarded)
    assert answer.status_code == 200
    assert answer.headers["x-argosy-prefill-pod"].startswith("guarded-prefill-")


def test_a_stranger_reaches_probes_and_metrics_and_nothing_else(argosy, guarded, decode):
    argosy.until_condition(guarded, "PeersVerified", "AsSpecified")
    api, admin = (await_answer(decode[port]) for port in (8000, 8001))
    for path in ("/health", "/ready", "/metrics"):
        assert ask(admin, "GET", path).status_code == 200
    for shown in (None, "abc", token(argosy, "guarded-gateway", guarded)):
        answer = ask(api, "POST", "/v1/completions", shown)
        assert answer.status_code == 401, answer.text
        assert answer.json()["error"]["code"] == "unproven_caller"
        assert ask(admin, "POST", "/drain", shown).status_code == 401
    assert ask(admin, "GET", "/ready").status_code == 200


def test_the_operator_drains_pods_with_its_own_token(argosy, guarded):
    """Without it the pod would leave only after drain.timeout, which is longer than this wait."""
    roles = {
        role: {"replicas": {"min": low, "max": 2}, "resources": {"gpu": 0}}
        for role, low in (("prefill", 1), ("decode", 2))
    }
    spec = {"spec": {"roles": roles, "drain": {"timeout": "600s"}}}
    argosy.kubectl("patch", "sd", guarded, "--type=merge", "-p", json.dumps(spec))
    argosy.until("two decode pods", lambda: len(argosy.pods(guarded, "decode")) == 2)
    argosy.until_ready(guarded)
    roles["decode"]["replicas"]["min"] = 1
    spec["spec"]["autoscaling"] = {"policy": "None"}
    argosy.kubectl("patch", "sd", guarded, "--type=merge", "-p", json.dumps(spec))
    argosy.until("one decode pod", lambda: len(argosy.pods(guarded, "decode")) == 1, 60)
    argosy.until_ready(guarded)
