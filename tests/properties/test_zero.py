"""A fleet goes to zero and back under faults, and no request is lost or forgotten on the way.

The gateway of this world answers the operator as the real one does: requests wait in it while no
pod serves. What must never happen to a pod is in `tests/support/world.py`. Here also: pods leave
although a request came lately, or a request waits for longer than faults and a start take.
"""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from argosy_operator.adapters.gateways import parse_load
from argosy_operator.core.snapshot.pods import GatewayLoad, Handovers
from tests.support.world import World

pytestmark = pytest.mark.slow

AFTER_S = 60.0
SOON_S = 60.0
"""Longer than a silent gateway is waited for, a start of 2 s, and a few rounds."""
WIDE = {"replicas": {"min": 1, "max": 4}}
SPEC = {
    "roles": {"prefill": WIDE, "decode": WIDE, "colocated": WIDE},
    "autoscaling": {
        "policy": "None",
        "coldStart": "20s",
        "scaleToZero": {"after": f"{AFTER_S:.0f}s", "wait": "5m"},
    },
    "drain": {"timeout": "120s"},
    "kvTransfer": {"timeout": "1s"},
}


ANSWERED = dict.fromkeys(("requests", "prompt_tokens", "prompt_tokens_squared", "output_tokens"), 0)
"""What the gateways' engines have answered."""


class ZeroWorld(World):
    """Also the requests of the fleet's gateways, of which all know the same."""

    def __post_init__(self) -> None:
        self.waiting, self.active_at, self.silent = 0, self.now, False
        self.gateways = self  # type: ignore[assignment]
        super().__post_init__()

    def target(self, role: str) -> int:
        handle = self.api.objects.get(("ServingRole", f"chat-{role}"))
        at_zero = handle is not None and handle["spec"].get("replicas") == 0
        return 0 if at_zero else super().target(role)

    @property
    def in_flight(self) -> int:
        return self.waiting + sum(engine.running for engine in self.engines.values())

    async def handovers(self, ip: str) -> Handovers:
        return Handovers()

    async def load(self, ip: str, fleet: Any, uid: str = "") -> Any:
        """Of an engine with three words, of a gateway with two."""
        if uid:
            return await super().load(ip, fleet, uid)
        self.api.alive()
        return None if self.silent else self.said(fleet)

    def said(self, name: str) -> GatewayLoad | None:
        idle_s = 0.0 if self.in_flight else self.now - self.active_at
        answer = {
            "pod": name,
            "in_flight": self.in_flight,
            "idle_s": idle_s,
            "on_pods": {},
            "received": {"accepted": 0, "shed": 0},
            "waiting_prompt_tokens": 0,
            "outstanding_prompt_tokens": 0,
            "decoding": 0,
            "answered": ANSWERED,
        }
        return parse_load(json.dumps(answer).encode(), name, self.now)

    def ask(self, requests: int) -> None:
        self.waiting += requests
        self.active_at = self.now
        self.dispatch()

    def dispatch(self) -> None:
        """Requests that wait go to the oldest pod that serves, if every role has one."""
        if self.waiting and all(self.serving(role) for role in self.roles()):
            self.work(self.waiting, 0)
            self.waiting = 0

    def second(self) -> None:
        if self.in_flight:
            self.active_at = self.now
        marked = self._marked()
        if self.memory.listen and (self.silent or self.in_flight):
            self.due_at = min(self.due_at, self.now)  # as `shell.workers` listens
        self.tick()
        self.dispatch()
        if self._marked() - marked and self.now - self.active_at < AFTER_S:
            self.wrongs.append(f"a pod leaves {self.now - self.active_at} s after a request")

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second()


steps = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 5)),
    st.tuples(st.just("wait"), st.sampled_from([1, 5, 30, 70, 200])),
    st.tuples(st.just("silent"), st.booleans()),
    st.tuples(st.just("deaf"), st.booleans()),
    st.tuples(st.just("dies"), st.integers(0, 30)),
    st.tuples(st.just("loses"), st.integers(1, 4)),
)


def play(world: ZeroWorld, step: tuple[str, Any]) -> None:
    match step:
        case "ask", requests:
            world.ask(requests)
        case "wait", seconds:
            world.run(seconds)
        case "silent", silent:
            world.silent = silent
        case "deaf", deaf:
            world.deaf = deaf
        case "dies", calls:
            world.api.dies_after = calls
            world.round()
        case "loses", writes:
            world.api.faults.extend(["lost"] * writes)
            world.second()


@pytest.mark.parametrize("mode", ["colocated", "disaggregated"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, max_size=12))
def test_no_request_is_lost_or_forgotten(mode: str, script: list[tuple[str, Any]]) -> None:
    world = ZeroWorld({**SPEC, "mode": mode})
    try:
        world.settle()
        for step in script:
            play(world, step)
            assert world.wrongs == [], step
        world.silent = world.deaf = False
        world.api.faults.clear()
        world.api.dies_after = None
        world.ask(1)
        world.run(int(SOON_S))
        assert world.waiting == 0
        assert world.in_flight == 0
        world.run(int(AFTER_S) + 150)
        assert world.serving() == []
        roles = {
            pod["metadata"]["labels"]["serving.argosy.dev/role"] for pod in world.api.of("Pod")
        }
        assert roles == {"gateway"}
        assert world.wrongs == []
    finally:
        world.close()
