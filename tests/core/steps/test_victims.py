"""Which pods leave, in which order, and when the Deployment may shrink: one row per rule."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from argosy_operator.core.snapshot.pods import Load, Pod
from argosy_operator.core.steps.drain import NextStep, next_step

NOW, TIMEOUT_S = 1000.0, 60.0

STARTS: dict[str, Any] = {"phase": "Pending", "started": False, "ready": False, "ready_at": None}
NO_NODE = {**STARTS, "assigned": False}
CRASHED = {**STARTS, "phase": "Running"}
UNREADY: dict[str, Any] = {"ready": False, "ready_at": None}
BY_HAND: dict[str, Any] = {"draining": True, "drain_at": NOW - 5}
MARKED: dict[str, Any] = {**BY_HAND, "victim": True, "cost": -1000}
SERVES: dict[str, Any] = {}


def pod(name: str, created_at: float = 10.0, **looks: Any) -> Pod:
    return Pod(name, name, "decode", "r", **{"created_at": created_at, "ready_at": 20.0, **looks})


def marked(name: str, ago_s: float = 5.0, **looks: Any) -> Pod:
    """The operator marked it so long ago."""
    return pod(name, **{**MARKED, "drain_at": NOW - ago_s, **looks})


def busy(answers: int = 0, caches: int = 0) -> Load:
    """An engine that serves."""
    return Load(draining=False, running=answers, leases=caches)


def obeys(answers: int = 0, caches: int = 0, for_s: float | None = 59.0) -> Load:
    """An engine that drains, and will for so long."""
    return Load(draining=True, running=answers, leases=caches, expires_in_s=for_s)


def done(step: NextStep) -> dict[str, Any]:
    """The step without what it leaves as it is; pods by name."""
    fields = {
        "replicas": step.replicas,
        "mark": [p.name for p in step.mark],
        "recall": [p.name for p in step.recall],
        "hasten": [p.name for p in step.hasten],
        "leaving": [p.name for p in step.leaving],
        "ask": step.ask,
    }
    return {name: value for name, value in fields.items() if value not in (None, [], False)}


OLD, NEW = {"created_at": 10.0}, {"created_at": 11.0}

PREFERENCES: dict[str, tuple[dict[str, Any], dict[str, Any], Load | None, Load | None]] = {
    "one whose engine has not started, before one that the operator marked": (
        {**STARTS, **OLD}, {**MARKED, **NEW}, None, obeys(0),
    ),
    "one between two starts of its engine, before one that the operator marked": (
        {**CRASHED, **OLD}, {**MARKED, **NEW}, None, obeys(0),
    ),
    "of those that have not started, one without a node": (
        {**NO_NODE, **OLD}, {**STARTS, **NEW}, None, None,
    ),
    "of those that have not started on a node, the newest": (
        {**STARTS, **NEW}, {**STARTS, **OLD}, None, None,
    ),
    "of those that drain, one that the operator marked, before one that a person drains": (
        {**MARKED, **OLD}, {**BY_HAND, **NEW}, obeys(9), obeys(0),
    ),
    "of those that the operator marked, the newest": (
        {**MARKED, **NEW}, {**MARKED, **OLD}, obeys(9), obeys(0),
    ),
    "one that a person drains, before one that is not ready": (
        {**BY_HAND, **OLD}, {**UNREADY, **NEW}, busy(9), None,
    ),
    "one that drains and is not ready, before one that is not ready": (
        {**BY_HAND, **UNREADY, **OLD}, {**UNREADY, **NEW}, busy(9), None,
    ),
    "one that is not ready, before one that serves and is idle": (
        {**UNREADY, **OLD}, {**SERVES, **NEW}, busy(9), busy(0),
    ),
    "of those that are not ready, the newest": (
        {**UNREADY, **NEW}, {**UNREADY, **OLD}, busy(9), busy(0),
    ),
    "of those that serve, one with fewer answers": (
        {**SERVES, **OLD}, {**SERVES, **NEW}, busy(1), busy(2),
    ),
    "of those that serve, one with fewer answers and KV caches together": (
        {**SERVES, **OLD}, {**SERVES, **NEW}, busy(3, caches=0), busy(1, caches=3),
    ),
    "of those that serve, one that said how busy it is, before one that did not answer": (
        {**SERVES, **OLD}, {**SERVES, **NEW}, busy(99), None,
    ),
    "of those that serve and are equally busy, the newest": (
        {**SERVES, **NEW}, {**SERVES, **OLD}, busy(2), busy(1, caches=1),
    ),
}  # fmt: skip
"""The pod that leaves, the pod that stays, and their loads. Every later rule, and Kubernetes' own
order, would choose the other pod."""


@pytest.mark.parametrize(
    ("leaves", "stays", "load", "load_of_other"), PREFERENCES.values(), ids=PREFERENCES
)
def test_of_two_pods_the_first_to_leave_is(
    leaves: dict[str, Any], stays: dict[str, Any], load: Load | None, load_of_other: Load | None
) -> None:
    loads = {"leaves": load, "stays": load_of_other}
    pods = [pod("leaves", **leaves), pod("stays", **stays)]
    for given in (pods, pods[::-1]):
        step = next_step(2, 1, given, loads, NOW, TIMEOUT_S)
        assert [p.name for p in step.leaving] == ["leaves"]
        assert not step.ask


def test_lease_holders_leave_last() -> None:
    pods = [pod("holds", **NEW), pod("answers", **OLD)]
    loads = {"holds": busy(0, caches=1), "answers": busy(50)}
    step = next_step(2, 1, pods, loads, NOW, TIMEOUT_S)
    assert [p.name for p in step.leaving] == ["answers"]


def test_engines_are_asked_before_one_of_serving_pods_is_chosen() -> None:
    pods = [pod("one"), pod("two")]
    assert next_step(2, 1, pods, {}, NOW, TIMEOUT_S).ask


def test_all_rules_together_order_a_whole_deployment() -> None:
    pods = [
        pod("serves-old", created_at=1.0),
        pod("serves-busy", created_at=9.0),
        pod("serves-new", created_at=2.0),
        pod("unready", **UNREADY),
        pod("by-hand", **BY_HAND),
        marked("marked"),
        pod("starts", **STARTS),
        pod("no-node", **NO_NODE),
    ]
    loads = {"serves-old": busy(1), "serves-busy": busy(7), "serves-new": busy(1)}
    order = [
        "no-node", "starts", "marked", "by-hand", "unready", "serves-new", "serves-old",
        "serves-busy",
    ]  # fmt: skip
    for count in range(1, 9):
        step = next_step(8, 8 - count, pods, loads, NOW, TIMEOUT_S)
        assert [p.name for p in step.leaving] == order[:count]


@dataclass(frozen=True)
class Row:
    """One Deployment, and what comes next for it."""

    replicas: int
    target: int
    pods: list[Pod]
    then: dict[str, Any]
    loads: Mapping[str, Load | None] = field(default_factory=dict)


A, B, C = pod("a"), pod("b"), pod("c")
NEXT: dict[str, Row] = {
    # More pods.
    "at its target nothing happens": Row(2, 2, [A, B], {}),
    "more are wanted: the number rises at once, also where pods are missing": Row(
        2, 4, [A], {"replicas": 4}
    ),
    "more are wanted while one drains: it is called back, and the number rises": Row(
        2, 3, [marked("a"), B], {"replicas": 3, "recall": ["a"]}, {"a": obeys(4)}
    ),
    "the number is wanted again while one drains: it is called back": Row(
        2, 2, [marked("a"), B], {"recall": ["a"]}, {"a": obeys(0)}
    ),
    "a pod that a person drains is not called back": Row(
        2, 3, [pod("a", **BY_HAND), B], {"replicas": 3}
    ),
    "a marked pod that the ReplicaSet is about to remove is not called back": Row(
        1, 1, [marked("a", **UNREADY), B], {}
    ),
    "a marked pod that is being deleted is not called back": Row(
        1, 1, [marked("a", terminating=True), B], {}
    ),
    "a marked pod that has ended is not called back": Row(
        1, 1, [marked("a", phase="Failed"), B], {}
    ),
    # Pods that need no drain.
    "replicas that have no pod yet go at once": Row(4, 2, [A, B], {"replicas": 2}),
    "of replicas that have no pod yet, only those that are too many go": Row(
        4, 3, [A, B], {"replicas": 3}
    ),
    "a Pending pod goes at once": Row(
        2, 1, [A, pod("new", **NO_NODE)], {"replicas": 1, "leaving": ["new"]}
    ),
    "a Pending pod on a node goes at once": Row(
        2, 1, [A, pod("new", **STARTS)], {"replicas": 1, "leaving": ["new"]}
    ),
    "a Pending pod goes instead of a marked one, which is called back": Row(
        3, 2, [marked("a"), B, pod("new", **NO_NODE)],
        {"replicas": 2, "recall": ["a"], "leaving": ["new"]},
    ),
    "a pod that is being deleted is none that could leave": Row(
        2, 1, [A, pod("old", terminating=True)], {"replicas": 1}
    ),
    "a pod that was flipped and is to leave after all gets the mark of one that leaves": Row(
        2, 1, [marked("a", cost=1000), B], {"mark": ["a"], "leaving": ["a"]}, {"a": obeys(0)}
    ),
    "a pod that was flipped and stays is called back": Row(
        2, 2, [marked("a", cost=1000), B], {"recall": ["a"]}, {"a": obeys(0)}
    ),
    # The choice.
    "before a choice among serving pods their engines are asked": Row(2, 1, [A, B], {"ask": True}),
    "they are asked while one of them was not": Row(
        3, 2, [A, B, C], {"ask": True}, {"a": busy(0), "b": None}
    ),
    "replicas without a pod go while the others are asked": Row(
        4, 1, [A, B], {"replicas": 2, "ask": True}
    ),
    "one drains and two must go: the others are asked": Row(
        3, 1, [marked("a"), B, C], {"ask": True}, {"a": obeys(0)}
    ),
    "where all leave no pod is asked": Row(
        2, 0, [A, B], {"mark": ["a", "b"], "leaving": ["a", "b"]}
    ),
    "where one drains and all leave no pod is asked": Row(
        2, 0, [marked("a"), B], {"mark": ["b"], "leaving": ["a", "b"]}, {"a": obeys(4)}
    ),
    "a pod that is not ready leaves and no pod is asked": Row(
        2, 1, [A, pod("b", **UNREADY)], {"mark": ["b"], "leaving": ["b"]}
    ),
    "the least busy pod is marked, and the number stays": Row(
        3, 2, [A, B, C], {"mark": ["b"], "leaving": ["b"]},
        {"a": busy(5), "b": busy(2), "c": busy(3)},
    ),
    "an idle pod is marked, too, and does not leave before its engine knows": Row(
        2, 1, [A, B], {"mark": ["b"], "leaving": ["b"]}, {"a": busy(5), "b": busy(0)}
    ),
    "engines that did not answer are chosen among, not asked for ever": Row(
        2, 1, [A, pod("b", created_at=11.0)], {"mark": ["b"], "leaving": ["b"]},
        {"a": None, "b": None},
    ),
    "a pod that a person drains becomes the operator's victim": Row(
        2, 1, [A, pod("b", **BY_HAND)], {"mark": ["b"], "leaving": ["b"]}, {"b": obeys(0)}
    ),
    "only pods that stay are chosen from": Row(
        2, 1, [pod("goes", **STARTS), A, pod("b", **UNREADY)], {"mark": ["b"], "leaving": ["b"]}
    ),
    # The wait.
    "a marked pod with an answer stays": Row(
        2, 1, [marked("a"), B], {"leaving": ["a"]}, {"a": obeys(answers=1)}
    ),
    "a marked pod with a KV cache that a decode pod reads stays": Row(
        2, 1, [marked("a"), B], {"leaving": ["a"]}, {"a": obeys(caches=1)}
    ),
    "a marked pod with neither leaves": Row(
        2, 1, [marked("a"), B], {"replicas": 1, "leaving": ["a"]}, {"a": obeys()}
    ),
    "a marked pod that drains without an order leaves, too": Row(
        2, 1, [marked("a"), B], {"replicas": 1, "leaving": ["a"]}, {"a": obeys(for_s=None)}
    ),
    "a marked pod whose engine does not know yet is told again and stays": Row(
        2, 1, [marked("a"), B], {"hasten": ["a"], "leaving": ["a"]}, {"a": busy(0)}
    ),
    "a marked pod that gives no answer is told again and stays": Row(
        2, 1, [marked("a"), B], {"hasten": ["a"], "leaving": ["a"]}, {"a": None}
    ),
    "a marked pod that was not asked is told again and stays": Row(
        2, 1, [marked("a"), B], {"hasten": ["a"], "leaving": ["a"]}
    ),
    "an order that lasts for 30 s is given again before anything is removed": Row(
        2, 1, [marked("a"), B], {"hasten": ["a"], "leaving": ["a"]}, {"a": obeys(for_s=30.0)}
    ),
    "an order that lasts for more than 30 s is not": Row(
        2, 1, [marked("a"), B], {"replicas": 1, "leaving": ["a"]}, {"a": obeys(for_s=30.5)}
    ),
    "a marked pod whose engine has ended leaves": Row(
        2, 1, [marked("a", **CRASHED), B], {"replicas": 1, "leaving": ["a"]}
    ),
    "a pod whose engine has ended is marked first, where it is not Pending": Row(
        2, 1, [pod("a", **CRASHED), B], {"mark": ["a"], "leaving": ["a"]}
    ),
    "a mark whose time cannot be read is written again": Row(
        2, 1, [marked("a", drain_at=None), B], {"mark": ["a"], "leaving": ["a"]}
    ),
    # The end.
    "a second before its time-out a marked pod may finish its answer": Row(
        2, 1, [marked("a", TIMEOUT_S - 1), B], {"leaving": ["a"]}, {"a": obeys(1)}
    ),
    "at its time-out it leaves, whatever it does, and is told no more": Row(
        2, 1, [marked("a", TIMEOUT_S), B], {"replicas": 1, "leaving": ["a"]}, {"a": busy(7, 7)}
    ),
    "the time-out of a drain that a person began does not remove the pod unmarked": Row(
        2, 1, [pod("a", **{**BY_HAND, "drain_at": 0.0}), B], {"mark": ["a"], "leaving": ["a"]}
    ),
    "of two marked pods one has finished: the number falls by one": Row(
        3, 1, [marked("a"), marked("b", **UNREADY), C], {"replicas": 2, "leaving": ["b", "a"]},
        {"a": obeys(1), "b": obeys()},
    ),
    "the ReplicaSet would remove the marked pod that still answers: the number stays": Row(
        3, 1, [marked("a"), marked("b", **UNREADY), C], {"leaving": ["b", "a"]},
        {"a": obeys(), "b": obeys(1)},
    ),
    "a pod that is not ready goes before a finished one: the number stays": Row(
        3, 2, [marked("a"), pod("b", **UNREADY), C], {"leaving": ["a"]}, {"a": obeys()}
    ),
    "both marked pods have finished: the number falls by both": Row(
        3, 1, [marked("a"), marked("b", **UNREADY), C], {"replicas": 1, "leaving": ["b", "a"]},
        {"a": obeys(), "b": obeys()},
    ),
    "one of two must stay after all: it is called back, the finished one leaves": Row(
        3, 2, [marked("a"), marked("b", created_at=NOW - 9.0, ready_at=NOW - 7.0), C],
        {"replicas": 2, "recall": ["a"], "leaving": ["b"]}, {"a": obeys(), "b": obeys()},
    ),
    "replicas without a pod and a finished pod go together": Row(
        3, 1, [marked("a"), B], {"replicas": 1, "leaving": ["a"]}, {"a": obeys()}
    ),
}  # fmt: skip
"""One Deployment of up to three pods a, b and c: replicas, target, pods, what comes next, loads."""


@pytest.mark.parametrize("row", NEXT.values(), ids=NEXT)
def test_what_comes_next_for_a_deployment(row: Row) -> None:
    for pods in (row.pods, row.pods[::-1]):
        step = next_step(row.replicas, row.target, pods, row.loads, NOW, TIMEOUT_S)
        assert done(step) == row.then
