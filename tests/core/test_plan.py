"""What a plan asks for, step by step, in a model of the cluster."""

from dataclasses import replace

import pytest

from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import (
    Apply,
    Create,
    Delete,
    HastenDrain,
)
from tests.support.model import Model, condition, converged, fleet

PAIR = {"prefill": {"replicas": {"min": 1, "max": 4}}, "decode": {"replicas": {"min": 2, "max": 4}}}


def test_a_new_fleet_gets_all_its_children_with_the_minimum_of_pods() -> None:
    model = converged(mode="disaggregated", roles=PAIR)
    assert (model.replicas("prefill"), model.replicas("decode")) == (1, 2)
    assert {name for kind, name in model.children if kind == "ServingRole"} == {
        "chat-prefill",
        "chat-decode",
    }
    assert condition(model, "Ready").status == "True"
    assert condition(model, "Reconciling").status == "False"


def test_a_crash_after_any_action_ends_in_the_same_fleet() -> None:
    whole = converged(mode="disaggregated", roles=PAIR)
    count = len(Model(fleet(mode="disaggregated", roles=PAIR)).round().actions)
    for k in range(count + 1):
        model = Model(fleet(mode="disaggregated", roles=PAIR))
        model.round(crash_after=k)
        model.converge()
        assert model.children.keys() == whole.children.keys(), k
        assert model.replicas("decode") == 2


def test_a_paused_fleet_is_only_looked_at() -> None:
    model = converged()
    model.edit(paused=True, engine={"image": "engine:2"})
    assert model.round().actions == ()
    assert condition(model, "Reconciling").reason == "Paused"


def test_a_paused_fleet_puts_nothing_back_and_tells_of_no_change() -> None:
    model = converged()
    model.edit(paused=True)
    model.converge()
    model.scale_role("colocated", 3)
    del model.children["Service", "chat"]
    planned = plan(model.snapshot())
    assert planned.actions == planned.events == ()


def test_a_child_of_an_earlier_fleet_of_the_same_name_is_foreign() -> None:
    model = converged()
    model.fleet = model.fleet.model_copy(
        update={"metadata": model.fleet.metadata.model_copy(update={"uid": "fleet-2"})}
    )
    assert not any(isinstance(a, Apply) and a.uid for a in model.round().actions)
    assert condition(model, "NameConflict").status == "True"


def test_more_demand_while_pods_drain_calls_them_back() -> None:
    model = converged(
        roles={"colocated": {"replicas": {"min": 1, "max": 4}}},
        autoscaling={"policy": "External"},
    )
    model.scale_role("colocated", 3)
    model.converge()
    there = set(model.pods)
    for uid in model.pods:
        model.requests[uid] = 50
    model.scale_role("colocated", 1)
    model.round()
    model.round()
    assert sum(pod.draining for pod in model.pods.values()) == 2
    model.scale_role("colocated", 3)
    model.converge()
    assert set(model.pods) == there
    assert not any(pod.draining for pod in model.pods.values())


def test_a_recall_that_no_engine_heard_leaves_no_pod_unready() -> None:
    model = converged(
        roles={"colocated": {"replicas": {"min": 1, "max": 4}}},
        autoscaling={"policy": "External"},
    )
    model.scale_role("colocated", 2)
    model.converge()
    model.requests = dict.fromkeys(model.pods, 1000)
    model.scale_role("colocated", 1)
    model.round()
    model.round()
    assert len(model.draining) == 1
    model.deaf = True
    model.scale_role("colocated", 2)
    model.round()
    model.tick()
    model.converge()
    assert all(pod.ready for pod in model.pods.values())


@pytest.mark.slow
def test_a_drain_order_is_repeated_while_it_is_meant() -> None:
    model = converged(
        roles={"colocated": {"replicas": {"min": 1, "max": 4}}},
        autoscaling={"policy": "External"},
    )
    model.scale_role("colocated", 2)
    model.converge()
    model.requests = dict.fromkeys(model.pods, 1000)
    model.scale_role("colocated", 1)
    model.round()
    model.round()
    asked = 0
    for _ in range(250):
        model.tick()
        asked += sum(isinstance(a, HastenDrain) for a in model.round().actions)
        assert len(model.draining) == 1
    assert asked < 20  # not in every round


def test_a_new_revision_serves_before_the_old_one_leaves() -> None:
    model = converged(mode="disaggregated", roles=PAIR)
    old = {name for kind, name in model.children if kind == "Deployment"}
    model.edit(engine={"image": "engine:2"})
    for _ in range(40):
        p = model.round()
        assert condition(model, "Servable").status == "True"
        if any(isinstance(a, Delete) for a in p.actions):
            break
        model.tick()
    model.converge()
    assert {n for kind, n in model.children if kind == "Deployment"} & old == {"chat-gateway"}


def test_a_new_revision_that_never_starts_leaves_the_old_one_serving() -> None:
    model = converged()
    old = set(model.pods)
    model.edit(engine={"image": "engine:2"})
    model.round()
    for _ in range(10):
        model.round()
        model.pods = {
            uid: replace(pod, ready=pod.uid in old, waiting=("ImagePullBackOff", "no such image"))
            if pod.uid not in old
            else pod
            for uid, pod in model.pods.items()
        }
        model.now += 0.1
        for (kind, name), child in list(model.children.items()):
            if kind == "Deployment":
                model._replica_set(name, child["metadata"]["labels"], child["spec"]["replicas"])
    assert old <= set(model.pods)
    assert condition(model, "Servable").status == "True"
    assert condition(model, "Stalled").reason == "ImagePullFailed"


def gateways_account(model: Model) -> str | None:
    """The account whose tokens the gateway's pods hold, as far as their template says."""
    template = model.children["Deployment", "chat-gateway"]["spec"]["template"]
    return template["metadata"]["annotations"].get(names.ACCOUNT)


def test_gateways_are_replaced_when_their_account_was_made_anew() -> None:
    """The token of a pod is bound to the account's uid, and the kubelet keeps it for most of an
    hour, over restarts of the container, too."""
    model = converged()
    assert gateways_account(model) is None
    for _ in range(2):
        model.tick()
        del model.children["ServiceAccount", "chat-gateway"]
        before = gateways_account(model)
        p = model.round()
        assert gateways_account(model) == before, "nothing is replaced while there is no account"
        model.converge()
        account = model.children["ServiceAccount", "chat-gateway"]["metadata"]["uid"]
        assert gateways_account(model) == account
        assert not any("put back" in event.message for event in p.events)


def test_a_fleet_that_is_being_deleted_gets_no_actions() -> None:
    model = Model(fleet())
    meta = model.fleet.metadata.model_copy(update={"deletion_timestamp": "2026-01-01T00:00:00Z"})
    model.fleet = model.fleet.model_copy(update={"metadata": meta})
    assert not any(isinstance(a, Create | Apply) for a in model.round().actions)
