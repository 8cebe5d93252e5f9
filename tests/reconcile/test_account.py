"""The gateways' ServiceAccount is deleted under them, with real tokens of a real kubelet."""

import pytest

from argosy_operator.core.snapshot import names
from local.demo.kube import await_answer
from tests.e2e.installed import traffic

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def pods(world, role):
    """Pods of a role that are not being deleted: uid → name and whether it is ready."""
    found = world.kube.get(
        f"/api/v1/namespaces/{world.namespace}/pods", labelSelector=f"{names.ROLE}={role}"
    )
    return {
        pod["metadata"]["uid"]: (pod["metadata"]["name"], _ready(pod))
        for pod in found["items"]
        if "deletionTimestamp" not in pod["metadata"]
    }


def _ready(pod):
    conditions = pod["status"].get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def replaced(world, role, before):
    """Two ready pods of the role, none of them one of `before`."""
    now = pods(world, role)
    return len(now) == 2 and all(ready for _, ready in now.values()) and not before & set(now)


def test_gateways_whose_account_was_made_anew_are_replaced_and_no_request_is_lost(running, cluster):
    world = running
    world.patch(routing={"replicas": 2}, roles={"colocated": {"replicas": {"min": 2}}})
    for role in ("gateway", "colocated"):
        world.until(f"2 pods of role {role}", lambda role=role: replaced(world, role, set()))
    before, engines = set(pods(world, "gateway")), pods(world, "colocated")
    url = f"http://127.0.0.1:{cluster.host_port('chat', 80, world.namespace)}"
    with traffic(await_answer(url), "chat", per_s=5, tokens=4) as outcomes:
        world.kubectl("delete", "serviceaccount", "chat-gateway")
        world.until("new gateways", lambda: replaced(world, "gateway", before), 60)
        for uid, (name, _) in engines.items():
            world.kubectl("delete", "pod", name, "--wait=false")
            world.until("a new engine", lambda uid=uid: replaced(world, "colocated", {uid}), 60)
    assert len(outcomes) > 20
    assert set(outcomes) == {"ok"}, outcomes
