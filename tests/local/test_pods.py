"""Replicas and GPUs counted from Pod and Deployment objects as an API server sends them."""

import itertools

import pytest

from local.demo.traffic.pods import Replicas, count

NUMBERS = itertools.count()


def pod(role="prefill", *, ready="True", phase="Running", node="node-1", gpus=4, **more):
    number = next(NUMBERS)
    container = {"name": "engine", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    raw = {
        "metadata": {
            "name": more.get("name", f"pod-{number}"),
            "uid": f"uid-{number}",
            "labels": {"serving.argosy.dev/role": role},
        },
        "spec": {"containers": [container, {"name": "plain"}]},
        "status": {
            "phase": phase,
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": ready},
            ],
            "containerStatuses": [
                {"restartCount": more.get("restarts", 0)},
                {"restartCount": 0},
            ],
        },
    }
    if node:
        raw["spec"]["nodeName"] = node
    if more.get("deleted"):
        raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return raw


def deployment(role="prefill", **spec):
    return {"metadata": {"labels": {"serving.argosy.dev/role": role}}, "spec": spec}


ONE = [
    # what the pod is: Ready, present, and the GPUs that it holds
    ("ready", pod(), 1, 1, 4),
    ("not_ready", pod(ready="False"), 0, 1, 4),
    ("unknown_because_its_node_is_lost", pod(ready="Unknown"), 0, 1, 4),
    ("draining_after_its_deletion", pod(deleted=True), 0, 1, 4),
    ("waiting_for_a_node", pod(ready="False", phase="Pending", node=None), 0, 1, 0),
    ("starting_on_a_node", pod(ready="False", phase="Pending"), 0, 1, 4),
    ("ended", pod(phase="Succeeded"), 0, 0, 0),
    ("failed", pod(phase="Failed", ready="False"), 0, 0, 0),
    ("of_the_other_role", pod("decode"), 0, 0, 4),
    ("a_gateway", pod("gateway", gpus=0), 0, 0, 0),
]


@pytest.mark.parametrize(
    ("raw", "ready", "present", "gpus"), [row[1:] for row in ONE], ids=[row[0] for row in ONE]
)
def test_a_pod_counts_as_the_kubelet_and_the_scheduler_say(raw, ready, present, gpus):
    found = count([raw], [])
    assert found.roles["prefill"] == Replicas(ready=ready, desired=0, present=present)
    assert found.gpus == gpus


def test_desired_replicas_are_what_the_deployments_ask_for():
    found = count([], [deployment(replicas=2), deployment(replicas=1), deployment("decode")])
    assert found.roles["prefill"].desired == 3
    assert found.roles["decode"].desired == 1  # Kubernetes' default


def test_a_fleet_whose_pods_are_gone_has_no_replicas_although_some_are_desired():
    found = count([], [deployment(replicas=2)])
    assert found.roles["prefill"] == Replicas(ready=0, desired=2, present=0)
    assert found.gpus == 0


def test_names_are_kept_by_role_and_restarts_by_pod():
    found = count([pod(name="p", restarts=2), pod("decode", name="d")], [])
    assert found.names == {"prefill": frozenset({"p"}), "decode": frozenset({"d"})}
    assert sorted(found.restarts.values()) == [0, 2]


def test_a_pod_that_the_kubelet_has_not_seen_is_present_and_not_ready():
    raw = pod(node=None)
    del raw["status"]
    assert count([raw], []).roles["prefill"] == Replicas(ready=0, desired=0, present=1)
