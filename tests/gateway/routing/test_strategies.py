"""Which pods a strategy chooses: properties over any fleet."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.routing.load import InFlight, PodLoad
from argosy_gateway.routing.roster import Group
from argosy_gateway.routing.strategies import (
    STRATEGIES,
    FleetView,
    LeastLoad,
    RoutingRequest,
    least_loaded_group,
)
from tests.gateway.routing.rosters import groups_of

ENDPOINTS = st.lists(
    st.tuples(st.sampled_from(Role), st.sampled_from(["r1", "r2"]), st.sampled_from(State)),
    max_size=12,
).map(
    lambda rows: [
        Endpoint(str(i), f"pod-{i}", f"10.0.0.{i}", role, revision, state)
        for i, (role, revision, state) in enumerate(rows)
    ]
)
LOADS = st.dictionaries(
    st.integers(0, 11).map(str),
    st.builds(PodLoad, st.integers(0, 9), st.integers(0, 9000)),
)

REQUEST = RoutingRequest("id", "m", stream=True, prompt_tokens=10, prompt_start=b"hello")


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(endpoints=ENDPOINTS, loads=LOADS, seed=st.integers(0, 99))
def test_only_serving_pods_are_chosen_and_pairs_share_a_revision(strategy, endpoints, loads, seed):
    groups = groups_of(endpoints)
    route = STRATEGIES[strategy](random.Random(seed)).choose(REQUEST, groups, FleetView(loads))
    if route is None:
        assert not groups
        return
    pods = [route.head, *route.prefills]
    assert all(p.state is State.SERVING for p in pods)
    assert len({p.uid for p in pods}) == len(pods)
    if route.head.role is Role.COLOCATED:
        assert not route.prefills
    else:
        assert route.head.role is Role.DECODE
        assert {(p.role, p.revision) for p in route.prefills} <= {
            (Role.PREFILL, route.head.revision)
        }


@given(endpoints=ENDPOINTS, seed=st.integers(0, 99))
def test_decode_pods_without_prefill_pods_serve_only_where_no_others_can(endpoints, seed):
    serving = [e for e in endpoints if e.state is State.SERVING]
    prefills = {e.revision for e in serving if e.role is Role.PREFILL}
    decodes = {e.revision for e in serving if e.role is Role.DECODE}
    others = any(e.role is Role.COLOCATED for e in serving) or prefills & decodes
    route = LeastLoad(random.Random(seed)).choose(REQUEST, groups_of(serving), FleetView({}))
    alone = route is not None and route.head.role is Role.DECODE and not route.prefills
    assert alone == (bool(decodes) and not others)


@given(endpoints=ENDPOINTS, loads=LOADS, seed=st.integers(0, 99))
def test_least_load_takes_the_head_with_fewest_sequences_of_its_group(endpoints, loads, seed):
    groups = groups_of(endpoints)
    route = LeastLoad(random.Random(seed)).choose(REQUEST, groups, FleetView(loads))
    if route is None:
        return
    mine = next(g for g in groups if route.head in g.heads)

    def load(pod):
        return loads.get(pod.uid, PodLoad())

    assert load(route.head).sequences == min(load(p).sequences for p in mine.heads)
    waiting = [load(p).prompt_tokens for p in route.prefills]
    assert waiting == sorted(waiting)
    if waiting:
        assert waiting[0] == min(load(p).prompt_tokens for p in mine.prefills)


@given(endpoints=ENDPOINTS, seed=st.integers(0, 99), n=st.integers(0, 30))
def test_reservations_that_end_leave_no_load(endpoints, seed, n):
    groups = groups_of(endpoints)
    in_flight, rng = InFlight(), random.Random(seed)
    strategy = LeastLoad(rng)
    reservations = [
        in_flight.reserve(route, rng.randrange(1, 900))
        for _ in range(n)
        if (route := strategy.choose(REQUEST, groups, FleetView(in_flight.loads)))
    ]
    rng.shuffle(reservations)
    for reservation in reservations:
        if rng.random() < 0.5:
            reservation.first_token()
        reservation.end()
        reservation.end()
    assert in_flight.loads == {}


def test_idle_colocated_pods_and_pairs_are_chosen_by_their_share_of_pods():
    pods = [Endpoint(f"c{i}", f"c{i}", "x", Role.COLOCATED, "r", State.SERVING) for i in range(2)]
    pods += [Endpoint(f"p{i}", f"p{i}", "x", Role.PREFILL, "r", State.SERVING) for i in range(3)]
    pods += [Endpoint(f"d{i}", f"d{i}", "x", Role.DECODE, "r", State.SERVING) for i in range(3)]
    strategy = LeastLoad(random.Random(1))
    heads = [
        strategy.choose(REQUEST, groups_of(pods), FleetView({})).head.role for _ in range(4000)
    ]
    assert heads.count(Role.COLOCATED) / 4000 == pytest.approx(2 / 8, abs=0.03)


def test_round_robin_goes_through_the_heads_of_all_groups_in_their_order():
    pods = [
        Endpoint(name, name, "x", role, name[1], State.SERVING)
        for role, names in (
            (Role.COLOCATED, ("c1", "c2")), (Role.DECODE, ("d3", "e3", "d4")),
            (Role.PREFILL, ("p3", "p4")),
        )
        for name in names
    ]  # fmt: skip
    strategy, groups = STRATEGIES["roundRobin"](random.Random(1)), groups_of(pods)
    heads = [pod.name for group in groups for pod in group.heads]
    routes = [strategy.choose(REQUEST, groups, FleetView({})) for _ in range(10)]
    names = [route.head.name for route in routes]
    first = heads.index(names[0])
    assert names == [heads[(first + turn) % 5] for turn in range(10)]
    for route in routes:
        own = [] if route.head.role is Role.COLOCATED else [f"p{route.head.revision}"]
        assert [pod.name for pod in route.prefills] == own


def chosen_of(loads, *groups):
    """Numbers of the groups that are chosen."""
    found = set()
    for seed in range(30):
        chosen = least_loaded_group(groups, FleetView(loads), random.Random(seed))
        found |= {number for number, group in enumerate(groups) if group is chosen}
    return found


def a_group(name, heads, prefills=0):
    def pods(kind, number, role):
        return tuple(
            Endpoint(f"{name}{kind}{i}", f"{name}{kind}{i}", "x", role, name, State.SERVING)
            for i in range(number)
        )

    return Group(pods("h", heads, Role.DECODE), pods("p", prefills, Role.PREFILL))


def test_the_group_with_fewer_sequences_for_each_of_its_pods_is_chosen():
    one, two = a_group("a", 2, 2), a_group("b", 2)
    # Four sequences on four pods against two on two, and one more on either side.
    assert chosen_of({"ah0": PodLoad(4), "bh1": PodLoad(2)}, one, two) == {0, 1}
    assert chosen_of({"ah0": PodLoad(5), "bh1": PodLoad(2)}, one, two) == {1}
    assert chosen_of({"ah0": PodLoad(4), "bh1": PodLoad(3)}, one, two) == {0}


def test_round_robin_takes_prefill_pods_in_turn_and_three_at_most():
    pods = [Endpoint("d", "d", "x", Role.DECODE, "r", State.SERVING)]
    pods += [Endpoint(f"p{i}", f"p{i}", "x", Role.PREFILL, "r", State.SERVING) for i in range(5)]
    strategy, groups = STRATEGIES["roundRobin"](random.Random(1)), groups_of(pods)
    routes = [strategy.choose(REQUEST, groups, FleetView({})) for _ in range(5)]
    orders = {tuple(pod.name for pod in route.prefills) for route in routes}
    ring = [f"p{i % 5}" for i in range(7)]
    assert orders == {tuple(ring[i : i + 3]) for i in range(5)}
