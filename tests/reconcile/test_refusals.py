"""The real API server refuses: quota, too many requests, a revoked token, a dying namespace.

Each under streamed requests, of which none is lost. A reason is in status by the end of the first
round after its cause.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.installed import traffic
from tests.reconcile.conftest import FLEET
from tests.reconcile.operators import World

pytestmark = [pytest.mark.cluster, pytest.mark.long]
TWO = {"colocated": {"replicas": {"min": 2}}}


def apply(world: World, *objects: dict[str, Any]) -> None:
    world.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(objects))


def start_as_account(world: World, tmp_path: Path) -> str:
    """An operator that signs in as a ServiceAccount of the namespace, as in production; the fleet
    is Ready. Returns the token."""
    world.kubectl("create", "serviceaccount", "operator")
    subject = f"--serviceaccount={world.namespace}:operator"
    world.kubectl("create", "rolebinding", "operator", "--clusterrole=cluster-admin", subject)
    token = world.kubectl("create", "token", "operator").strip()
    config = json.loads(world.kube.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "operator.kubeconfig"
    path.write_text(json.dumps(config))
    world.operator(kubeconfig=path)
    apply(world, FLEET)
    world.until_ready()
    return token


def replicas(world: World) -> int:
    return world.engines()[0]["spec"]["replicas"]


def test_a_used_up_quota_is_named_in_the_next_round_and_its_raise_ends_it(running):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "2"}},  # the gateway and one engine
    }
    apply(running, quota)
    used = lambda: running.get("resourcequotas", "few").get("status", {}).get("used")  # noqa: E731
    running.until("the quota counts", lambda: used() == {"pods": "2"})

    def refused() -> bool:
        conditions = running.engines()[0]["status"].get("conditions", ())
        return any(c["type"] == "ReplicaFailure" and c["status"] == "True" for c in conditions)

    with traffic(running.url(), "chat", per_s=4, tokens=8) as outcomes:
        running.patch(roles=TWO)
        running.within_a_round(
            "the quota in status",
            refused,
            lambda: running.condition("CapacityLimited").get("reason") == "QuotaExceeded",
        )
        assert "exceeded quota: few" in running.condition("CapacityLimited")["message"]
        assert running.condition("Ready")["status"] == "True"  # one engine serves
        quota["spec"]["hard"]["pods"] = "9"
        apply(running, quota)
        role = lambda: running.fleet()["status"]["roles"]["colocated"]  # noqa: E731
        running.until("2 ready pods", lambda: role()["ready"] == 2, 60)
    running.until(
        "there is room again", lambda: running.condition("CapacityLimited")["status"] == "False"
    )
    assert outcomes
    assert set(outcomes) == {"ok"}, outcomes


def test_a_leader_whose_token_is_revoked_ends_and_the_standby_goes_on(world, tmp_path):
    start_as_account(world, tmp_path)
    standby = world.operator("two")
    world.until("it waits", lambda: standby.metric("process_start_time_seconds"))
    leader = world.operators[0]
    with traffic(world.url(), "chat", per_s=4, tokens=8) as outcomes:
        world.kubectl("delete", "serviceaccount", "operator")
        # The API server believes a token for ten seconds more, and the term is ten seconds.
        world.until("the leader ended", lambda: leader.process.poll() is not None, 30)
        assert leader.process.returncode == 1
        world.patch(roles=TWO)
        world.until("2 replicas", lambda: replicas(world) == 2, 25)
    assert standby.metric("argosy_operator_leader") == 1
    assert outcomes
    assert set(outcomes) == {"ok"}, outcomes
