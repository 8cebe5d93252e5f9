"""Production's troubles on the real cluster: serving goes on, and status says what to do."""

import contextlib
import json

import pytest
import yaml

from local.demo.errors import CommandError
from tests.e2e.installed import SYSTEM, complete, traffic

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def steady(argosy):
    """A healthy fleet beside the troubled ones: it must never notice them."""
    argosy.apply("steady", mode="disaggregated")
    argosy.until_ready("steady")
    yield "steady"
    argosy.kubectl("delete", "sd", "steady", "--wait=false")


@pytest.fixture
def troubled(argosy):
    """A name for a fleet that is deleted after the test."""
    name = "troubled"
    yield name
    with contextlib.suppress(CommandError):
        argosy.kubectl("delete", "sd", name, "--wait=false")
    # the garbage collector learns of CRDs that are new every 30 s, and until then of no deletion
    argosy.until("troubled is gone", lambda: not argosy.pods(name), 90)


@pytest.mark.long
def test_an_unknown_preset_is_named_and_other_fleets_are_unharmed(argosy, steady, troubled):
    argosy.apply(troubled, model={"uri": "sim://no-such-model"})
    message = argosy.until_condition(troubled, "Stalled", "ModelNotFound")
    assert "no-such-model" in message
    assert complete(argosy.url(steady), steady).status_code == 200


def test_an_image_that_cannot_be_pulled_is_named(argosy, steady, troubled):
    argosy.apply(troubled, engine={"image": "registry.invalid/none:1"}, progressDeadline="5s")
    message = argosy.until_condition(troubled, "Stalled", "ImagePullFailed")
    assert "registry.invalid/none:1" in message
    assert complete(argosy.url(steady), steady).status_code == 200


def test_too_few_gpus_are_a_condition_with_the_schedulers_reason(argosy, troubled):
    roles = {"colocated": {"replicas": {"min": 1}, "resources": {"gpu": 64}}}
    argosy.apply(troubled, roles=roles)
    assert "gpu" in argosy.until_condition(troubled, "CapacityLimited", "Unschedulable").lower()


def test_an_engine_killed_before_the_first_byte_costs_no_request(argosy, steady):
    argosy.kubectl("patch", "sd", steady, "--type=merge", "-p", _bounds(minimum=2))
    argosy.until("2 decode pods", lambda: len(argosy.pods(steady, "decode")) == 2)
    argosy.until_ready(steady)
    victim = argosy.pods(steady, "prefill")[0]["metadata"]["name"]
    with traffic(argosy.url(steady), steady, per_s=6, tokens=2) as outcomes:
        argosy.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
        argosy.until("the pod is replaced", lambda: len(argosy.pods(steady, "prefill")) == 2)
        argosy.until_ready(steady)
    assert set(outcomes) == {"ok"}, outcomes


def test_fewer_replicas_under_traffic_lose_nothing(argosy, steady):
    argosy.kubectl("patch", "sd", steady, "--type=merge", "-p", _bounds(minimum=2))
    argosy.until_ready(steady)
    argosy.until("2 decode pods", lambda: len(argosy.pods(steady, "decode")) == 2)
    with traffic(argosy.url(steady), steady, per_s=6, tokens=60) as outcomes:
        argosy.kubectl("patch", "sd", steady, "--type=merge", "-p", _bounds(minimum=1))
        argosy.until(
            "1 pod a role",
            lambda: all(len(argosy.pods(steady, role)) == 1 for role in ("prefill", "decode")),
            timeout_s=60,
        )
    assert outcomes
    assert set(outcomes) == {"ok"}, outcomes


def test_a_change_of_mode_under_traffic_loses_nothing(argosy, troubled):
    argosy.apply(troubled, mode="colocated")
    argosy.until_ready(troubled)
    with traffic(argosy.url(troubled), troubled, per_s=4, tokens=40) as outcomes:
        argosy.apply(troubled, mode="disaggregated")
        argosy.until("the old mode is gone", lambda: not argosy.pods(troubled, "colocated"), 90)
        argosy.until_ready(troubled)
    assert set(outcomes) == {"ok"}, outcomes


def test_serving_goes_on_without_an_operator_and_the_next_one_converges(argosy, steady):
    with argosy.operator_away():
        assert complete(argosy.url(steady), steady).status_code == 200
        argosy.kubectl("patch", "sd", steady, "--type=merge", "-p", _bounds(minimum=2))
    argosy.until("2 prefill pods", lambda: len(argosy.pods(steady, "prefill")) == 2, 60)
    argosy.kubectl("patch", "sd", steady, "--type=merge", "-p", _bounds(minimum=1))
    argosy.until("1 prefill pod", lambda: len(argosy.pods(steady, "prefill")) == 1, 60)


def test_a_killed_leader_is_replaced_within_twenty_seconds(argosy, steady):
    for pod in argosy.operator_pods():
        argosy.kube.kubectl("-n", SYSTEM, "delete", "pod", pod, "--grace-period=0", "--force")
    argosy.kubectl("patch", "sd", steady, "--type=merge", "-p", _bounds(minimum=2))
    argosy.until("the next leader acts", lambda: len(argosy.pods(steady, "decode")) == 2, 25)
    argosy.kubectl("patch", "sd", steady, "--type=merge", "-p", _bounds(minimum=1))
    argosy.until("1 decode pod", lambda: len(argosy.pods(steady, "decode")) == 1, 60)


def test_a_deleted_fleet_leaves_nothing_and_touches_nothing_else_without_operator(argosy, steady):
    argosy.apply("leaving")
    argosy.until_ready("leaving")
    bystander = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "leaving-notes", "labels": {"serving.argosy.dev/fleet": "leaving"}},
    }
    argosy.kubectl("apply", "-f", "-", given=yaml.safe_dump(bystander))
    kinds = "deployments,services,serviceaccounts,roles,rolebindings,pdb,servingroles,pods"
    with argosy.operator_away():
        argosy.kubectl("delete", "sd", "leaving")
        argosy.until(
            "all children are gone",
            lambda: (
                not argosy.kubectl(
                    "get", kinds, "-l", "serving.argosy.dev/fleet=leaving", "-o", "name"
                )
            ),
            60,
        )
        assert argosy.kubectl("get", "configmap", "leaving-notes", "-o", "name").strip()
        assert complete(argosy.url(steady), steady).status_code == 200
    argosy.kubectl("delete", "configmap", "leaving-notes")


def _bounds(minimum: int) -> str:
    role = {"replicas": {"min": minimum, "max": 4}}
    return json.dumps({"spec": {"roles": {"prefill": role, "decode": role}}})
