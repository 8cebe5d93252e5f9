"""The queue's decisions in virtual time: what waits, what goes next, and that no pod is idle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.routing.world import Asked, World, poisson, share

PACE, TOKENS, LIMIT_S = 9000.0, 4800, 2.5
PROMPT_S = TOKENS / PACE + 0.02
SEEDS = range(4)


def rate(pods: int, load: float) -> float:
    """Requests per second for a share of what the pods can compute."""
    return load * pods / PROMPT_S


def teach(world: World, factor: float) -> None:
    """Let every gateway believe that the pods are so many times as quick as they are."""
    for gateway in world.gateways:
        for uid, pod in world.pods.items():
            for _ in range(8):
                seconds = TOKENS / pod.tokens_per_s / factor
                gateway.dispatch.pace.observe(
                    uid, ahead=2 * TOKENS, own=TOKENS, seconds=2 * seconds
                )


loads = st.lists(
    st.builds(
        Asked,
        at=st.floats(0, 10),
        tokens=st.integers(1, 20_000),
        flow=st.sampled_from(["", "a", "b"]),
        priority=st.integers(-1, 1),
        limit_s=st.sampled_from([0.1, 1.0, 3.0]),
        decode_s=st.floats(0, 5),
    ),
    max_size=60,
)


@given(
    loads,
    st.lists(st.sampled_from([500.0, 5000.0, 20_000.0]), min_size=1, max_size=4),
    st.integers(1, 2),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_every_request_goes_once_and_no_pod_is_idle_while_one_waits(load, paces, gateways, factor):
    world = World(*paces, gateways=gateways, noise=2.0)
    teach(world, factor)
    asked = world.play(load)
    assert sorted(map(id, world.order)) == sorted(map(id, asked))
    assert all(one.ended_at is not None for one in asked)
    assert world.waiting() == 0
    assert [pod.idle_s for pod in world.pods.values()] == pytest.approx([0.0] * len(paces))
    assert all(not gateway.in_flight.loads for gateway in world.gateways)


@given(loads, st.integers(1, 5), st.integers(1, 4))
def test_a_pod_never_has_more_sequences_than_places(load, places, pods):
    world = World(*[PACE] * pods, places=places)
    most = 0
    send = world._send

    def watched(*words) -> None:
        nonlocal most
        send(*words)
        loads = world.gateways[0].in_flight.loads
        most = max(most, *(load.sequences for load in loads.values()))

    world._send = watched
    asked = world.play(load)
    assert all(one.ended_at is not None for one in asked)
    assert most <= places


def test_while_the_pace_is_unknown_nothing_waits():
    world = World(PACE)
    asked = world.play([Asked(0.0, 100_000) for _ in range(50)])
    assert [one.dispatched_at for one in asked] == [0.0] * 50


def going(*prompts: Asked, factor: float = 1.0) -> int:
    """How many of these requests, which come at once, are dispatched at once."""
    world = World(PACE)
    teach(world, factor)
    world.play(prompts, until=0.0)
    return len(world.order)


def test_requests_go_until_two_prompts_and_the_held_share_of_the_limit_are_outstanding():
    # A prompt takes a second. The third begins after two, which is 0.4 of five.
    assert going(*(Asked(0.0, 9000, limit_s=5.01) for _ in range(9))) == 3
    assert going(*(Asked(0.0, 9000, limit_s=4.99) for _ in range(9))) == 2


def test_a_request_that_would_miss_waits_behind_the_first_that_meets():
    assert going(Asked(0.0, 9000, limit_s=2.01), Asked(0.0, 9000, limit_s=2.01)) == 2
    assert going(Asked(0.0, 9000, limit_s=1.99), Asked(0.0, 9000, limit_s=1.99)) == 1


def test_to_a_pod_with_nearly_nothing_outstanding_even_a_late_request_goes():
    late = [Asked(0.0, 100, limit_s=0.001) for _ in range(3)]
    assert going(*late) == 1
    assert going(Asked(0.0, 100, limit_s=0.2), *late) == 1
    assert going(*late, factor=100_000.0) == 3  # the first seem to take no time


@pytest.mark.parametrize("load", [0.5, 0.7, 0.9])
@pytest.mark.parametrize(("pods", "gateways"), [(1, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_at_normal_load_as_many_meet_their_limit_as_without_a_queue(load, pods, gateways, factor):
    found = {}
    for queued in (False, True):
        met = []
        for seed in SEEDS:
            world = World(*[PACE] * pods, gateways=gateways, queued=queued, seed=seed, noise=2.0)
            teach(world, factor)
            arrivals = poisson(rate(pods, load), 0, 100, tokens=TOKENS, seed=seed, limit_s=LIMIT_S)
            met.append(share(world.play(arrivals)))
        found[queued] = sum(met) / len(met)
    assert found[True] >= 0.99 * found[False]


@pytest.mark.parametrize(("pods", "gateways"), [(1, 1), (2, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_at_ten_times_the_capacity_goodput_stays(pods, gateways, factor):
    world = World(*[PACE] * pods, gateways=gateways)
    teach(world, factor)
    asked = world.play(poisson(rate(pods, 10), 0, 60, tokens=TOKENS, limit_s=LIMIT_S), until=60)
    goodput = sum(one.met for one in asked) / 60
    assert goodput >= 0.8 * rate(pods, 0.85)


def test_flows_get_equal_shares_however_much_each_sends():
    world = World(PACE)
    teach(world, 1.0)
    greedy = poisson(rate(1, 9), 0, 60, tokens=TOKENS, seed=1, limit_s=LIMIT_S, flow="greedy")
    modest = poisson(rate(1, 2), 0, 60, tokens=TOKENS, seed=2, limit_s=LIMIT_S, flow="modest")
    world.play([*greedy, *modest], until=60)
    served = [sum(o.tokens for o in flow if o.met) for flow in (greedy, modest)]
    assert served[1] >= 0.7 * served[0]


@pytest.mark.parametrize("stalls", [1.0, 2.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_short_prompts_of_one_flow_meet_their_limit_beside_a_flood_of_long_ones(stalls, seed):
    world = World(PACE, PACE, seed=seed, stalls=stalls)
    teach(world, 1.0)
    flood = poisson(rate(2, 10), 0, 30, tokens=5200, seed=seed, limit_s=LIMIT_S, flow="flood")
    short = poisson(6, 0, 30, tokens=300, seed=seed + 7, limit_s=LIMIT_S, flow="short")
    world.play([*flood, *short], until=50)
    assert share(short) >= 0.97
    assert max(one.first_at - one.at for one in short) < 2 * LIMIT_S


@pytest.mark.parametrize(("gateways", "most"), [(1, 8), (2, 8), (3, 6), (4, 4), (100, 1)])
def test_of_many_gateways_each_has_twice_its_share_of_a_pods_places(gateways, most):
    world = World(PACE, places=8)
    world.gateways[0].dispatch.shares.count(range(gateways), "unknown")
    world.play([Asked(0.0, 10, decode_s=9.0) for _ in range(9)], until=0.0)
    assert len(world.order) == most
