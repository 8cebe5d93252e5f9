"""Which pods of the API server are engines of the fleet, and in which state."""

from dataclasses import replace

import pytest

from argosy_gateway.pods.endpoints import Endpoint, Role, State, endpoint_of_pod, is_ready_gateway
from argosy_gateway.wire.http1 import Head
from argosy_operator.core.snapshot import names

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
OWNER = POD["metadata"]["ownerReferences"][0]


def test_an_engine_pod_is_known_by_its_labels_and_its_address():
    assert endpoint_of_pod(POD) == Endpoint(
        uid="u",
        name="p",
        ip="10.0.0.1",
        role=Role.DECODE,
        revision="0a0a0a0a",
        state=State.SERVING,
        port=8000,
        kv_port=8002,
    )
    without_uid = {**POD, "metadata": {**POD["metadata"], "uid": None}}
    assert endpoint_of_pod(without_uid).uid == "p"


@pytest.mark.parametrize("label", POD["metadata"]["labels"])
def test_a_pod_without_one_of_the_labels_is_no_engine(label):
    labels = {k: v for k, v in POD["metadata"]["labels"].items() if k != label}
    assert endpoint_of_pod({**POD, "metadata": {**POD["metadata"], "labels": labels}}) is None


@pytest.mark.parametrize(
    ("meta", "status", "state"),
    [
        ({}, {}, State.SERVING),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}, State.DRAINING),
        ({"annotations": {"serving.argosy.dev/drain": "x"}}, {}, State.DRAINING),
        ({}, {"conditions": [{"type": "Ready", "status": "False"}]}, State.UNREADY),
        ({}, {"podIP": None}, State.UNREADY),
        ({}, {"conditions": None}, State.UNREADY),
        ({}, {"conditions": [{"type": "Ready", "status": "Unknown"}]}, State.UNREADY),
        ({}, {"conditions": [{"type": "Initialized", "status": "True"}]}, State.UNREADY),
        ({"annotations": None}, {}, State.SERVING),
        ({"annotations": {"serving.argosy.dev/drain": ""}}, {}, State.DRAINING),
        ({"annotations": {"serving.argosy.dev/drain": "x"}}, {"podIP": None}, State.DRAINING),
    ],
)
def test_a_pod_serves_when_ready_and_neither_deleted_nor_draining(meta, status, state):
    pod = {"metadata": {**POD["metadata"], **meta}, "status": {**POD["status"], **status}}
    assert endpoint_of_pod(pod).state is state


def test_the_gateways_own_pods_and_finished_pods_are_no_engines():
    labels = {"serving.argosy.dev/role": "gateway"}
    assert endpoint_of_pod({**POD, "metadata": {**POD["metadata"], "labels": labels}}) is None
    for phase in ("Failed", "Succeeded"):
        assert endpoint_of_pod({**POD, "status": {**POD["status"], "phase": phase}}) is None


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


GATEWAY = {
    "metadata": {
        "name": "g",
        "uid": "u",
        "labels": {
            "serving.argosy.dev/fleet": "chat",
            "serving.argosy.dev/role": "gateway",
            "pod-template-hash": "7c9",
        },
        "ownerReferences": [
            {"kind": "ReplicaSet", "name": f"{names.gateway('chat')}-7c9", "controller": True}
        ],
    },
    "status": POD["status"],
}


def test_a_gateway_is_known_by_its_labels_and_its_owner_while_it_takes_requests():
    meta = GATEWAY["metadata"]
    assert is_ready_gateway(GATEWAY)
    assert not is_ready_gateway(POD)
    assert not is_ready_gateway({**GATEWAY, "status": {}})
    assert not is_ready_gateway({**GATEWAY, "metadata": {**meta, "ownerReferences": []}})
    assert not is_ready_gateway({**GATEWAY, "metadata": {**meta, "deletionTimestamp": "now"}})
    assert endpoint_of_pod(GATEWAY) is None


def test_an_engine_that_is_not_ours_is_known_by_its_annotation():
    assert endpoint_of_pod(POD).engine == "argosy"
    meta = {**POD["metadata"], "annotations": {names.ENGINE: "vllm"}}
    assert endpoint_of_pod({**POD, "metadata": meta}).engine == "vllm"


@pytest.mark.parametrize(
    ("status", "named", "keyed", "gave"),
    [
        (200, b"p", False, True),
        (200, b"q", False, False),
        (200, None, False, False),
        (421, b"p", False, False),
        (401, b"p", False, True),  # it is the pod, and takes no token
        (200, None, True, True),
        (503, None, True, True),
        (401, None, True, False),  # the key is another pod's
        (200, b"p", True, False),  # one of ours has the address
    ],
)
def test_an_answer_shows_whether_it_is_the_pods_own(status, named, keyed, gave):
    pod = replace(endpoint_of_pod(POD), engine="vllm" if keyed else "argosy")
    headers = () if named is None else ((b"x-argosy-decode-pod", named),)
    assert pod.wrote(Head(status, headers)) is gave
