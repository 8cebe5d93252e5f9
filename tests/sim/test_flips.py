"""Simulated pods that change their role: in seconds, when they are empty, and without any loss."""

from dataclasses import replace
from math import inf, isnan

from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.sim.replay import Replicas
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import FLIP_S
from argosy_law.sim.world.pods import DecodePod, PrefillPod
from tests.sim.fleets import MACHINE, setup, trace
from tests.sim.test_conservation import ROWS

LATE = trace([(5000.0, 10, 2)])
"""Nothing comes for a long time."""


def fleet(prefill: int, decode: int, requests: Trace = LATE, *, flips: bool = True) -> World:
    world = World(replace(setup(cold_s=60.0), role_flip=flips), requests)
    world.scale("prefill", prefill, warm=True)
    world.scale("decode", decode, warm=True)
    return world


def ready(world: World) -> tuple[int, int]:
    one, other = (
        sum(pod.ready_at <= world.now for pod in world.wanted(role))
        for role in ("prefill", "decode")
    )
    return one, other


def at(world: World, seconds: float, prefill: int, decode: int) -> dict[str, int]:
    world.advance(seconds)
    return dict(world.resize({"prefill": prefill, "decode": decode}))


def test_an_empty_pod_serves_in_its_new_role_after_seconds() -> None:
    world = fleet(2, 1)
    assert at(world, 10.0, 1, 2) == {"prefill": -1, "decode": 1}
    assert (world.counted("prefill"), world.counted("decode")) == (1, 2)
    world.advance(10.0 + FLIP_S - 0.01)
    assert ready(world) == (1, 1)
    world.advance(10.0 + FLIP_S)
    assert ready(world) == (1, 2)
    old, new = world.pods["prefill"][1], world.pods["decode"][1]
    assert old.gone_at == new.created_at == 10.0
    assert (old.flipped, new.flipped) == (False, True)


def test_a_pod_with_work_finishes_it_first() -> None:
    # one answer of 1,001 tokens at 10 ms and more a step
    world = fleet(1, 2, trace([(0.0, 10, 1001), (0.0, 10, 1001), (900.0, 10, 2)]))
    at(world, 1.0, 2, 1)
    assert (world.counted("prefill"), len(world.coming("prefill"))) == (2, 1)
    leaving = world.coming("prefill")[0]
    world.advance(59.0)
    assert ready(world) == (2, 1)
    done = world.last[world.pods["decode"].index(leaving)]
    assert 10 < done < 40
    new = world.pods["prefill"][1]
    assert (new.created_at, new.ready_at) == (done, done + FLIP_S)


def test_a_new_pod_starts_if_the_old_one_is_not_empty_within_a_cold_start() -> None:
    world = fleet(1, 2, trace([(0.0, 10, 4000), (0.0, 10, 4000), (900.0, 10, 2)]))
    at(world, 1.0, 2, 1)
    world.advance(60.99)
    assert len(world.pods["prefill"]) == 1
    world.advance(61.0)
    assert [pod.flipped for pod in world.pods["prefill"]] == [False, False]
    assert not world.coming("prefill")
    world.advance(inf)
    assert len(world.pods["prefill"]) == 2
    assert not any(isnan(last) for last in world.last)


def test_a_pod_that_is_wanted_back_stays_what_it_is() -> None:
    world = fleet(1, 2, trace([(0.0, 10, 1001), (0.0, 10, 1001), (900.0, 10, 2)]))
    at(world, 1.0, 2, 1)
    assert at(world, 2.0, 1, 2) == {"prefill": -1, "decode": 1}
    assert (len(world.wanted("decode")), world.coming("prefill")) == (2, [])
    world.advance(inf)
    assert len(world.pods["prefill"]) == 1


def test_flips_are_apart_and_none_goes_back_at_once() -> None:
    world = fleet(4, 1)
    at(world, 10.0, 3, 2)
    at(world, 39.9, 2, 3)
    assert [pod.flipped for pod in world.pods["decode"]] == [False, True, False]
    at(world, 40.0, 1, 4)
    assert [pod.flipped for pod in world.pods["decode"]] == [False, True, False, True]
    at(world, 339.9, 2, 3)
    at(world, 340.0, 3, 2)
    assert [pod.flipped for pod in world.pods["prefill"]] == [False] * 5 + [True]


@settings(max_examples=60, deadline=None)
@given(
    ROWS,
    st.lists(st.tuples(st.floats(0, 200), st.integers(1, 4), st.integers(1, 4)), max_size=12),
    st.sampled_from((2.0, 1e6)),
)
def test_every_request_ends_once_however_pods_change_their_roles(
    rows: list[tuple[float, int, int]], moves: list[tuple[float, int, int]], drain_s: float
) -> None:
    of = setup(machine=MACHINE, drain_s=drain_s, resumes=True)
    world = World(replace(of, role_flip=True, dwell_s=40.0), trace(sorted(rows)))
    world.scale("prefill", 2, warm=True)
    world.scale("decode", 2, warm=True)
    asked: Replicas = {"prefill": 2, "decode": 2}
    for seconds, prefill, decode in sorted(moves):
        world.advance(seconds)
        asked = {"prefill": prefill, "decode": decode}
        world.resize(asked)
        assert {role: world.counted(role) for role in world.roles} == asked
    world.advance(inf)
    assert {role: len(world.wanted(role)) for role in world.roles} == asked
    assert world.ended == len(rows)
    assert world.killed == 0
    for pod in (pod for pods in world.pods.values() for pod in pods if not pod.gone):
        if isinstance(pod, PrefillPod):
            assert (pod.open, pod.tokens, list(pod.queue)) == (0, 0, [])
        elif isinstance(pod, DecodePod):
            assert (pod.open, pod.kv_free, pod.context) == (0, 10_000, 0)
