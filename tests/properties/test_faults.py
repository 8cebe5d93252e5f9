"""Any sequence of edits, traffic and faults: nothing forbidden happens, and the end is the same.

What is forbidden stands in `tests/support/world.py`, by hand: to write an object of another owner
or the user's, to order an unmarked engine to drain, to mark more pods than the roles can spare, to
remove a pod that still answers before its time is over.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.support.faults import FaultyWorld
from tests.support.stateful import run_sequences
from tests.support.world import scaled_by_others

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SPEC = scaled_by_others(drain="20s")
CHILDREN = [
    ("Service", "chat"),
    ("Role", "chat-gateway"),
    ("RoleBinding", "chat-gateway"),
    ("Deployment", "chat-gateway"),
    ("PodDisruptionBudget", "chat-decode"),
    ("ServingRole", "chat-colocated"),
    ("ServingRole", "chat-prefill"),
]


ROLLOUTS = (
    {},
    {"maxSurgeGPUs": 0},
    {"maxSurgeGPUs": 3},
    {"strategy": "BlueGreen"},
    {"strategy": "Recreate"},
)


class Faults(FaultyWorld):
    """Also names that another owner takes, events that are lost, and a fleet that is made anew."""

    SPEC = SPEC
    STALE = ("Deployment", "ServingRole", "ReplicaSet", "Pod", "Service", "Role", "RoleBinding")

    @rule(seconds=st.integers(1, 25))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.tick()

    @rule(replicas=st.integers(0, 6))
    def someone_scales(self, replicas: int) -> None:
        self.world.scale(replicas)

    @rule(rollout=st.sampled_from(ROLLOUTS), image=st.sampled_from(["engine:3", "engine:4"]))
    def the_user_rolls_out_by_another_strategy(self, rollout: dict[str, Any], image: str) -> None:
        self.world.edit(rollout=rollout, engine={"image": image})

    @rule(times=st.integers(0, 2))
    def events_are_lost_or_come_twice(self, times: int) -> None:
        self.world.events = times

    @rule(child=st.sampled_from(CHILDREN), labelled=st.booleans())
    def another_owner_takes_a_name(self, child: tuple[str, str], labelled: bool) -> None:
        self.world.take_name(*child, labelled=labelled)

    @rule()
    def the_other_owner_leaves(self) -> None:
        self.world.leave_names()

    @rule()
    def the_fleet_is_created_anew(self) -> None:
        self.world.fleet_is_new()

    def faults_end(self) -> None:
        self.world.events = 1
        self.world.leave_names()


def test_no_sequence_of_edits_traffic_and_faults_does_what_is_forbidden() -> None:
    run_sequences(Faults, examples=25, steps=25)
