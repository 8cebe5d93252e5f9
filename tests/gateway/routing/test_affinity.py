"""prefixHash and kvAware: common prefixes go together, and no pod gets more than its share."""

import random
from collections import Counter
from dataclasses import replace
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.pods.endpoints import Endpoint, Role, State
from argosy_gateway.routing.load import InFlight, PodLoad
from argosy_gateway.routing.roster import Route
from argosy_gateway.routing.strategies import (
    FleetView,
    KvAware,
    LearningStrategy,
    PrefixHash,
    Ring,
    RoutingRequest,
    hash_of,
)
from argosy_gateway.wire.openai import prefixes_of
from tests.gateway.routing.rosters import groups_of

IDLE = FleetView({})


def asks(text, tokens=None, cache_key=None):
    data = text.encode()
    return RoutingRequest(
        "id",
        "m",
        stream=True,
        prompt_tokens=tokens or max(1, len(data) // 4),
        prompt_start=data[:1024],
        cache_key=cache_key,
        prefixes=prefixes_of(data),
        prompt_chars=len(text),
    )


def pods(number, role=Role.COLOCATED, start=0):
    names = [f"{role[0]}{i}" for i in range(start, start + number)]
    return [Endpoint(name, name, "x", role, "r", State.SERVING) for name in names]


PAIRS = [*pods(4, Role.PREFILL), *pods(4, Role.DECODE)]


def prompt(number, chars=2000):
    return f"{number:09d} " * (chars // 10)


# The ring


def test_each_key_has_an_order_of_all_pods_that_every_ring_shares():
    one, other = Ring(), Ring()
    one.update(pods(9))
    other.update(pods(3))
    other.update(pods(9, start=2))
    other.update(list(reversed(pods(9))))
    for key in range(200):
        order = [pod.uid for pod in one.order(hash_of(b"%d" % key))]
        assert sorted(order) == sorted(pod.uid for pod in pods(9))
        assert order == [pod.uid for pod in other.order(hash_of(b"%d" % key))]


def test_pods_share_the_keys_and_a_pod_that_goes_moves_only_its_own():
    ring, keys = Ring(), [hash_of(b"%d" % key) for key in range(3000)]
    ring.update(pods(10))
    before = [next(ring.order(key)).uid for key in keys]
    shares = Counter(before)
    assert max(shares.values()) < 2 * 300
    assert min(shares.values()) > 300 / 2.5
    ring.update(pods(9))
    after = [next(ring.order(key)).uid for key in keys]
    assert {a for a, b in zip(before, after, strict=True) if a != b} == {"c9"}


# prefixHash


@given(number=st.integers(0, 10**6), seeds=st.tuples(st.integers(), st.integers()))
def test_all_gateways_send_prompts_that_begin_alike_to_one_pod(number, seeds):
    groups = groups_of(pods(8))
    text = prompt(number, 1100)
    routes = [
        PrefixHash(random.Random(seed)).choose(asks(text + end), groups, IDLE)
        for seed in seeds
        for end in ("", "one", "x" * 5000)
    ]
    assert len({route.head.uid for route in routes}) == 1


def test_prompts_that_differ_within_their_first_1024_bytes_spread():
    strategy, groups = PrefixHash(random.Random(1)), groups_of(pods(4))
    heads = Counter(strategy.choose(asks(prompt(n)), groups, IDLE).head.uid for n in range(400))
    assert len(heads) == 4
    assert min(heads.values()) > 30


def test_one_hot_prefix_is_bounded_by_a_quarter_over_the_mean():
    strategy, groups, in_flight = PrefixHash(random.Random(1)), groups_of(pods(8)), InFlight()
    view = FleetView(in_flight.loads)
    for sent in range(1, 401):
        in_flight.reserve(strategy.choose(asks(prompt(7)), groups, view), 1)
        most = max(load.sequences for load in in_flight.loads.values())
        assert most <= -(-125 * sent // 800)
    assert len(in_flight.loads) == 7, "seven pods of 63 take the 400"


def test_in_pairs_the_prefill_pod_follows_from_the_prefix_and_the_decode_pod_from_the_load():
    strategy, groups = PrefixHash(random.Random(1)), groups_of(PAIRS)
    view = FleetView({f"d{n}": PodLoad(5, 0) for n in (0, 1, 3)})
    routes = [strategy.choose(asks(prompt(7) + str(n)), groups, view) for n in range(20)]
    assert {route.head.uid for route in routes} == {"d2"}
    assert len({route.prefills for route in routes}) == 1
    assert len(set(routes[0].prefills)) == 3


def test_a_prefill_pod_with_more_than_its_share_or_a_failing_pair_is_passed_over():
    strategy, groups = PrefixHash(random.Random(1)), groups_of(PAIRS)
    request = asks(prompt(7), tokens=100)
    first = strategy.choose(request, groups, IDLE).prefills[0].uid
    # 1.25 · (waiting + 100) / 4 tokens may wait on the pod.
    for waiting, stays in ((45, True), (46, False)):
        route = strategy.choose(request, groups, FleetView({first: PodLoad(1, waiting)}))
        assert (route.prefills[0].uid == first) == stays
    avoided = FleetView({}, lambda prefill, _decode: prefill == first)
    assert strategy.choose(request, groups, avoided).prefills[0].uid != first
    everywhere = FleetView({}, lambda _prefill, _decode: True)
    assert strategy.choose(request, groups, everywhere).prefills[0].uid == first, "as a last resort"


# kvAware


def send(strategy, request, groups, view):
    """Choose, and send it there."""
    route = strategy.choose(request, groups, view)
    if isinstance(strategy, LearningStrategy):
        strategy.remember(request, route)
    return route


def test_a_prompt_goes_to_the_pod_that_has_most_of_it():
    strategy, groups = KvAware(random.Random(1)), groups_of(pods(8))
    homes = {n: send(strategy, asks(prompt(n)), groups, IDLE).head.uid for n in range(12)}
    for n, home in homes.items():
        route = send(strategy, asks(prompt(n) + "and a question"), groups, IDLE)
        assert route.head.uid == home
        assert route.cached_tokens >= 0.8 * 500


def test_it_waits_for_a_cache_only_as_long_as_the_cache_saves():
    strategy, groups = KvAware(random.Random(1)), groups_of(pods(2))
    request = asks(prompt(7, 2560), tokens=1000)
    home = send(strategy, request, groups, IDLE).head.uid
    cached = send(strategy, request, groups, IDLE).cached_tokens
    assert cached == 999, "one token is computed always"
    for waiting, stays in ((998, True), (1000, False)):
        fresh = KvAware(random.Random(1))
        home = send(fresh, request, groups, IDLE).head.uid
        route = send(fresh, request, groups, FleetView({home: PodLoad(0, waiting)}))
        assert (route.head.uid == home) == stays


def test_tokens_that_are_expected_in_the_cache_are_not_counted_as_work():
    pod = pods(1)[0]
    in_flight = InFlight()
    in_flight.reserve(Route(pod, cached_tokens=900), 1000)
    assert in_flight.loads[pod.uid].prompt_tokens == 100
    in_flight.reserve(Route(pod, cached_tokens=900), 900)
    assert in_flight.loads[pod.uid].prompt_tokens == 101, "one token at least"


def test_colocated_pods_get_at_most_a_quarter_over_the_mean_of_sequences():
    strategy, groups = KvAware(random.Random(1)), groups_of(pods(4))
    home = send(strategy, asks(prompt(7)), groups, IDLE).head.uid
    others = {pod.uid: PodLoad(4, 0) for pod in pods(4)}
    for sequences, stays in ((5, True), (6, False)):
        view = FleetView(others | {home: PodLoad(sequences, 0)})
        fresh = KvAware(random.Random(1))
        assert send(fresh, asks(prompt(7)), groups, IDLE).head.uid == home
        assert (send(fresh, asks(prompt(7)), groups, view).head.uid == home) == stays


def test_in_pairs_the_prefill_pod_is_the_one_with_the_cache_unless_the_pair_fails():
    strategy, groups = KvAware(random.Random(1)), groups_of(PAIRS)
    home = send(strategy, asks(prompt(7)), groups, IDLE).prefills[0].uid
    route = send(strategy, asks(prompt(7) + "more"), groups, IDLE)
    assert (route.prefills[0].uid, len(route.prefills)) == (home, 3)
    avoided = FleetView({}, lambda prefill, _decode: prefill == home)
    route = send(strategy, asks(prompt(7) + "more"), groups, avoided)
    assert route.prefills[0].uid != home
    assert route.cached_tokens == 0


def sends(strategy, groups, text, finds=None):
    """Send a prompt; the engine finds this share of what was expected. Returns the route."""
    request = asks(text)
    route = send(strategy, request, groups, IDLE)
    if finds is not None:
        strategy.learn(request, route, cached_tokens=int(route.cached_tokens * finds))
    return route


NEW = count(10**6)


def fill(strategy, groups, tokens):
    """Send new prompts of so many tokens together."""
    for _ in range(tokens // 1000):
        send(strategy, asks(prompt(next(NEW), 4000)), groups, IDLE)


def test_a_prefix_that_is_still_being_computed_does_not_empty_the_index():
    strategy, groups = KvAware(random.Random(1)), groups_of(pods(4))
    for _ in range(50):  # all at once: the engine finds nothing yet
        route = sends(strategy, groups, prompt(1), finds=0.0)
    assert route.cached_tokens > 0


def test_decode_pods_teach_nothing_about_the_caches_of_prefill_pods():
    strategy, groups = KvAware(random.Random(1)), groups_of(PAIRS)
    for _ in range(3):
        sends(strategy, groups, prompt(1))
        fill(strategy, groups, 100_000)
        route = sends(strategy, groups, prompt(1), finds=0.0)
        assert route.cached_tokens > 0


def test_the_index_keeps_the_newest_prefixes_and_four_pods_of_each(monkeypatch):
    monkeypatch.setattr("argosy_gateway.routing.strategies._MOST_PREFIXES", 64)
    strategy = KvAware(random.Random(1))
    for pod in pods(6):
        send(strategy, asks(prompt(1)), groups_of([pod]), IDLE)
    assert {len(uids) for uids in strategy.caches.index.values()} == {4}
    for number in range(100):
        send(strategy, asks(prompt(number)), groups_of(pods(2)), IDLE)
    assert len(strategy.caches.index) == 64
    assert sends(strategy, groups_of(pods(2)), prompt(99)).cached_tokens > 0
    assert sends(strategy, groups_of(pods(2)), prompt(3)).cached_tokens == 0


def test_revisions_have_rings_of_their_own_and_old_ones_do_not_pile_up():
    strategy = PrefixHash(random.Random(1))
    for number in range(40):
        fleet = [replace(pod, revision=f"r{number}") for pod in PAIRS]
        assert (
            strategy.choose(asks(prompt(1)), groups_of(fleet), IDLE).head.revision == f"r{number}"
        )
    assert len(strategy._rings) <= 16


# What both have in common


# What kvAware takes a cache to hold

ONE_POD = groups_of(pods(1))
KNOWN = asks("k" * 2560, tokens=101)
"""Its first hundred tokens may be cached."""


def other(tokens):
    return asks("short", tokens=tokens)


def known(strategy):
    """Tokens of KNOWN that are expected in the cache, and their age."""
    route = strategy.choose(KNOWN, ONE_POD, IDLE)
    return route.cached_tokens, route.cache_age


def test_the_known_part_of_a_prompt_is_counted_by_its_share_of_the_text():
    strategy, text = KvAware(random.Random(1)), prompt(1, 2000)
    assert strategy.choose(asks(text), ONE_POD, IDLE).cached_tokens == 0
    send(strategy, asks(text), ONE_POD, IDLE)
    assert strategy.choose(asks(text), ONE_POD, IDLE).cached_tokens == 7 * 64
    begins_alike = asks(text[:1024] + "x" * 976)
    assert strategy.choose(begins_alike, ONE_POD, IDLE).cached_tokens == 4 * 64


def test_an_answer_with_less_than_half_shows_that_prefixes_of_that_age_are_gone():
    strategy = KvAware(random.Random(1))
    send(strategy, KNOWN, ONE_POD, IDLE)
    send(strategy, other(20_000), ONE_POD, IDLE)
    route = strategy.choose(KNOWN, ONE_POD, IDLE)
    strategy.learn(KNOWN, route, cached_tokens=50)
    assert known(strategy) == (100, 20_000)
    strategy.learn(KNOWN, route, cached_tokens=49)
    assert known(strategy) == (0, 0)
    strategy.learn(KNOWN, route, cached_tokens=50)
    assert known(strategy) == (100, 20_000)
    send(strategy, other(1), ONE_POD, IDLE)
    assert known(strategy) == (100, 20_001), "a tenth of a token is more than none"
    send(strategy, other(1), ONE_POD, IDLE)
    assert known(strategy) == (0, 0)


# The decode pod of kvAware


def test_the_decode_pod_is_the_one_that_has_most_of_the_prompt():
    strategy, groups = KvAware(random.Random(1)), groups_of(PAIRS)
    homes = {n: send(strategy, asks(prompt(n)), groups, IDLE).head.uid for n in range(12)}
    assert len(set(homes.values())) == 4
    for n, home in homes.items():
        route = send(strategy, asks(prompt(n) + "and a question"), groups, IDLE)
        assert (route.head.uid, route.head_cached_tokens >= 0.8 * 500) == (home, True)
