"""What makes a new revision, and what must not."""

import hashlib
import json

import pytest

from argosy_operator.core.snapshot.names import DRAIN_TIMEOUT
from argosy_operator.core.snapshot.snapshot import (
    TEMPLATE,
    drain_timeout_s,
    fields,
    revision,
)
from tests.render.fleets import IMAGES, deployment, fleet

H100 = {"name": "h100", "costPerHour": "4.10", "nodeSelector": {"gpu": "h100"}}
SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "40ms"}}


def revision_of(**spec):
    return revision(fleet(**spec), engine_image=IMAGES.engine)


def template_of(role, **spec):
    one = fleet(**spec)
    live = {"metadata": {"annotations": {DRAIN_TIMEOUT: "60"}}}
    made = deployment(one, role, live=live)
    return json.dumps(made["spec"]["template"], sort_keys=True)


OUTSIDE = {
    "slo": {"slo": SLO},
    "gateways' pods": {"routing": {"template": {"spec": {"nodeSelector": {"pool": "a"}}}}},
    "a template that asks for nothing": {"template": {"spec": {"nodeSelector": {}}}},
    "replicas": {"roles": {"decode": {"replicas": {"min": 2, "max": 5}}}},
    "autoscaling": {"autoscaling": {"interval": "1s", "policy": "None"}},
    "drain": {"drain": {"timeout": "60s"}},
    "drain's mode": {"drain": {"mode": "migrate"}},
    "routing": {"routing": {"replicas": 5, "queueTimeout": "5s"}},
    "metrics": {"metrics": {"scrapeInterval": "1s"}},
    "paused": {"paused": True},
    "network": {"security": {"networkPolicy": False}},
    "no role flip": {"autoscaling": {"roleFlip": False}},
    "a type that no role names": {"gpuTypes": [H100]},
    "a role that the mode does not use": {"roles": {"colocated": {"resources": {"gpu": 7}}}},
}
VLLM = {"engine": {"type": "vllm", "image": "vllm:1"}}


def adapter(uri):
    """A fleet of vLLM with an adapter there."""
    adapters = [{"name": "sql", "uri": uri}]
    return {**VLLM, "model": {"uri": "pvc://models/some/model", "adapters": adapters}}


