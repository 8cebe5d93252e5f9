"""The order in which a ReplicaSet removes pods: ActivePodsWithRanks in Kubernetes' sources.

Kubernetes compares binary logarithms of ages, so the ages below differ by more than a factor of two
at the time 10,000.
"""

from typing import Any

import pytest

from argosy_operator.core.snapshot.pods import Pod, removal_order


def pod(name: str = "p", **looks: Any) -> Pod:
    """A ready pod, created at 8,000 and ready at 8,060."""
    return Pod(
        name, f"uid-{name}", "decode", "r", **{"created_at": 8000.0, "ready_at": 8060.0} | looks
    )


def unready(name: str, **looks: Any) -> Pod:
    return pod(name, ready=False, ready_at=None, **looks)


# One row per rule: the pod that goes first, and the one that stays. Each row but the first breaks
# a tie of the rules before it, and the rules after it say the opposite.
RULES = {
    "one without a node before one with": (
        pod("b", assigned=False, phase="Running", cost=9),
        pod("a", phase="Pending", cost=-9),
    ),
    "Pending before Unknown": (pod("b", phase="Pending", cost=9), pod("a", phase="Unknown")),
    "Unknown before Running": (
        pod("b", phase="Unknown", cost=9),
        unready("a", phase="Running", cost=-9),
    ),
    "unready before ready": (unready("b", cost=9), pod("a", cost=-9)),
    "the lower cost first": (pod("b", cost=-1, ready_at=8001.0), pod("a", cost=0)),
    "the lower cost of two that are unready": (unready("b", cost=-1), unready("a", restarts=5)),
    "ready for less time first": (
        pod("b", ready_at=9990.0, created_at=100.0),
        pod("a", ready_at=9000.0, restarts=5, created_at=8000.0),
    ),
    "more restarts first": (
        unready("b", restarts=2, created_at=100.0),
        unready("a", restarts=1, created_at=8000.0),
    ),
    "the newer first": (unready("b", created_at=9990.0), unready("a", created_at=8000.0)),
    "the newer of two that got ready together": (
        pod("b", created_at=9990.0),
        pod("a", created_at=8000.0),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_pods_leave_in_the_order_of_a_replica_set(rule: str) -> None:
    first, second = RULES[rule]
    assert removal_order([second, first], 10_000.0) == [first, second]
    assert removal_order([first, second], 10_000.0) == [first, second]


def test_pods_that_are_equal_in_all_leave_by_name_so_that_every_round_sees_one_order() -> None:
    assert removal_order([pod("b"), pod("c"), pod("a")], 10_000.0) == [pod("a"), pod("b"), pod("c")]


@pytest.mark.parametrize(
    "gone", [{"terminating": True}, {"phase": "Succeeded"}, {"phase": "Failed"}], ids=str
)
def test_a_replica_set_removes_no_pod_that_is_leaving_or_has_ended(gone: Any) -> None:
    assert removal_order([pod("a", **gone), pod("b")], 10_000.0) == [pod("b")]
