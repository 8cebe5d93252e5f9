"""Which pods of the API server are engines of the fleet, and in which state."""

import pytest

from argosy_gateway.pods.endpoints import State, endpoint_of_pod

POD = {
    "metadata": {
        "name": "p",
        "uid": "u",
        "labels": {
            "serving.argosy.dev/fleet": "chat",
            "serving.argosy.dev/role": "decode",
            "serving.argosy.dev/revision": "0a0a0a0a",
            "pod-template-hash": "7c9",
        },
        "ownerReferences": [
            {"kind": "ReplicaSet", "name": "chat-decode-0a0a0a0a-7c9", "controller": True}
        ],
    },
    "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
}


@pytest.mark.parametrize(
    ("meta", "status", "state"),
    [
        ({}, {}, State.SERVING),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}, State.DRAINING),
        ({"annotations": {"serving.argosy.dev/drain": "x"}}, {}, State.DRAINING),
        ({}, {"conditions": [{"type": "Ready", "status": "False"}]}, State.UNREADY),
        ({}, {"podIP": None}, State.UNREADY),
    ],
)
def test_a_pod_serves_when_ready_and_neither_deleted_nor_draining(meta, status, state):
    pod = {"metadata": {**POD["metadata"], **meta}, "status": {**POD["status"], **status}}
    assert endpoint_of_pod(pod).state is state


def test_the_gateways_own_pods_and_finished_pods_are_no_engines():
    labels = {"serving.argosy.dev/role": "gateway"}
    assert endpoint_of_pod({**POD, "metadata": {**POD["metadata"], "labels": labels}}) is None
    assert endpoint_of_pod({**POD, "status": {**POD["status"], "phase": "Failed"}}) is None


OWNER = POD["metadata"]["ownerReferences"][0]


@pytest.mark.parametrize(
    "owners",
    [
        [],
        None,
        [{**OWNER, "controller": False}],
        [{**OWNER, "kind": "Job"}],
        [{**OWNER, "name": "chat-decode-0a0a0a0a"}],
        [{**OWNER, "name": "other-decode-0a0a0a0a-7c9"}],
        [{**OWNER, "name": "chat-prefill-0a0a0a0a-7c9"}],
    ],
)
def test_a_pod_that_only_carries_our_labels_gets_no_prompts(owners):
    pod = {**POD, "metadata": {**POD["metadata"], "ownerReferences": owners}}
    assert endpoint_of_pod(pod) is None
