"""A pod changes its role under faults: nothing forbidden happens, and the end is the same.

`tests/support/world.py` says what is forbidden. Here a pod may also not get another role while its
engine has work. The ReplicaSets of the world release and adopt pods as Kubernetes' controller does.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.support.faults import FaultyWorld
from tests.support.stateful import run_sequences
from tests.support.world import World, scaled_by_others

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SPEC = {**scaled_by_others(drain="60s", roleFlip=True), "mode": "disaggregated"}
CONTROLLERS = ("Deployment", "prefill", "decode")


def fleet_of(prefill: int, decode: int, start_s: float = 2.0) -> World:
    """A fleet at rest with so many pods, whose engines start in so many seconds."""
    world = World(SPEC, start_s=start_s)
    world.settle()
    world.scale(1, prefill=prefill, decode=decode)
    world.settle()
    return world


def engines_of(world: World) -> dict[str, list[str]]:
    """Uids of the serving pods by role, in order."""
    return {
        role: sorted(pod["metadata"]["uid"] for pod in world.serving(role))
        for role in ("prefill", "decode")
    }


def all_of(engines: dict[str, list[str]]) -> set[str]:
    return {*engines["prefill"], *engines["decode"]}


@pytest.mark.parametrize(("prefill", "decode"), [(1, 2), (2, 1)])
def test_the_emptiest_pod_of_the_role_with_one_too_many_changes_its_role(
    prefill: int, decode: int
) -> None:
    world = fleet_of(3 - prefill, 3 - decode)
    world.work(9, 3, 6)
    busy = {uid: engine.running for uid, engine in world.engines.items()}
    before = engines_of(world)
    giver, taker = ("prefill", "decode") if prefill < decode else ("decode", "prefill")
    world.scale(1, prefill=prefill, decode=decode)
    world.settle()
    after = engines_of(world)
    assert world.wrongs == []
    assert world.flips == 1
    assert all_of(after) == all_of(before)
    flipped = min(before[giver], key=lambda uid: busy[uid])
    assert after[taker] == sorted([*before[taker], flipped])
    world.close()


def test_the_pods_that_controllers_made_meanwhile_are_gone_at_the_end() -> None:
    world = fleet_of(2, 1)
    world.scale(1, prefill=1, decode=2)
    world.settle()
    assert len([pod for pod in world.api.of("Pod") if world._is_ours(pod)]) == 3 + 2
    world.close()


def rounds_of_a_flip() -> list[int]:
    """Calls of the operator in each round from the change of the targets to the end of the flip."""
    world, calls = fleet_of(2, 1), list[int]()
    world.work(2)
    world.scale(1, prefill=1, decode=2)
    for _ in range(12):
        before = world.api.calls
        world.tick()
        calls.append(world.api.calls - before)
    assert world.flips == 1
    world.close()
    return calls


@pytest.mark.parametrize(
    ("start_s", "first"), [(2.0, 0), pytest.param(30.0, 1, marks=pytest.mark.long)]
)
def test_the_operator_may_die_at_any_call_of_a_flip(start_s: float, first: int) -> None:
    """The pod stays, unless a new one serves by the time that the operator is back. One that runs
    and loads is given up. Each start takes every second call, and together they take all."""
    calls = rounds_of_a_flip()
    assert len(calls) > 5
    alive = fleet_of(2, 1, start_s)
    alive.work(2)
    before = engines_of(alive)
    alive.scale(1, prefill=1, decode=2)
    for number, count in enumerate(calls):
        for call in range(first, count, 2):
            world = alive.twin()
            world.api.dies_after = call
            world.tick()
            world.settle()
            after, where = engines_of(world), f"round {number}, call {call}"
            assert world.wrongs == [], where
            if start_s > 2.0:
                assert all_of(after) == all_of(before), where
            assert (len(after["prefill"]), len(after["decode"])) == (1, 2), where
            assert not world.api.refused, where
            world.close()
        alive.tick()
    alive.close()


class Flips(FaultyWorld):
    """Also targets that move in opposite directions, and controllers that are slow."""

    SPEC = SPEC
    STALE = ("Deployment", "ServingRole", "ReplicaSet", "Pod")

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.tick()

    @rule(prefill=st.integers(1, 4), decode=st.integers(1, 4))
    def someone_scales(self, prefill: int, decode: int) -> None:
        self.world.scale(1, prefill=prefill, decode=decode)

    @rule(asleep=st.sets(st.sampled_from(CONTROLLERS)))
    def controllers_are_slow(self, asleep: set[str]) -> None:
        """For less time than a pod takes to start: one that was not started when it was given up
        may otherwise serve when its ReplicaSet hears of it."""
        self.world.asleep = frozenset(asleep)
        self.world.tick()
        self.world.round()
        self.world.asleep = frozenset()
        self.world.controllers()


def test_no_sequence_of_scalings_and_faults_does_what_is_forbidden() -> None:
    run_sequences(Flips, examples=25, steps=25)
