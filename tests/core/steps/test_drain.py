"""What a drain, a recall and a rollout write, order and say: one row per step."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from argosy_operator.core.plan import Plan, plan
from argosy_operator.core.snapshot.actions import (
    Action,
    AnnotatePod,
    Event,
    HastenDrain,
    Scale,
    TakeWorkAgain,
)
from argosy_operator.core.snapshot.pods import Load, Pod
from argosy_operator.core.snapshot.snapshot import Snapshot
from tests.support.model import Model, converged

WIDE = {"colocated": {"replicas": {"min": 1, "max": 4}}}
EXTERNAL = {"roles": WIDE, "autoscaling": {"policy": "External"}}
SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
DRAIN = "serving.argosy.dev/drain"
COST = "controller.kubernetes.io/pod-deletion-cost"

NOW = 1_000_000.0
NOW_TEXT = "1970-01-12T13:46:40Z"
EARLIER = NOW - 10
EARLIER_TEXT = "1970-01-12T13:46:30Z"
MARKED: dict[str, Any] = {"draining": True, "victim": True, "cost": -1000, "drain_at": EARLIER}
UNREADY: dict[str, Any] = {"ready": False, "ready_at": None}
PENDING = {**UNREADY, "started": False, "assigned": False, "phase": "Pending"}
GIVE_UP_DRAIN: Mapping[str, str | None] = {DRAIN: None, COST: None}


def engine(model: Model) -> str:
    """The name of the engine Deployment of the current revision."""
    return f"chat-colocated-{model.snapshot().revision}"


def seen(
    model: Model, replicas: int, pods: Mapping[str, dict[str, Any]], loads: Mapping[str, Load]
) -> Snapshot:
    """The fleet with these pods of its current revision, each with its name as uid."""
    key = ("Deployment", engine(model))
    live = model.children[key]
    meta = {**live["metadata"], "resourceVersion": "77"}
    model.children[key] = {**live, "metadata": meta, "spec": {**live["spec"], "replicas": replicas}}
    snapshot = replace(model.snapshot(), now=NOW, loads=loads)
    gateways = [pod for pod in snapshot.pods if pod.role == "gateway"]
    engines = [
        Pod(name, name, "colocated", snapshot.revision, **{"ip": f"ip-{name}", **looks})
        for name, looks in pods.items()
    ]
    return replace(snapshot, pods=(*gateways, *engines))


def said(planned: Plan, step: str) -> str:
    return next(found.message for found in planned.draft.steps if found.name == step)


@dataclass(frozen=True)
class Row:
    """The Deployment has so many replicas, its ServingRole asks for so many; what follows."""

    replicas: int
    target: int
    pods: Mapping[str, dict[str, Any]]
    actions: tuple[Action, ...] = ()
    said: str = "colocated {target}"
    events: tuple[Event, ...] = ()
    loads: Mapping[str, Load] = field(default_factory=dict)
    asks: bool = False
    within_s: float = 300.0


DRAINS_A = Event(
    "Draining",
    "colocated pods finish their answers: a",
    after=frozenset({"AnnotatePod Pod/a"}),
)
SERVES_A = Event("CalledBack", "colocated pods serve on: a", after=frozenset({"AnnotatePod Pod/a"}))
IDLE, BUSY = Load(False, 0, 0), Load(False, 3, 0)
STEPS: dict[str, Row] = {
    "at its target nothing is written": Row(2, 2, {"a": {}, "b": {}}),
    "1. the engines are asked how busy they are, at once": Row(
        2, 1, {"a": {}, "b": {}},
        said="{engine} asks its engines how busy they are", asks=True, within_s=0.0,
    ),
    "2. the victim is marked with the time and with a deletion cost, then its engine is told": Row(
        2, 1, {"a": {}, "b": {}},
        (
            AnnotatePod("a", "a", {DRAIN: NOW_TEXT, COST: "-1000"}),
            HastenDrain("a", "ip-a"),
        ),
        "{engine} drains a", (DRAINS_A,), {"a": IDLE, "b": BUSY}, within_s=1.0,
    ),
    "2. a victim without an address is only marked": Row(
        2, 1, {"a": {"ip": None, **UNREADY}, "b": {}},
        (AnnotatePod("a", "a", {DRAIN: NOW_TEXT, COST: "-1000"}),),
        "{engine} drains a", (DRAINS_A,), within_s=1.0,
    ),
    "2. a drain that a person began keeps its time": Row(
        2, 1, {"a": {"draining": True, "drain_at": EARLIER}, "b": {}},
        (
            AnnotatePod("a", "a", {DRAIN: EARLIER_TEXT, COST: "-1000"}),
            HastenDrain("a", "ip-a"),
        ),
        "{engine} drains a", (DRAINS_A,), within_s=1.0,
    ),
    "2. a mark whose time cannot be read is written again, and its engine is told once": Row(
        2, 1, {"a": {**MARKED, "drain_at": None}, "b": {}},
        (
            AnnotatePod("a", "a", {DRAIN: NOW_TEXT, COST: "-1000"}),
            HastenDrain("a", "ip-a"),
        ),
        "{engine} drains a", (DRAINS_A,), {"a": IDLE, "b": BUSY}, within_s=1.0,
    ),
    "3. an engine that may not know of its drain is told again": Row(
        2, 1, {"a": MARKED, "b": {}}, (HastenDrain("a", "ip-a"),),
        "{engine} drains a", loads={"a": IDLE}, within_s=1.0,
    ),
    "3. an engine without an address is not told": Row(
        2, 1, {"a": {**MARKED, "ip": None}, "b": {}}, (), "{engine} drains a", within_s=1.0,
    ),
    "4. the victim finishes its answers, and is looked at every second": Row(
        2, 1, {"a": MARKED, "b": {}}, (),
        "{engine} drains a", loads={"a": Load(True, 1, 0, 50.0)}, within_s=1.0,
    ),
    "5. the number falls, only if nothing was written to the Deployment meanwhile": Row(
        2, 1, {"a": MARKED, "b": {}}, (Scale("Deployment", "{engine}", 1, "77"),),
        "{engine} 2 → 1, drains a", loads={"a": Load(True, 0, 0, 50.0)}, within_s=1.0,
    ),
    "two victims are named in one Event": Row(
        3, 1, {"a": UNREADY, "b": UNREADY, "c": {}},
        (
            AnnotatePod("a", "a", {DRAIN: NOW_TEXT, COST: "-1000"}),
            AnnotatePod("b", "b", {DRAIN: NOW_TEXT, COST: "-1000"}),
            HastenDrain("a", "ip-a"),
            HastenDrain("b", "ip-b"),
        ),
        "{engine} drains a, b",
        (
            Event(
                "Draining",
                "colocated pods finish their answers: a, b",
                after=frozenset({"AnnotatePod Pod/a", "AnnotatePod Pod/b"}),
            ),
        ),
        within_s=1.0,
    ),
    "recall: both marks are taken off, and the engine is told": Row(
        2, 2, {"a": MARKED, "b": {}},
        (AnnotatePod("a", "a", GIVE_UP_DRAIN), TakeWorkAgain("a", "ip-a")),
        "{engine} calls back a", (SERVES_A,),
    ),
    "recall: a pod without an address only loses its marks": Row(
        2, 2, {"a": {**MARKED, "ip": None}, "b": {}},
        (AnnotatePod("a", "a", GIVE_UP_DRAIN),), "{engine} calls back a", (SERVES_A,),
    ),
    "recall before growth, and growth in any case": Row(
        2, 3, {"a": MARKED, "b": {}},
        (
            AnnotatePod("a", "a", GIVE_UP_DRAIN),
            TakeWorkAgain("a", "ip-a"),
            Scale("Deployment", "{engine}", 3),
        ),
        "{engine} 2 → 3, calls back a", (SERVES_A,),
    ),
    "recall of one whose place a Pending pod takes": Row(
        3, 2, {"a": MARKED, "b": {}, "c": PENDING},
        (
            AnnotatePod("a", "a", GIVE_UP_DRAIN),
            TakeWorkAgain("a", "ip-a"),
            Scale("Deployment", "{engine}", 2, "77"),
        ),
        "{engine} 3 → 2, calls back a, drains c", (SERVES_A,), within_s=1.0,
    ),
    "growth needs no version of the Deployment": Row(
        2, 4, {"a": {}, "b": {}}, (Scale("Deployment", "{engine}", 4),), "{engine} 2 → 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", STEPS.values(), ids=STEPS)
def test_what_a_step_of_drain_and_recall_writes_and_says(row: Row) -> None:
    model = converged(**EXTERNAL)
    name = engine(model)
    model.scale_role("colocated", row.target)
    planned = plan(seen(model, row.replicas, row.pods, row.loads))
    actions = tuple(
        replace(action, name=name) if isinstance(action, Scale) else action
        for action in row.actions
    )
    assert planned.actions == actions
    assert said(planned, "scale_deployments") == row.said.format(engine=name, target=row.target)
    assert planned.events == row.events
    assert planned.memory.ask_loads is row.asks
    assert planned.wake_s == row.within_s


def test_a_choice_that_was_made_asks_no_engine_again() -> None:
    model = converged(**EXTERNAL)
    model.scale_role("colocated", 1)
    model.memory = replace(model.memory, ask_loads=True)
    planned = plan(seen(model, 2, {"a": {}, "b": {}}, {"a": IDLE, "b": BUSY}))
    assert not planned.memory.ask_loads


def test_status_knows_all_pods_that_leave_not_only_those_marked_now() -> None:
    model = converged(**EXTERNAL)
    model.scale_role("colocated", 1)
    pods = {"a": MARKED, "b": UNREADY, "c": {}}
    planned = plan(seen(model, 3, pods, {"a": Load(True, 1, 0, 50.0)}))
    assert [pod.name for pod in planned.draft.leaving] == ["a", "b"]
    assert planned.events[0].message == "colocated pods finish their answers: b"
