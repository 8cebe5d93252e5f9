"""Faults of a cluster, one by one, around the operator's real loop."""

from collections.abc import Iterator
from typing import Any

import pytest

from argosy_operator.core.snapshot.actions import ErrorKind
from tests.support.world import World, scaled_by_others

DRAIN = "serving.argosy.dev/drain"
SPEC = scaled_by_others(drain="60s")


def four_pods(nodes: int = 2) -> World:
    """A fleet of four colocated pods at rest."""
    world = World(SPEC, nodes=nodes)
    for replicas in range(1, 5):
        passes(world, 5)
        world.scale(replicas)
    passes(world, 6)
    world.tick(90.0)  # all have been ready for 68 to 137 s: to a ReplicaSet they are of one age
    assert len(world.serving("colocated")) == 4
    return world


@pytest.fixture
def world() -> Iterator[World]:
    made = four_pods()
    yield made
    assert made.wrongs == []
    made.close()


def passes(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.tick()


def condition(world: World, type_: str) -> tuple[str, str]:
    found = next(c for c in world.fleet["status"]["conditions"] if c["type"] == type_)
    return found["status"], found["reason"]


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("loads", [(50, 50, 5, 30), (50, 50, 30, 5), (50, 5, 30, 50)])
def test_of_two_victims_the_empty_one_leaves_and_the_busy_one_stays(
    nodes: int, loads: tuple[int, ...]
) -> None:
    """Or both stay until a ReplicaSet cannot choose the busy one, which depends on their nodes."""
    world = four_pods(nodes)
    world.work(*loads)
    world.scale(2)
    passes(world, 40)
    assert len(world.api.of("Pod")) == 2 + 2, "with the two gateways"
    assert world.wrongs == []
    world.close()


@pytest.mark.slow
@pytest.mark.parametrize("calls", range(10, 34, 2))
def test_an_operator_that_dies_at_any_call_of_a_scale_down_loses_nothing(calls: int) -> None:
    world = four_pods()
    world.work(3)
    world.scale(1)
    for _ in range(8):
        world.api.dies_after = calls
        world.tick()
    world.settle()
    assert [len(world.serving("colocated")), len(world.api.of("Pod"))] == [1, 3]
    assert world.wrongs == []
    world.close()


def test_a_stale_list_of_a_deployment_lowers_no_replicas(world: World) -> None:
    """Else a number that was chosen for other pods would remove some that answer."""
    world.scale(3)
    passes(world, 2)
    (marked,) = world._marked()
    world.engines[marked].running = 0
    deployment = next(
        obj for obj in world.api.of("Deployment") if "colocated" in obj["metadata"]["name"]
    )
    while not any("scale Deployment" in refused for refused in world.api.refused):
        assert world.now < 1_010_000.0
        world.api.stale = {"Deployment": 1}
        live = world.api.objects["Deployment", deployment["metadata"]["name"]]
        world.api.put({**live, "status": {**live["status"], "observed": world.now}})
        world.tick()
    assert any(refused.endswith("Conflict") for refused in world.api.refused)
    assert len(world.api.of("Pod")) == 2 + 4
    world.settle()
    assert len(world.api.of("Pod")) == 2 + 3


def test_a_pod_that_was_made_anew_under_its_name_keeps_its_annotations(world: World) -> None:
    """The mark is for the uid that was listed."""
    world.scale(3)
    world.api.stale = {"Pod": 2}
    for pod in world.serving("colocated"):
        world.api.remove(("Pod", pod["metadata"]["name"]))
        world.api.put({**pod, "metadata": {**pod["metadata"], "labels": pod["metadata"]["labels"]}})
    world.round()
    assert all(DRAIN not in pod["metadata"]["annotations"] for pod in world.serving())


@pytest.mark.parametrize("labelled", [False, True], ids=["bare", "with our labels"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Service", "chat"),
        ("ServiceAccount", "chat-gateway"),
        ("Role", "chat-gateway"),
        ("RoleBinding", "chat-gateway"),
        ("Deployment", "chat-gateway"),
        ("PodDisruptionBudget", "chat-colocated"),
        ("ServingRole", "chat-colocated"),
    ],
)
def test_an_object_of_another_owner_is_left_as_it_is_and_named(
    world: World, kind: str, name: str, labelled: bool
) -> None:
    """Its end is seen within half a minute, although no watch reports it."""
    world.take_name(kind, name, labelled)
    foreign = world.api.objects[kind, name]
    passes(world, 40)
    assert world.api.objects[kind, name] is foreign
    assert condition(world, "NameConflict")[0] == "True"
    world.events = 0
    world.leave_names()
    passes(world, 35)
    live = world.api.objects[kind, name]
    assert [owner["name"] for owner in live["metadata"]["ownerReferences"]] == ["chat"]
    assert condition(world, "NameConflict") == ("False", "AsSpecified")


def bare_stranger(world: World) -> None:
    """Clients of the fleet's address reach another owner's Service from now on."""
    world.take_name("Service", "chat")


def test_the_address_of_a_paused_fleet_may_lead_to_a_stranger(world: World) -> None:
    """No action is carried out that could find it."""
    world.edit(paused=True)
    bare_stranger(world)
    passes(world, 2)
    world.edit(paused=True, drain={"timeout": "61s"})
    passes(world, 2)
    assert condition(world, "Ready") == ("False", "ForeignObject")
    assert "url" not in world.fleet["status"]


def test_a_stranger_under_the_name_of_the_next_revision_ends_nothing(world: World) -> None:
    """The rollout waits, the pods of before serve, and the stranger is named."""
    world.edit(engine={"image": "engine:2"})
    world.tick()
    (new,) = (
        obj["metadata"]["name"]
        for obj in world.api.of("Deployment")
        if "colocated" in obj["metadata"]["name"]
        and obj["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:2"
    )
    world.take_name("Deployment", new)
    stranger = world.api.objects["Deployment", new]
    passes(world, 40)
    assert world.api.objects["Deployment", new] is stranger
    assert len(world.serving("colocated")) == 4
    assert condition(world, "NameConflict") == ("True", "ForeignObject")
    assert condition(world, "RolledOut")[0] == "False"
    said = next(c for c in world.fleet["status"]["conditions"] if c["type"] == "NameConflict")
    assert new in said["message"]
    world.leave_names()
    passes(world, 60)
    assert condition(world, "RolledOut") == ("True", "RolledOut")


def test_without_any_event_a_rollout_ends_after_two_rests(world: World) -> None:
    """One until the edit is seen, one until the new pods are seen to serve. In steps it takes as
    many for each."""
    world.events = 0
    world.edit(engine={"image": "engine:2"}, rollout={"strategy": "BlueGreen"})
    for _ in range(66):
        world.tick(10.0)
    images = {
        obj["spec"]["template"]["spec"]["containers"][0]["image"]
        for obj in world.api.of("Deployment")
        if "colocated" in obj["metadata"]["name"]
    }
    assert images == {"engine:2"}
    assert len(world.serving("colocated")) == 4


def test_events_that_come_twice_write_nothing_twice(world: World) -> None:
    once = four_pods()
    for fleet, times in ((once, 1), (world, 3)):
        fleet.events = times
        fleet.api.written = 0
        fleet.edit(engine={"image": "engine:2"})
        fleet.settle()
    assert world.end_state() == once.end_state()
    assert len(world.api.of("Deployment")) == 2
    once.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lost", *(kind for kind in ErrorKind)])
def test_a_scale_down_ends_the_same_after_writes_that_fail_or_whose_answer_is_lost(
    world: World, fault: Any
) -> None:
    world.work(5, 1)
    world.scale(2)
    for _ in range(4):
        world.api.faults.extend([fault, None, fault])
        world.tick()
    world.settle()
    assert len(world.serving("colocated")) == 2
    assert condition(world, "Ready") == ("True", "AsSpecified")
    assert condition(world, "Stalled") == ("False", "AsSpecified")


def test_a_node_that_takes_its_pods_away_in_a_drain_costs_no_other_pod(world: World) -> None:
    world.work(30)
    world.scale(3)
    passes(world, 3)
    world.evict(world.serving("colocated")[0])
    passes(world, 3)
    assert len(world.api.of("Pod")) == 2 + 3, "the victim is needed again, or its place was taken"
    world.settle()
    assert len(world.serving("colocated")) == 3
