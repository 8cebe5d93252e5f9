"""The operator expects pods to go in the order in which the model's ReplicaSet removes them.

Here are the rules that test_removal_order.py does not have, and any two pods. A victim that has
finished is removed by lowering replicas. Kubernetes chooses the pod, so an order that differs
removes a pod that still answers.
"""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from argosy_operator.core.snapshot.pods import pod_of, removal_order
from tests.support.api import written
from tests.support.replica_sets import removed_first

NOW = 1_000_000.0
Object = dict[str, Any]


def pod(
    name: str,
    *,
    node: str = "node-1",
    phase: str = "Running",
    ready_s: float | None = 100.0,
    cost: str = "0",
    restarts: int = 0,
    age_s: float = 1000.0,
) -> Object:
    """A pod that is ready for so long; None: it is not ready. Its uid is its name."""
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": written(NOW - 1)}
    if ready_s is not None:
        condition = {**condition, "status": "True", "lastTransitionTime": written(NOW - ready_s)}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": cost},
            "creationTimestamp": written(NOW - age_s),
        },
        "spec": {"nodeName": node} if node else {},
        "status": {
            "phase": phase,
            "conditions": [condition],
            "containerStatuses": [{"name": "engine", "restartCount": restarts}],
        },
    }


NEXT_TO = [pod("c", node="node-2")]
RULES: dict[str, tuple[Object, Object, list[Object]]] = {
    "the cost is a number, not a text": (pod("b", cost="-20"), pod("a", cost="-3"), []),
    "a cost of no number counts as 0": (pod("b", cost="-1"), pod("a", cost="-0x9"), []),
    "a cost with a leading zero counts as 0": (pod("b", cost="-1"), pod("a", cost="-007"), []),
    "a cost beyond 32 bits counts as 0": (pod("b", cost="-1"), pod("a", cost="-2147483649"), []),
    "doubled up on its node": (
        pod("b", node="node-2", ready_s=9000, age_s=9999),
        pod("a", ready_s=1),
        NEXT_TO,
    ),
    "ready for a shorter time, by powers of two": (
        pod("b", ready_s=100),
        pod("a", ready_s=9000),
        [],
    ),
    "ready times within a power of two: by uid": (pod("a", ready_s=130), pod("b", ready_s=120), []),
    "more restarts": (pod("b", restarts=2, age_s=9000), pod("a", restarts=1), []),
    "younger, by powers of two": (pod("b", age_s=1000), pod("a", age_s=9000), []),
    "ages within a power of two: by uid": (pod("a", age_s=1050), pod("b", age_s=1000), []),
    "unready ones: more restarts before younger": (
        pod("b", ready_s=None, restarts=1, age_s=9000),
        pod("a", ready_s=None),
        [],
    ),
}


@pytest.mark.parametrize(("first", "second", "others"), RULES.values(), ids=RULES.keys())
def test_each_rule_of_kubernetes_decides_which_of_two_pods_goes_first(
    first: Object, second: Object, others: list[Object]
) -> None:
    for pods in ([first, second, *others], [second, first, *others]):
        order = [p.name for p in removal_order(map(pod_of, pods), NOW)]
        assert order.index(first["metadata"]["name"]) < order.index(second["metadata"]["name"])
        model = [p["metadata"]["name"] for p in removed_first(pods, NOW)]
        assert model.index(first["metadata"]["name"]) < model.index(second["metadata"]["name"])


pods = st.builds(
    pod,
    st.uuids().map(str),
    node=st.sampled_from(["", "node-1", "node-2", "node-3"]),
    phase=st.sampled_from(["Pending", "Unknown", "Running"]),
    ready_s=st.none() | st.integers(0, 5000),
    cost=st.sampled_from(["0", "-1000", "7"]),
    restarts=st.integers(0, 2),
    age_s=st.integers(0, 5000),
)


@given(st.lists(pods, min_size=2, max_size=2))
@example([pod("a", node="node-1"), pod("b", node="node-1")])
def test_of_any_two_pods_the_operator_and_the_replica_set_remove_the_same_one(
    two: list[Object],
) -> None:
    ours = [p.uid for p in removal_order(map(pod_of, two), NOW)]
    assert ours == [p["metadata"]["uid"] for p in removed_first(two, NOW)]