INSIDE = {
    "model": {"model": {"uri": "pvc://models/other"}},
    "image": {"engine": {"image": "registry.example/engine:2"}},
    "dtype": {"engine": {"dtype": "float32"}},
    "length": {"engine": {"maxModelLen": 2048}},
    "sequences": {"engine": {"maxNumSeqs": 8}},
    "tokens": {"engine": {"maxNumBatchedTokens": 2048}},
    "tokens that the engine chooses": {"engine": {"maxNumBatchedTokens": "auto"}},
    "body": {"engine": {"maxBodyBytes": 1 << 20}},
    "args": {"engine": {"args": ["--block-size=32"]}},
    "env": {"engine": {"env": [{"name": "A", "value": "1"}]}},
    "template": {"template": {"spec": {"nodeSelector": {"pool": "llm"}}}},
    "template of a role": {"roles": {"decode": {"template": {"spec": {"schedulerName": "a"}}}}},
    "name of GPUs": {"roles": {"decode": {"resources": {"gpuResource": "amd.com/gpu"}}}},
    "claimed GPUs": {
        "roles": {"decode": {"resources": {"gpuFrom": "Claims"}}},
    },
    "gpus": {"roles": {"decode": {"resources": {"gpu": 2}}}},
    "time-out": {"kvTransfer": {"timeout": "5s"}},
    "failure": {"kvTransfer": {"onFailure": "fail"}},
    "GPUs that KV heads are split over": {
        "model": {"uri": "sim://x"},
        "roles": {"decode": {"parallelism": {"tensor": 2}}},
    },
    "transport": {"kvTransfer": {"transport": "nixl"}},
    "callers": {"security": {"verifyPeers": False}},
    "certificate": {"security": {"tls": {"secretName": "chat-tls"}}},
    "role flip": {"autoscaling": {"roleFlip": True}},
    "GPU types": {
        "gpuTypes": [H100],
        "roles": {r: {"gpuTypes": ["h100"]} for r in ("prefill", "decode")},
    },
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_needs_no_new_pods_makes_no_new_revision(case):
    assert revision_of(**OUTSIDE[case]) == revision_of()
    for role in ("prefill", "decode"):
        assert template_of(role, **OUTSIDE[case]) == template_of(role)


@pytest.mark.parametrize("case", INSIDE)
def test_what_changes_a_template_makes_a_new_revision(case):
    changed = {r for r in ("prefill", "decode") if template_of(r, **INSIDE[case]) != template_of(r)}
    assert changed
    assert revision_of(**INSIDE[case]) != revision_of()


def test_each_change_of_adapters_makes_a_new_revision():
    at = (VLLM, adapter("pvc://models/a"), adapter("pvc://other/a"))
    assert len({revision_of(**spec) for spec in at}) == 3


def test_a_transfers_time_out_means_nothing_to_colocated_pods():
    one = revision_of(mode="colocated")
    assert revision_of(mode="colocated", kvTransfer={"timeout": "5s"}) == one


def test_a_revision_stays_the_same_over_releases():
    assert fields(fleet(), engine_image="engine:1")["template"] == TEMPLATE
    assert revision(fleet(), engine_image="engine:1") == "332cb77d"


def test_pods_that_may_change_their_role_read_it_from_their_label():
    made = deployment(fleet(autoscaling={"roleFlip": True}), "decode")
    pod = made["spec"]["template"]["spec"]
    label = {"fieldPath": "metadata.labels['serving.argosy.dev/role']"}
    volume = {"name": "role", "downwardAPI": {"items": [{"path": "role", "fieldRef": label}]}}
    assert volume in pod["volumes"]
    (container,) = pod["containers"]
    mount = {"name": "role", "mountPath": "/etc/argosy/role", "readOnly": True}
    assert mount in container["volumeMounts"]
    words = container["args"]
    assert words[words.index("--role-file") + 1] == "/etc/argosy/role/role"
    assert "/etc/argosy/role" not in template_of("decode")


@pytest.mark.parametrize(
    ("timeout", "seconds"), [("1", 1), ("2", 2), ("86400", 86400), ("0", 77), ("86401", 77)]
)
def test_a_drain_timeout_on_a_deployment_counts_within_the_bounds_of_the_spec(timeout, seconds):
    """docs/reference/bounds.md: drain.timeout is 1s to 24h."""
    live = {"metadata": {"annotations": {DRAIN_TIMEOUT: timeout}}}
    assert drain_timeout_s(fleet(drain={"timeout": "77s"}), live) == seconds


def test_a_changed_template_of_pods_with_defaults_raises_its_number() -> None:
    """Likewise for Deployments that note the defaults with which they were made."""
    live = {"metadata": {"annotations": {DRAIN_TIMEOUT: "60"}}}
    made = [deployment(fleet(), role, live=live) for role in ("prefill", "decode")]
    text = json.dumps([one["spec"]["template"] for one in made], sort_keys=True)
    found = hashlib.sha256(text.encode()).hexdigest()[:8]
    assert (TEMPLATE, found) == (5, "b1dbfe19"), (
        "raise core.snapshot.snapshot.TEMPLATE, then pin again"
    )


def test_a_deployment_keeps_the_drain_timeout_that_it_was_created_with():
    before = deployment(fleet(drain={"timeout": "90s"}), "decode")
    later = fleet(drain={"timeout": "600s"})
    after = deployment(later, "decode", None, live=before)
    assert drain_timeout_s(later, before) == 90
    assert before["metadata"]["annotations"][DRAIN_TIMEOUT] == "90"
    assert after["spec"]["template"] == before["spec"]["template"]


@pytest.mark.parametrize("text", ["", "soon", "²", "٣", "-1", "1.5", "0", "86401", "9" * 5000])
def test_a_drain_timeout_that_no_spec_could_ask_for_is_ignored(text):
    """`²` passes str.isdigit, and int() takes no more than 4,300 digits: each ended the round."""
    live = {"metadata": {"annotations": {DRAIN_TIMEOUT: text}}}
    assert drain_timeout_s(fleet(drain={"timeout": "77s"}), live) == 77


@pytest.mark.parametrize("live", [None, {"metadata": {"annotations": None}}, {"metadata": {}}])
def test_a_deployment_that_says_nothing_about_drains_follows_the_spec(live):
    assert drain_timeout_s(fleet(drain={"timeout": "76500ms"}), live) == 77
