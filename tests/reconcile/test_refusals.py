"""The real API server refuses: quota, too many requests, a revoked token, a dying namespace.

Each under streamed requests, of which none is lost. A reason is in status by the end of the first
round after its cause.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from local.demo.errors import CommandError
from tests.e2e.installed import burst, traffic
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


SILENT = "import socket, time; s = socket.socket(); s.bind(('', 8443)); s.listen(); time.sleep(900)"


def silent_webhook(world: World) -> list[dict[str, Any]]:
    """A pod that accepts connections and never answers is asked about every new ConfigMap, for half
    a minute each."""
    meta = {"name": "silent", "labels": {"app": "silent"}}
    container = {
        "name": "main",
        "image": "local/shell:1",
        "command": ["python3", "-c", SILENT],
        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    hook = {
        "name": "silent.example.com",
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 30,
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        "clientConfig": {"service": {"name": "silent", "namespace": world.namespace}},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["configmaps"],
            }
        ],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {"securityContext": security, "containers": [container]},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"selector": {"app": "silent"}, "ports": [{"port": 443, "targetPort": 8443}]},
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": f"silent-{world.namespace}"},
            "webhooks": [hook],
        },
    ]


def one_seat(world: World) -> list[dict[str, Any]]:
    """Priority and Fairness: one request at a time creates a ConfigMap or scales a Deployment as
    the operator's account; another one gets 429."""
    meta = {"name": f"one-seat-{world.namespace}"}
    group = {"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "metadata": meta}
    limited = {
        "nominalConcurrencyShares": 0,
        "lendablePercent": 0,
        "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Reject"},
    }
    level = {"kind": "PriorityLevelConfiguration", "spec": {"type": "Limited", "limited": limited}}
    account = {"name": "operator", "namespace": world.namespace}
    asked = {"namespaces": [world.namespace], "verbs": ["create", "patch"]}
    rule = {
        "subjects": [{"kind": "ServiceAccount", "serviceAccount": account}],
        "resourceRules": [
            {**asked, "apiGroups": ["apps"], "resources": ["deployments/scale"]},
            {**asked, "apiGroups": [""], "resources": ["configmaps"]},
        ],
    }
    spec = {"matchingPrecedence": 2, "priorityLevelConfiguration": meta, "rules": [rule]}
    return [group | level, group | {"kind": "FlowSchema", "spec": spec}]


@contextmanager
def throttled(world: World, token: str) -> Iterator[None]:
    """The API server answers 429 to the operator's account when it scales a Deployment: the only
    seat is taken by a request that waits for a webhook, for half a minute."""
    objects = [*silent_webhook(world), *one_seat(world)]
    apply(world, *objects)
    world.kubectl("wait", "pod/silent", "--for=condition=Ready", "--timeout=30s")
    headers = {"Authorization": f"Bearer {token}"}
    stop, asked_at = threading.Event(), [time.monotonic()]

    def hold_the_seat() -> None:
        path = f"/api/v1/namespaces/{world.namespace}/configmaps"
        words = {"params": {"dryRun": "All"}, "headers": headers, "timeout": 60}
        while not stop.is_set():
            asked_at[0] = time.monotonic()
            with suppress(httpx.HTTPError):
                world.kube.http.post(path, json={"metadata": {"name": "held"}}, **words)

    threading.Thread(target=hold_the_seat, daemon=True).start()
    name = world.engines()[0]["metadata"]["name"]
    path = f"/apis/apps/v1/namespaces/{world.namespace}/deployments/{name}/scale"
    merge = {**headers, "Content-Type": "application/merge-patch+json"}

    def scale() -> int:
        return world.kube.http.patch(path, headers=merge, json={}).status_code

    def held() -> bool:
        # Until the webhook is asked, requests take milliseconds each and leave gaps between them.
        return time.monotonic() - asked_at[0] > 1 and scale() == 429

    try:
        world.until("a request that waits holds the seat", held)
        yield
    finally:
        stop.set()
        world.kubectl("delete", "-f", "-", "--wait=false", given=yaml.safe_dump_all(objects))


@contextmanager
def refusals(world: World) -> Iterator[Callable[[], int]]:
    """How often the API server has answered 429 to the operator's wish to scale a Deployment since
    the block began, by its own log.

    Only what is new in the log is read: after many other tests the whole of it can take longer than
    the seat is held.
    """
    with world.cluster.audit_log.open() as log:
        log.seek(0, os.SEEK_END)
        seen: list[str] = []

        def count() -> int:
            seen.extend(log)
            words = ('"code":429', '"subresource":"scale"', f'"namespace":"{world.namespace}"')
            ours = (line for line in seen if "python-httpx" not in line)
            return sum(all(word in line for word in words) for line in ours)

        yield count


def test_a_throttling_api_server_is_asked_ever_less_often_and_obeyed_at_last(world, tmp_path):
    token = start_as_account(world, tmp_path)
    with traffic(world.url(), "chat", per_s=4, tokens=8) as outcomes:
        with throttled(world, token), refusals(world) as refused:
            world.patch(roles=TWO)
            world.until("the operator met a 429", refused)
            time.sleep(8)
            # Retry-After asks for a second; the pauses are 1, 1, 2 and 4 s, give or take a fifth.
            assert 2 <= refused() <= 6
            assert world.operators[0].metric("argosy_operator_leader") == 1
            assert replicas(world) == 1
        world.until("2 replicas", lambda: replicas(world) == 2)
        world.until_ready()
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


@contextmanager
def undeletable(world: World) -> Iterator[None]:
    """A policy of the cluster keeps the fleet when its namespace is deleted."""
    name = f"keep-{world.namespace}"
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    rule = {
        "apiGroups": ["serving.argosy.dev"],
        "apiVersions": ["*"],
        "operations": ["DELETE"],
        "resources": ["servingdeployments"],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}}
    policy = {
        "kind": "ValidatingAdmissionPolicy",
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "fleets are kept"}],
        },
    }
    binding = {
        "kind": "ValidatingAdmissionPolicyBinding",
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": here},
        },
    }
    apply(world, kind | policy, kind | binding)

    def in_force() -> bool:
        try:
            world.kubectl("delete", "sd", "chat", "--dry-run=server")
        except CommandError as error:
            return "fleets are kept" in str(error)
        return False

    world.until("the policy is in force", in_force)
    try:
        yield
    finally:
        world.kubectl(
            "delete",
            f"validatingadmissionpolicybinding/{name}",
            f"validatingadmissionpolicy/{name}",
        )


def test_in_a_terminating_namespace_answers_end_and_status_says_why_nothing_is_made(world):
    # Its Lease is elsewhere: those of this namespace go with it.
    elsewhere = ("--lease-namespace", "default", "--lease-name", world.namespace)
    world.operator("one", *elsewhere)
    apply(world, FLEET)
    world.until_ready()
    with undeletable(world):
        with burst(world.url(), "chat", 8, tokens=200) as answers:
            world.until("all answers began", lambda: answers.begun == 8)
            world.kubectl("delete", "namespace", world.namespace, "--wait=false")
        assert answers.outcomes == ["ok"] * 8
        world.kubectl("delete", "service", "chat")  # Kubernetes would, once the pods are gone
        world.within_a_round(
            "the end of the namespace in status",
            lambda: world.get("services", "chat") is None,
            lambda: world.condition("Stalled").get("reason") == "Deleting",
        )
        assert "the namespace is being deleted" in world.condition("Stalled")["message"]
