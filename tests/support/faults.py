"""What a state machine of hypothesis may do to any `World`, and what must hold at its end."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from argosy_operator.core.snapshot.actions import ErrorKind
from tests.support.world import World

ERRORS = [kind for kind in ErrorKind if kind is not ErrorKind.FOREIGN]


class FaultyWorld(RuleBasedStateMachine):
    """Traffic, edits and faults in any order; the operator has its rounds in `tick`."""

    SPEC: ClassVar[Mapping[str, Any]]
    """Of the fleet at the beginning."""
    STALE: ClassVar[tuple[str, ...]]
    """Kinds of which lists may be stale."""

    world: World

    @initialize(nodes=st.integers(1, 3))
    def start(self, nodes: int) -> None:
        self.world = World(self.SPEC, nodes=nodes)
        self.world.settle()

    @rule(mode=st.sampled_from(["colocated", "disaggregated"]))
    def the_user_changes_the_mode(self, mode: str) -> None:
        self.world.edit(mode=mode)

    @rule(image=st.sampled_from(["engine:1", "engine:2"]))
    def the_user_changes_the_image(self, image: str) -> None:
        self.world.edit(engine={"image": image})

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
        self.world.api.stale = dict.fromkeys(self.STALE, behind)
        self.world.round()

    @rule(deaf=st.booleans())
    def engines_cannot_be_reached(self, deaf: bool) -> None:
        self.world.deaf = deaf

    @rule(choice=st.integers(0, 10))
    def a_pod_is_evicted(self, choice: int) -> None:
        pods = self.world.api.of("Pod")
        if pods:
            self.world.evict(pods[choice % len(pods)])

    @invariant()
    def nothing_forbidden_happened(self) -> None:
        wrongs = self.world.wrongs if hasattr(self, "world") else []
        assert wrongs == []

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.faults_end()
            self._the_end_is_the_same()
        finally:
            self.world.close()

    def faults_end(self) -> None:
        """Take back what would keep the world from its end."""

    def _the_end_is_the_same(self) -> None:
        self.world.settle()
        self.world.scale(2)
        self.world.settle()
        assert self.world.wrongs == []
        ours, other = self.world.end_state(), _end_of_a_calm_world(json.dumps(self.world.spec))
        # A role that others have scaled waits for its mode.
        waiting = {key for key in ours.keys() - other.keys() if key.startswith("ServingRole/")}
        keys = (ours.keys() | other.keys()) - waiting
        assert {k: (ours.get(k), other.get(k)) for k in keys if ours.get(k) != other.get(k)} == {}


@cache
def _end_of_a_calm_world(spec: str) -> dict[str, Any]:
    """Without faults a fleet with this spec, as JSON, ends always the same."""
    world = World(json.loads(spec))
    world.settle()
    world.scale(2)
    world.settle()
    end = world.end_state()
    world.close()
    return end
