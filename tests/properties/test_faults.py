"""Any sequence of edits, traffic and faults: nothing forbidden happens, and the end is the same.

What is forbidden stands in `tests/support/world.py`, by hand: to write an object of another owner
or the user's, to order an unmarked engine to drain, to mark more pods than the roles can spare, to
remove a pod that still answers before its time is over.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from argosy_operator.core.fleet.actions import ErrorKind
from tests.support.stateful import run_sequences
from tests.support.world import World, scaled_by_others

pytestmark = pytest.mark.slow

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
ERRORS = [kind for kind in ErrorKind if kind is not ErrorKind.FOREIGN]


class Faults(RuleBasedStateMachine):
    """Edits, traffic and faults in any order; the operator has its rounds in `tick`."""

    @initialize(nodes=st.integers(1, 3))
    def start(self, nodes: int) -> None:
        self.world = World(SPEC, nodes=nodes)
        self.world.settle()

    @rule(seconds=st.integers(1, 25))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.tick()

    @rule(mode=st.sampled_from(["colocated", "disaggregated"]))
    def the_user_changes_the_mode(self, mode: str) -> None:
        self.world.edit(mode=mode)

    @rule(image=st.sampled_from(["engine:1", "engine:2"]))
    def the_user_changes_the_image(self, image: str) -> None:
        self.world.edit(engine={"image": image})

    @rule(replicas=st.integers(0, 6))
    def someone_scales(self, replicas: int) -> None:
        self.world.scale(replicas)

    @rule(running=st.lists(st.integers(0, 30), min_size=1, max_size=4), leases=st.integers(0, 8))
    def requests_arrive(self, running: list[int], leases: int) -> None:
        self.world.work(*running, leases=leases)

    @rule(calls=st.integers(0, 40))
    def the_operator_dies(self, calls: int) -> None:
        self.world.api.dies_after = calls
        self.world.round()

    @rule(faults=st.lists(st.sampled_from([None, "lost", *ERRORS]), min_size=1, max_size=6))
    def writes_fail(self, faults: list[Any]) -> None:
        self.world.api.faults.extend(faults)
        self.world.tick()

    @rule(behind=st.integers(1, 6))
    def lists_are_stale(self, behind: int) -> None:
        kinds = ("Deployment", "ServingRole", "ReplicaSet", "Pod", "Service", "Role", "RoleBinding")
        self.world.api.stale = dict.fromkeys(kinds, behind)
        self.world.round()

    @rule(times=st.integers(0, 2))
    def events_are_lost_or_come_twice(self, times: int) -> None:
        self.world.events = times

    @rule(deaf=st.booleans())
    def engines_cannot_be_reached(self, deaf: bool) -> None:
        self.world.deaf = deaf

    @rule(choice=st.integers(0, 10))
    def a_pod_is_evicted(self, choice: int) -> None:
        pods = self.world.api.of("Pod")
        if pods:
            self.world.evict(pods[choice % len(pods)])

    @rule(child=st.sampled_from(CHILDREN), labelled=st.booleans())
    def another_owner_takes_a_name(self, child: tuple[str, str], labelled: bool) -> None:
        self.world.take_name(*child, labelled=labelled)

    @rule()
    def the_other_owner_leaves(self) -> None:
        self.world.leave_names()

    @rule()
    def the_fleet_is_created_anew(self) -> None:
        self.world.fleet_is_new()

    @invariant()
    def nothing_forbidden_happened(self) -> None:
        wrongs = self.world.wrongs if hasattr(self, "world") else []
        assert wrongs == []

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self._the_end_is_the_same()
        finally:
            self.world.close()

    def _the_end_is_the_same(self) -> None:
        self.world.events = 1
        self.world.leave_names()
        self.world.settle()
        self.world.scale(2)
        self.world.settle()
        assert self.world.wrongs == []
        calm = World(self.world.spec)
        calm.settle()
        calm.scale(2)
        calm.settle()
        ours, other = self.world.end_state(), calm.end_state()
        keys = ours.keys() | other.keys()
        assert {k: (ours.get(k), other.get(k)) for k in keys if ours.get(k) != other.get(k)} == {}
        calm.close()


def test_no_sequence_of_edits_traffic_and_faults_does_what_is_forbidden() -> None:
    run_sequences(Faults, examples=25, steps=25)
