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


def test_a_pod_that_the_kubelet_has_not_seen_is_present_and_not_ready():
    raw = pod(node=None)
    del raw["status"]
    assert count([raw], []).roles["prefill"] == Replicas(ready=0, desired=0, present=1)
