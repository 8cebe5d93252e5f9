"""A pod whose handovers fail is replaced, under faults and whatever it is that fails.

The gateway's own record of pairs is asked through the operator's own port, in virtual time:
`Gateway` passes requests between the pods of the world, as `pods.pairs` orders them. What must
never happen to any pod is in `tests/support/world.py`. Here also: two pods at a time, replacements
closer than five minutes, and one where nothing shows which pod is the cause.
"""

import json
import random
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from argosy_gateway.pods.pairs import Pairs
from argosy_gateway.server.admin import failing_pairs, handover_ages
from argosy_operator.adapters.gateways import parse_handovers
from argosy_operator.core.snapshot.pods import GatewayLoad, Handovers
from argosy_operator.core.steps.recycling import FRESH_S
from tests.support.faults import FaultyWorld
from tests.support.stateful import run_sequences
from tests.support.world import World, scaled_by_others

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SPEC = {**scaled_by_others(drain="60s"), "mode": "disaggregated"}
RECYCLE = "serving.argosy.dev/recycle"
PAUSE_S = 300.0


class Gateway:
    """The fleet's gateways, which send each decode pod a request a second."""

    def __init__(self) -> None:
        self.world: World
        self.sick: set[str] = set()
        """Uids of pods that hand over with none."""
        self.recovered: dict[str, float] = {}
        """Uid of each pod that was sick → when it recovered."""
        self.cut = False
        """No pod hands over."""
        self.pairs = Pairs(lambda: self.world.now)
        self.known: dict[str, str] = {}
        """Uid → name of the pods that serve."""
        self.chosen: dict[str, float] = {}
        """Uid of each pod that was chosen to be replaced → when."""
        self.wrongs: list[str] = []
        self.chance = random.Random(0)

    async def handovers(self, ip: str) -> Handovers:
        """As an operator asks a gateway, with the programs of both sides."""
        del ip
        pods = [SimpleNamespace(uid=uid, name=name) for uid, name in self.known.items()]
        fleet: Any = SimpleNamespace(directory=SimpleNamespace(pairs=self.pairs, all=lambda: pods))
        answer = {"failing": failing_pairs(fleet), "handed_over": handover_ages(fleet)}
        return parse_handovers(json.dumps(answer).encode())

    async def load(self, ip: str, name: str) -> GatewayLoad:
        """As one of an older version: it does not say which settings it uses."""
        del ip, name
        return GatewayLoad(0, 0.0)

    def second(self) -> None:
        """Requests pass for a second; then time does."""
        serving = {
            role: {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
            for role, pods in ((r, self.world.serving(r)) for r in ("prefill", "decode"))
        }
        now_known = serving["prefill"] | serving["decode"]
        for uid in self.known.keys() - now_known.keys():
            self.pairs.forget(uid)
        self.known = now_known
        decodes = list(serving["decode"])
        self.chance.shuffle(decodes)
        for decode in decodes:
            self._request(decode, list(serving["prefill"]))
        self.world.tick()
        self._judge()

    def _request(self, decode: str, prefills: list[str]) -> None:
        """One prompt: the prefill pods in any order, those that are avoided last."""
        self.chance.shuffle(prefills)
        prefills.sort(key=lambda prefill: self.pairs.avoids(prefill, decode))
        for place, prefill in enumerate(prefills):
            if place == 0:
                self.pairs.begin(prefill, decode)
            if self.cut or self.sick & {prefill, decode}:
                self.pairs.count_failure(prefill, decode, "silent")
            else:
                self.pairs.count_success(prefill, decode)
                return

    def _judge(self) -> None:
        marked = [
            pod["metadata"]
            for pod in self.world.api.of("Pod")
            if RECYCLE in pod["metadata"].get("annotations", {})
        ]
        if len(marked) > 1:
            self.wrongs.append(f"two at a time: {[meta['name'] for meta in marked]}")
        for meta in marked:
            if meta["uid"] in self.chosen:
                continue
            latest = max(self.chosen.values(), default=float("-inf"))
            if self.world.now - latest < PAUSE_S:
                self.wrongs.append(f"{meta['name']}: {self.world.now - latest} s after the last")
            # Until gateways try it again, the newest that they know of it is that it failed.
            well_s = self.world.now - self.recovered.get(meta["uid"], float("-inf"))
            if meta["uid"] not in self.sick and well_s > FRESH_S:
                self.wrongs.append(f"{meta['name']} is in order")
            self.chosen[meta["uid"]] = self.world.now


def gateway_of(prefill: int, decode: int) -> tuple[World, Gateway]:
    gateway = Gateway()
    world = gateway.world = World(SPEC, gateways=gateway)
    world.settle()
    world.scale(1, prefill=prefill, decode=decode)
    world.settle()
    return world, gateway


def uid_of(world: World, role: str, number: int = 0) -> str:
    return sorted(pod["metadata"]["uid"] for pod in world.serving(role))[number]


def run(gateway: Gateway, seconds: int, until: Callable[[], bool] = lambda: False) -> int:
    """So many seconds, or until something is true; how many they were."""
    for number in range(seconds):
        if until():
            return number
        gateway.second()
        gateway.world.work(1)
    return seconds


def no_wrongs(world: World, gateway: Gateway) -> None:
    assert world.wrongs == []
    assert gateway.wrongs == []


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_sick_pod_is_gone_within_minutes_and_its_role_is_whole(role: str) -> None:
    world, gateway = gateway_of(2, 2)
    sick = uid_of(world, role)
    gateway.sick = {sick}
    took_s = run(gateway, 900, lambda: sick not in world.engines)
    assert 60 < took_s < 400
    run(gateway, 10)
    assert (len(world.serving("prefill")), len(world.serving("decode"))) == (2, 2)
    assert list(gateway.chosen) == [sick]
    no_wrongs(world, gateway)
    world.close()


def test_two_sick_pods_go_one_after_the_other() -> None:
    world, gateway = gateway_of(3, 3)
    gateway.sick = {uid_of(world, "prefill"), uid_of(world, "decode")}
    run(gateway, 1200)
    assert gateway.chosen.keys() == gateway.sick
    assert not gateway.sick & world.engines.keys()
    no_wrongs(world, gateway)
    world.close()


def test_pods_that_come_back_sick_go_less_and_less_often() -> None:
    """As behind a node whose network is broken: whichever prefill pod is the newest fails."""
    world, gateway = gateway_of(3, 2)
    for _ in range(4000):
        young = max(world.serving("prefill"), key=lambda pod: int(pod["metadata"]["name"][-3:], 36))
        gateway.sick = gateway.sick & world.engines.keys() or {young["metadata"]["uid"]}
        gateway.second()
    times = sorted(gateway.chosen.values())
    apart = [later - earlier for earlier, later in pairwise(times)]
    assert [round(seconds, -2) for seconds in apart] == [300, 600, 1200]
    no_wrongs(world, gateway)
    world.close()


def test_where_nothing_is_handed_over_no_pod_goes() -> None:
    world, gateway = gateway_of(3, 3)
    run(gateway, 100)
    gateway.cut = True
    run(gateway, 900)
    assert gateway.chosen == {}
    no_wrongs(world, gateway)
    world.close()


def test_a_pod_that_was_sick_for_half_a_minute_stays() -> None:
    world, gateway = gateway_of(2, 2)
    gateway.sick = {uid_of(world, "prefill")}
    run(gateway, 30)
    gateway.sick = set()
    run(gateway, 900)
    assert gateway.chosen == {}
    no_wrongs(world, gateway)
    world.close()


def test_the_operator_may_die_at_any_call_of_a_replacement() -> None:
    for call in range(0, 60, 3):
        world, gateway = gateway_of(2, 2)
        sick = uid_of(world, "prefill")
        gateway.sick = {sick}
        run(gateway, 400, lambda w=world, s=sick: _is_marked(w, s))  # type: ignore[misc]
        for number in range(20):
            if number % 4 == call % 4:
                world.api.dies_after = call // 4
            gateway.second()
        world.api.dies_after = None
        run(gateway, 60)
        assert sick not in world.engines, call
        assert len(world.serving("prefill")) == 2, call
        no_wrongs(world, gateway)
        world.close()


def _is_marked(world: World, uid: str) -> bool:
    pods = (pod["metadata"] for pod in world.api.of("Pod") if pod["metadata"]["uid"] == uid)
    return any(RECYCLE in meta["annotations"] for meta in pods)


class Replacements(FaultyWorld):
    """Also pods that fail, networks that are cut, targets that change, and time."""

    SPEC = SPEC
    STALE = ("Deployment", "Pod")

    @initialize(nodes=st.integers(1, 3))
    def start(self, nodes: int) -> None:
        self.gateway = Gateway()
        self.world = self.gateway.world = World(self.SPEC, gateways=self.gateway, nodes=nodes)
        self.world.settle()
        self.world.scale(3)
        self.world.settle()

    @rule(seconds=st.integers(1, 60))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.gateway.second()
        assert self.gateway.wrongs == []

    @rule(role=st.sampled_from(["prefill", "decode"]), choice=st.integers(0, 3))
    def a_pod_falls_sick(self, role: str, choice: int) -> None:
        pods = self.world.serving(role)
        if pods:
            self.gateway.sick.add(pods[choice % len(pods)]["metadata"]["uid"])
        self.time_passes(150)

    @rule()
    def the_sick_pods_recover(self) -> None:
        """Those that are chosen by then may still go."""
        recovered = self.gateway.sick - self.gateway.chosen.keys()
        self.gateway.recovered |= dict.fromkeys(recovered, self.world.now)
        self.gateway.sick -= recovered

    @rule(cut=st.booleans())
    def the_network_is_cut(self, cut: bool) -> None:
        self.gateway.cut = cut

    @rule(prefill=st.integers(1, 4), decode=st.integers(1, 4))
    def someone_scales(self, prefill: int, decode: int) -> None:
        self.world.scale(1, prefill=prefill, decode=decode)

    def faults_end(self) -> None:
        """No request comes any more, and what gateways saw is old."""
        self.gateway.pairs = Pairs(lambda: self.world.now)


def test_no_sequence_of_sick_pods_and_faults_does_what_is_forbidden() -> None:
    run_sequences(Replacements, examples=6, steps=12)
