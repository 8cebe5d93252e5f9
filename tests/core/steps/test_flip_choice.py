"""When a pod changes its role, which one, and why not: one row per rule."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from argosy_operator.core.snapshot.pods import Load, Pod
from argosy_operator.core.steps.draft import StepReason
from argosy_operator.core.steps.flips import Pace, Pool, choose

NOW = 10_000.0
PACE = Pace(now=NOW, cold_start_s=180.0, dwell_s=240.0)
SERVES: dict[str, Any] = {"probed": True}
PENDING: dict[str, Any] = {"started": False, "ready": False, "phase": "Pending"}
LOADS: dict[str, Any] = {"ready": False}
HICCUPS: dict[str, Any] = {"probed": True, "ready": False, "restarts": 1}
MARKED: dict[str, Any] = {
    **SERVES, "draining": True, "victim": True, "cost": -1000, "drain_at": NOW - 5, "ready": False,
}  # fmt: skip
EMPTY = Load(True, 0, 0, 59.0, "prefill")


def flipped(ago_s: float) -> dict[str, Any]:
    return {**SERVES, "flipped_at": NOW - ago_s}


def since(ago_s: float) -> dict[str, Any]:
    return {**MARKED, "drain_at": NOW - ago_s}


@dataclass(frozen=True)
class Row:
    """Pods by name, and how many there are to be."""

    prefills: Mapping[str, dict[str, Any]]
    decodes: Mapping[str, dict[str, Any]]
    targets: tuple[int, int]
    reason: StepReason
    says: str
    loads: Mapping[str, Load | None] = field(default_factory=dict)
    pod: str | None = None
    hindrance: str | None = None
    replicas: tuple[int, int] | None = None
    """Of the Deployments; None: as the targets."""


ONE_TOO_MANY = {"p1": MARKED, "p2": SERVES}
TOO_SOON = "a pod became prefill {} s ago: one may become another role after 240 s"
ROWS: dict[str, Row] = {
    "at the targets there is nothing to flip": Row(
        {"p1": SERVES}, {"d1": SERVES}, (1, 1), StepReason.NO_FLIP_NEEDED,
        "prefill 1 of 1, decode 1 of 1",
    ),
    "a role that grows alone starts pods": Row(
        {"p1": SERVES}, {"d1": SERVES}, (1, 2), StepReason.NO_FLIP_NEEDED,
        "prefill 1 of 1, decode 1 of 2",
    ),
    "a role that shrinks alone loses pods": Row(
        ONE_TOO_MANY, {"d1": SERVES}, (1, 1), StepReason.NO_FLIP_NEEDED,
        "prefill 2 of 1, decode 1 of 1",
    ),
    "a pod that has not started is none too many": Row(
        {"p1": SERVES, "p2": PENDING}, {"d1": SERVES}, (1, 2), StepReason.NO_FLIP_NEEDED,
        "prefill 1 of 1, decode 1 of 2",
    ),
    "a pod that has not started is lacking": Row(
        ONE_TOO_MANY, {"d1": SERVES, "d2": PENDING}, (1, 2), StepReason.FLIPPING,
        "prefill pod p1 is empty and becomes a decode pod", {"p1": EMPTY}, "p1",
    ),
    "an empty pod takes the place of one that still loads": Row(
        ONE_TOO_MANY, {"d1": SERVES, "d2": LOADS}, (1, 2), StepReason.FLIPPING,
        "prefill pod p1 is empty and becomes a decode pod", {"p1": EMPTY}, "p1",
    ),
    "a pod that loaded its weights meanwhile stays": Row(
        ONE_TOO_MANY, {"d1": SERVES, "d2": SERVES}, (1, 2), StepReason.NO_FLIP_NEEDED,
        "prefill 2 of 1, decode 2 of 2", {"p1": EMPTY},
    ),
    "a pod that has served and is not ready at the moment is not lacking": Row(
        ONE_TOO_MANY, {"d1": SERVES, "d2": HICCUPS}, (1, 2), StepReason.NO_FLIP_NEEDED,
        "prefill 2 of 1, decode 2 of 2", {"p1": EMPTY},
    ),
    "nor is it given up in the place of one that loads": Row(
        ONE_TOO_MANY, {"d1": HICCUPS, "d2": LOADS}, (1, 2), StepReason.FLIP_WAITS,
        "if p1 became a decode pod, Kubernetes would remove d1, which has served", {"p1": EMPTY},
    ),
    "nor one that drains with work, which is not ready in a moment": Row(
        ONE_TOO_MANY, {"d1": {**SERVES, "draining": True, "cost": -1000}, "d2": LOADS}, (1, 2),
        StepReason.FLIP_WAITS, "Kubernetes would remove d1, which has served", {"p1": EMPTY},
    ),
    "a role that loses pods itself lacks none": Row(
        ONE_TOO_MANY, {"d1": SERVES, "d2": LOADS, "d3": LOADS}, (1, 2), StepReason.NO_FLIP_NEEDED,
        "prefill 2 of 1, decode 3 of 2", {"p1": EMPTY}, replicas=(2, 3),
    ),
    "a pod that was started because a drain lasted too long stays": Row(
        {"p1": since(180), "p2": SERVES}, {"d1": SERVES, "d2": LOADS}, (1, 2),
        StepReason.NO_FLIP_NEEDED, "prefill 2 of 1, decode 2 of 2", {"p1": EMPTY},
    ),
    "where there is room for both, one that loads stays": Row(
        ONE_TOO_MANY, {"d1": HICCUPS, "d2": LOADS}, (1, 3), StepReason.FLIPPING,
        "p1", {"p1": EMPTY}, "p1",
    ),
    "a pod that is being deleted counts for nothing": Row(
        {**ONE_TOO_MANY, "p3": {"terminating": True}}, {"d1": SERVES}, (2, 2),
        StepReason.NO_FLIP_NEEDED, "prefill 2 of 2, decode 1 of 2",
    ),
    "before a pod is chosen to leave, the new pod waits": Row(
        {"p1": SERVES, "p2": SERVES}, {"d1": SERVES}, (1, 2), StepReason.FLIP_DRAINS,
        "a decode pod is lacking; it is to be the prefill pod that drains: one that is yet to be "
        "chosen",
    ),
    "while the chosen pod has requests, the new pod waits": Row(
        ONE_TOO_MANY, {"d1": SERVES}, (1, 2), StepReason.FLIP_DRAINS,
        "a decode pod is lacking; it is to be the prefill pod that drains: p1",
        {"p1": Load(True, 1, 0, 59.0)},
    ),
    "while it holds a lease, too": Row(
        ONE_TOO_MANY, {"d1": SERVES}, (1, 2), StepReason.FLIP_DRAINS, "drains: p1",
        {"p1": Load(True, 0, 1, 59.0)},
    ),
    "while its engine does not drain, or soon takes work again, too": Row(
        {**ONE_TOO_MANY, "p3": MARKED}, {"d1": SERVES}, (2, 2), StepReason.FLIP_DRAINS,
        "drains: p1, p3", {"p1": Load(False, 0, 0), "p3": Load(True, 0, 0, 30.0)},
    ),
    "an engine that does not answer is not empty": Row(
        ONE_TOO_MANY, {"d1": SERVES}, (1, 2), StepReason.FLIP_DRAINS, "drains: p1", {"p1": None},
    ),
    "a pod that a person drains is not ours to flip": Row(
        {"p1": {"draining": True}, "p2": SERVES}, {"d1": SERVES}, (1, 2), StepReason.FLIP_DRAINS,
        "yet to be chosen", {"p1": EMPTY},
    ),
    "nor does it count for how long one drains": Row(
        {"p0": {"draining": True, "drain_at": NOW - 500}, **ONE_TOO_MANY}, {"d1": SERVES}, (1, 2),
        StepReason.FLIP_DRAINS, "drains: p1", {"p1": Load(True, 1, 0, 59.0)},
    ),
    "of several empty pods the one goes that drains for longest": Row(
        {"p1": since(5), "p2": since(9), "p3": SERVES}, {"d1": SERVES}, (1, 2),
        StepReason.FLIPPING, "prefill pod p2 is empty", {"p1": EMPTY, "p2": EMPTY}, "p2",
    ),
    "decode to prefill": Row(
        {"p1": SERVES}, {"d1": MARKED, "d2": SERVES}, (2, 1), StepReason.FLIPPING,
        "decode pod d1 is empty and becomes a prefill pod", {"d1": EMPTY}, "d1",
    ),
    "a drain as long as a cold start is waited for no more": Row(
        {"p1": since(180), "p2": SERVES}, {"d1": SERVES}, (1, 2), StepReason.FLIP_WAITS,
        "a prefill pod drains for longer than a new decode pod takes to start",
        {"p1": Load(True, 1, 0, 59.0)},
    ),
    "a drain a second shorter is waited for": Row(
        {"p1": since(179), "p2": SERVES}, {"d1": SERVES}, (1, 2), StepReason.FLIP_DRAINS,
        "drains: p1", {"p1": Load(True, 1, 0, 59.0)},
    ),
    "a pod that is empty at last is flipped however long that took": Row(
        {"p1": since(500), "p2": SERVES}, {"d1": SERVES}, (1, 2), StepReason.FLIPPING,
        "p1 is empty", {"p1": EMPTY}, "p1",
    ),
    "two flips are 30 s apart": Row(
        ONE_TOO_MANY, {"d1": flipped(29)}, (1, 2), StepReason.FLIP_WAITS,
        "the last flip was 29 s ago: the next one may be after 30 s", {"p1": EMPTY},
    ),
    "after 30 s the next one may be": Row(
        ONE_TOO_MANY, {"d1": flipped(30)}, (1, 2), StepReason.FLIPPING, "p1", {"p1": EMPTY}, "p1",
    ),
    "the other way it takes a whole hold": Row(
        {**ONE_TOO_MANY, "p3": flipped(239)}, {"d1": SERVES}, (2, 2), StepReason.FLIP_WAITS,
        TOO_SOON.format(239), {"p1": EMPTY},
    ),
    "after a hold a flip may go the other way": Row(
        {**ONE_TOO_MANY, "p3": flipped(240)}, {"d1": SERVES}, (2, 2), StepReason.FLIPPING,
        "p1", {"p1": EMPTY}, "p1",
    ),
    "the last flip counts, not the one before": Row(
        {**ONE_TOO_MANY, "p3": flipped(200)}, {"d1": flipped(100)}, (2, 2), StepReason.FLIPPING,
        "p1", {"p1": EMPTY}, "p1",
    ),
    "what hinders all flips is named": Row(
        ONE_TOO_MANY, {"d1": SERVES}, (1, 2), StepReason.FLIP_WAITS, "a rollout is in progress",
        {"p1": EMPTY}, hindrance="a rollout is in progress",
    ),
    "what hinders flips is not named where none is needed": Row(
        {"p1": SERVES}, {"d1": SERVES}, (1, 1), StepReason.NO_FLIP_NEEDED,
        "prefill 1 of 1, decode 1 of 1", hindrance="a rollout is in progress",
    ),
    "one flip at a time: until the engine has its new role there is no other": Row(
        ONE_TOO_MANY, {"d1": {**MARKED, **flipped(60)}}, (1, 2), StepReason.ROLE_CHANGING,
        "d1 is a decode pod, and its engine finishes to become one",
        {"p1": EMPTY, "d1": Load(True, 0, 0, 59.0, "prefill")},
    ),
    "an engine that was flipped and does not answer may not have it": Row(
        ONE_TOO_MANY, {"d1": {**MARKED, **flipped(60)}}, (1, 2), StepReason.ROLE_CHANGING,
        "d1 is a decode pod, and its engine finishes to become one", {"p1": EMPTY},
    ),
    "an engine that has it hinders nothing": Row(
        ONE_TOO_MANY, {"d1": {**MARKED, **flipped(60)}}, (1, 2), StepReason.FLIPPING, "p1",
        {"p1": EMPTY, "d1": Load(True, 0, 0, 59.0, "decode")}, "p1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_the_choice(name: str) -> None:
    row = ROWS[name]

    def pool(role: Any, target: int, pods: Mapping[str, dict[str, Any]]) -> Pool:
        return Pool(
            role, target, target if row.replicas is None else row.replicas[role == "decode"],
            tuple(Pod(n, n, role, "r", **looks) for n, looks in pods.items()),
        )  # fmt: skip

    pools = (
        pool("prefill", row.targets[0], row.prefills),
        pool("decode", row.targets[1], row.decodes),
    )
    choice = choose(pools, row.loads, PACE, row.hindrance)
    assert choice.reason is row.reason
    assert row.says in choice.message
    assert (choice.pod.name if choice.pod else None) == row.pod
    near = row.reason in (StepReason.FLIPPING, StepReason.FLIP_DRAINS)
    shrinks_prefill = len(pools[0].started) > row.targets[0]
    taker = "decode" if shrinks_prefill else "prefill"
    assert choice.taker == (taker if near else None)
