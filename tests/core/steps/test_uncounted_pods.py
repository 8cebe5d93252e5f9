"""Pods whose engines have no admin port leave by what gateways have sent there."""

from dataclasses import replace

import pytest

from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.actions import HastenDrain, Scale, TakeWorkAgain
from argosy_operator.core.snapshot.pods import GatewayLoad, Load, Pod, load_by_gateways
from tests.support.model import Model, converged

GATEWAYS = tuple(Pod(f"g{n}", f"g{n}", "gateway", "", ip="10.0.0.1") for n in (1, 2))


def said(running, *, left, uid="e"):
    return GatewayLoad(3, 0.0, on_pods={uid: running}, left=frozenset({uid} if left else ()))


@pytest.mark.parametrize(
    ("first", "second", "load"),
    [
        (said(0, left=True), said(0, left=True), Load(True, 0, 0)),
        (said(2, left=True), said(1, left=True), Load(True, 3, 0)),
        # One of them has not seen the mark yet, and may still send.
        (said(0, left=True), said(0, left=False), Load(False, 0, 0)),
        # One is silent, one is older, one does not know the pod.
        (said(0, left=True), None, None),
        (said(0, left=True), GatewayLoad(0, 0.0), None),
        (said(0, left=True), said(0, left=True, uid="other"), None),
    ],
)
def test_a_pod_runs_what_all_gateways_have_there_and_drains_when_all_have_left(first, second, load):
    assert load_by_gateways("e", GATEWAYS, {"g1": first, "g2": second}) == load


def test_a_gateway_that_leaves_is_asked_until_its_process_has_ended():
    leaves = replace(GATEWAYS[1], terminating=True)
    assert load_by_gateways("e", (GATEWAYS[0], leaves), {"g1": said(0, left=True)}) is None
    ended = replace(leaves, phase="Succeeded")
    found = load_by_gateways("e", (GATEWAYS[0], ended), {"g1": said(0, left=True)})
    assert found == Load(True, 0, 0)


def leaving(running: int, **looks: object) -> Model:
    """A fleet of vLLM with two pods that shall have one."""
    roles = {"colocated": {"replicas": {"min": 1, "max": 4}}}
    spec = {"model": {"uri": "pvc://models"}, "engine": {"type": "vllm", "image": "v:1"}}
    return converged(roles=roles, autoscaling={"policy": "External"}, **spec)


def drained(load: Load | None):
    """The actions for a marked pod of vLLM of which gateways say this."""
    model = leaving(0)
    snapshot = model.snapshot()
    marked = {"draining": True, "victim": True, "cost": -1000, "drain_at": snapshot.now - 5}
    engines = [
        Pod(name, name, "colocated", snapshot.revision, ip="10.0.0.2", admin=False, **looks)
        for name, looks in (("e", marked), ("f", {}))
    ]
    key = next(k for k in model.children if k[0] == "Deployment" and "colocated" in k[1])
    two = {**model.children[key], "spec": {**model.children[key]["spec"], "replicas": 2}}
    two["metadata"] = {**two["metadata"], "resourceVersion": "7"}
    gateways = [pod for pod in snapshot.pods if pod.role == "gateway"]
    seen = replace(
        snapshot,
        pods=(*gateways, *engines),
        loads={"e": load},
        children={**snapshot.children, key: two},
    )
    return key[1], plan(seen).actions


def test_a_pod_goes_when_its_last_stream_has_ended_and_no_admin_port_is_called():
    name, actions = drained(Load(True, 0, 0))
    assert [a.replicas for a in actions if isinstance(a, Scale) and a.name == name] == [1]
    assert not any(isinstance(a, HastenDrain | TakeWorkAgain) for a in actions)


@pytest.mark.parametrize("load", [Load(True, 1, 0), Load(False, 0, 0), None])
def test_a_pod_stays_while_a_stream_runs_there_or_nobody_knows(load):
    name, actions = drained(load)
    assert not [a for a in actions if isinstance(a, Scale) and a.name == name]
    assert not any(isinstance(a, HastenDrain | TakeWorkAgain) for a in actions)
