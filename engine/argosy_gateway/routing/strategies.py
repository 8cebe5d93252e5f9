"""How a request's pods are chosen: the strategies of `spec.routing.strategy`.

A strategy gets a request, the groups of pods that can serve it and their loads, and returns a
route. `relay` calls `choose` once per attempt. A strategy is registered by a row in STRATEGIES.
All are pure but for the given random source.
"""

import math
import random
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple, Protocol, runtime_checkable

from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.routing.load import IDLE, PodLoad
from argosy_gateway.routing.roster import Group, Route

__all__ = [
    "AFFINE",
    "PREFILL_CANDIDATES",
    "STRATEGIES",
    "Caches",
    "FleetView",
    "Hit",
    "KvAware",
    "LearningStrategy",
    "LeastLoad",
    "PrefixHash",
    "Ring",
    "RoundRobin",
    "RoutingRequest",
    "Strategy",
    "hash_of",
    "least_loaded_group",
    "least_loaded_head",
    "most_prompt_tokens",
    "most_sequences",
    "some_of",
]

PREFILL_CANDIDATES = 3
"""Most prefill pods of one route: the head asks the next one when one refuses."""


class RoutingRequest(NamedTuple):
    """What a strategy may know about a request. The same for every attempt of it."""

    request_id: str
    """The client's `x-request-id`, or one that the gateway made."""
    model: str
    """The served name that the client asked for."""
    stream: bool
    prompt_tokens: int
    """Length of the prompt, estimated from its characters; at least 1."""
    prompt_start: bytes
    """The first 1,024 characters of the prompt in UTF-8. Messages are joined by a space; token ids
    are written in decimal. Requests with a common start can share KV cache."""
    cache_key: str | None = None
    """OpenAI's `prompt_cache_key`: requests of one session or application. None if not given."""
    prefixes: tuple[int, ...] = ()
    """Chained hashes of the prompt's text, one for each 256 bytes (`wire.openai`). Empty for
    strategies without affinity, and for prompts that are shorter."""
    prompt_chars: int = 0
    """Length of the prompt's text."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """What a strategy may know about the pods besides their groups. Read only."""

    loads: Mapping[str, PodLoad]
    """What this gateway has in flight, by pod uid. An idle pod has no row."""

    avoids: Callable[[str, str], bool] = lambda _prefill, _decode: False
    """Whether a prefill pod (uid) is to be named after the others for a decode pod (uid), because
    their handovers fail; see `pods.pairs`."""

    def load(self, pod: Endpoint) -> PodLoad:
        """The load of one pod, zero if it is idle."""
        return self.loads.get(pod.uid, IDLE)


class Strategy(Protocol):
    """Chooses the pods of one attempt."""

    def choose(
        self, request: RoutingRequest, groups: Sequence[Group], view: FleetView
    ) -> Route | None:
        """A route through one of the groups; None only when there is no group."""
        ...


@runtime_checkable
class LearningStrategy(Strategy, Protocol):
    """A strategy that is told what its choices led to."""

    def remember(self, request: RoutingRequest, route: Route) -> None:
        """The request is sent this way, which need not be the way that was chosen last: with a
        queue, a choice may be asked for again, or be replaced."""
        ...

    def learn(self, request: RoutingRequest, route: Route, *, cached_tokens: int) -> None:
        """The route's request was answered; its engine found so many prompt tokens in its cache."""
        ...


_LOOKED_AT = 16
"""Of up to sixteen pods all are compared, of more sixteen taken at random: the least loaded of them
is nearly the best of all, and a pick among a thousand pods costs the same. Ties are broken at
random, so that replicas of the gateway do not all choose the same pod."""
_BOUND = 1.25
"""A pod that is preferred for its cache gets up to this multiple of the mean load."""


def some_of(pods: Sequence[Endpoint], rng: random.Random) -> Sequence[Endpoint]:
    """All of a few pods, else sixteen different ones taken at random."""
    return pods if len(pods) <= _LOOKED_AT else rng.sample(pods, _LOOKED_AT)


def least_loaded_group(groups: Sequence[Group], view: FleetView, rng: random.Random) -> Group:
    """The group with the fewest sequences per pod; among idle ones each by its share of pods."""

    def pressure(group: Group) -> tuple[float, float]:
        heads = some_of(group.heads, rng)
        sequences = sum(view.load(pod).sequences for pod in heads) * len(group.heads) / len(heads)
        # The random part is weighted by the group's size.
        return sequences / group.size, -(rng.random() ** (1.0 / group.size))

    return groups[0] if len(groups) == 1 else min(groups, key=pressure)


def least_loaded_head(heads: Sequence[Endpoint], view: FleetView, rng: random.Random) -> Endpoint:
    """The head with the fewest sequences, then the fewest prompt tokens."""

    def load(pod: Endpoint) -> tuple[int, int, float]:
        has = view.load(pod)
        return has.sequences, has.prompt_tokens, rng.random()

    return min(some_of(heads, rng), key=load)


def most_sequences(heads: Sequence[Endpoint], view: FleetView, rng: random.Random) -> int:
    """Sequences that a head may have with a new one, so that none has over 1.25 times the mean."""
    looked_at = some_of(heads, rng)
    mean = sum(view.load(pod).sequences for pod in looked_at) / len(looked_at) + 1 / len(heads)
    return math.ceil(_BOUND * mean)


def most_prompt_tokens(
    prefills: Sequence[Endpoint], view: FleetView, rng: random.Random, own: int
) -> float:
    """Prompt tokens that may wait on a prefill pod before a prompt of `own` tokens."""
    looked_at = some_of(prefills, rng)
    waiting = sum(view.load(pod).prompt_tokens for pod in looked_at) / len(looked_at)
    return _BOUND * (waiting + own / len(prefills))


_POINTS = 32


def hash_of(data: bytes) -> int:
    """A 64-bit hash, the same in every process."""
    return int.from_bytes(blake2b(data, digest_size=8).digest())


class Ring:
    """Consistent hashing: every gateway orders the same pods in the same way for a key.

    Each pod has 32 points on a ring of 64-bit numbers. A key's order begins with the pod of the
    next point. A pod that comes or goes moves only the keys of its own points.
    """

    def __init__(self) -> None:
        self._pods: Sequence[Endpoint] = ()
        self._members: dict[str, Endpoint] = {}
        self._points: list[tuple[int, str]] = []
        """(point, pod uid), in order."""

    def update(self, pods: Sequence[Endpoint]) -> None:
        """Take these pods. Nothing is done for the same sequence; else only differences are."""
        if pods is self._pods:
            return
        self._pods, old = pods, self._members
        self._members = {pod.uid: pod for pod in pods}
        for uid in old.keys() - self._members.keys():
            for point in _points_of(uid):
                del self._points[bisect_left(self._points, point)]
        for uid in self._members.keys() - old.keys():
            for point in _points_of(uid):
                insort(self._points, point)

    def order(self, key: int) -> Iterator[Endpoint]:
        """Every pod once, in the order of this key."""
        points, seen = self._points, set[str]()
        first = bisect_left(points, (key, ""))
        for place in range(first, first + len(points)):
            uid = points[place % len(points)][1]
            if uid not in seen:
                seen.add(uid)
                yield self._members[uid]


def _points_of(uid: str) -> list[tuple[int, str]]:
    return [(hash_of(b"%d %b" % (number, uid.encode())), uid) for number in range(_POINTS)]


_CHUNK_BYTES = 256
"""Text of one prefix; see `wire.openai`."""
_MOST_PREFIXES = 1 << 16
"""Prefixes in the index: about 25 MiB, and the text of 4 million tokens."""
_PODS_PER_PREFIX = 4
_MOST_PODS = 4096
"""Pods of which something is known besides the index."""
_HOLDS_AT_LEAST = 8192
"""Tokens that every cache is taken to hold. A prefix can also be missing because the request that
computes it is still waiting."""
_GROWTH = 0.1
"""Of each token that comes. What a cache holds is forgotten slowly, or one wrong guess would last.
"""
_STILL_THERE = 0.5
"""An answer with this share of the expected tokens from the cache confirms the expectation."""


@dataclass(slots=True)
class _Cache:
    """What is known of one pod's prefix cache, in tokens."""

    computed: int = 0
    """Prompt tokens that came to the pod with requests of this gateway."""
    holds: float = math.inf
    """A prefix that was last used so many tokens ago, or more, is taken for evicted."""


class Hit(NamedTuple):
    """What a pod's cache has of a prompt."""

    tokens: int
    age: int
    """Tokens that came to the pod since it last used the end of the prefix."""


class Caches:
    """What this gateway takes the pods' prefix caches to hold.

    An index has, for each prefix of the prompts that were sent, the pods that have it. It is this
    gateway's own; others learn theirs from their own requests. What an engine has evicted is
    estimated from the tokens that came to the pod since it last used a prefix.
    `usage.prompt_tokens_details.cached_tokens` of an answer shows whether the prefix was still
    there, and so how much the cache of the pod that answered holds. A decode pod reports its own
    cache, not that of the prefill pod.
    """

    def __init__(self) -> None:
        self.index: OrderedDict[int, dict[str, int]] = OrderedDict()
        """Prefix → pod uid → its `computed` when it last used the prefix; the newest last."""
        self.by_pod: OrderedDict[str, _Cache] = OrderedDict()

    def hits(self, request: RoutingRequest) -> dict[str, Hit]:
        """The longest prefix of the prompt in each pod's cache, by pod uid."""
        found: dict[str, tuple[int, int]] = {}
        for depth, prefix in enumerate(request.prefixes):
            pods = self.index.get(prefix)
            if pods is None:
                break
            for uid, at in pods.items():
                cache = self.by_pod.get(uid)
                if cache is None:
                    continue
                age = cache.computed - at
                if found.get(uid, (0, 0))[0] == depth and age < cache.holds:
                    found[uid] = (depth + 1, age)
        text = max(request.prompt_chars, _CHUNK_BYTES * len(request.prefixes), _CHUNK_BYTES)
        per_chunk = request.prompt_tokens * _CHUNK_BYTES / text
        return {
            uid: Hit(min(int(depth * per_chunk), request.prompt_tokens - 1), age)
            for uid, (depth, age) in found.items()
        }

    def remember(self, request: RoutingRequest, uid: str, cached: int) -> None:
        """The pod, which is taken to have so many tokens of the prompt, will have all of it."""
        cache = self.by_pod.setdefault(uid, _Cache())
        self.by_pod.move_to_end(uid)
        if len(self.by_pod) > _MOST_PODS:
            self.by_pod.popitem(last=False)
        cache.computed += request.prompt_tokens - cached
        cache.holds += _GROWTH * (request.prompt_tokens - cached)
        index = self.index
        for prefix in request.prefixes:
            pods = index.setdefault(prefix, {})
            index.move_to_end(prefix)
            pods.pop(uid, None)
            pods[uid] = cache.computed
            if len(pods) > _PODS_PER_PREFIX:
                del pods[next(iter(pods))]
        while len(index) > _MOST_PREFIXES:
            index.popitem(last=False)

    def learn(self, uid: str, expected: Hit, cached_tokens: int) -> None:
        """A pod found so many tokens in its cache, where so many were expected."""
        cache = self.by_pod.get(uid)
        if cache is None or not expected.tokens:
            return
        if cached_tokens >= _STILL_THERE * expected.tokens:
            cache.holds = max(cache.holds, expected.age + 1)
        else:
            cache.holds = max(_HOLDS_AT_LEAST, min(cache.holds, expected.age))


class LeastLoad:
    """Chooses the pods with the least in flight.

    A group by sequences per pod, a prefill pod by outstanding prompt tokens, a head by sequences.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(
        self,
        request: RoutingRequest,  # noqa: ARG002
        groups: Sequence[Group],
        view: FleetView,
    ) -> Route | None:
        """See the class."""
        if not groups:
            return None
        rng, load = self._rng, view.load
        group = least_loaded_group(groups, view, rng)
        head = least_loaded_head(group.heads, view, rng)

        def as_prefill(pod: Endpoint) -> tuple[bool, int, int, float]:
            has, avoided = load(pod), view.avoids(pod.uid, head.uid)
            return avoided, has.prompt_tokens, has.sequences, rng.random()

        prefills = sorted(some_of(group.prefills, rng), key=as_prefill)
        return Route(head, tuple(prefills[:PREFILL_CANDIDATES]))


class RoundRobin:
    """Takes heads in turn, over all groups, and prefills of the head's group in turn.

    It starts at a random pod, so that replicas of the gateway differ.
    """

    def __init__(self, rng: random.Random) -> None:
        self._turn = rng.randrange(1024)

    def choose(
        self,
        request: RoutingRequest,  # noqa: ARG002
        groups: Sequence[Group],
        view: FleetView,
    ) -> Route | None:
        """See the class."""
        number = sum(len(group.heads) for group in groups)
        if not number:
            return None
        self._turn += 1
        turn = self._turn % number
        for chosen in groups:
            if turn < len(chosen.heads):
                break
            turn -= len(chosen.heads)
        prefills = chosen.prefills
        first = self._turn % len(prefills) if prefills else 0
        numbers = range(first, first + min(len(prefills), PREFILL_CANDIDATES))
        head = chosen.heads[turn]
        following = (prefills[number % len(prefills)] for number in numbers)
        return Route(head, tuple(sorted(following, key=lambda p: view.avoids(p.uid, head.uid))))


_CHUNKS = 4
"""Of 256 bytes. Longer keys would tell prompts apart that share a long prefix."""
_MOST_RINGS = 16
"""One for colocated pods, and one for each revision of pairs; more are made anew."""


class PrefixHash:
    """Sends prompts that begin alike to one pod, unless it has 1.25 times the mean load.

    The pod that computes a prompt follows from a hash of the prompt's first 1,024 bytes, or of
    OpenAI's `prompt_cache_key`, on a ring of the pods: consistent hashing with bounded loads
    (Mirrokni et al. 2018). Nothing is stored or shared, so all gateways choose alike. In pairs this
    is the prefill pod; the decode pod is the least loaded.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._rings: dict[tuple[str, str], Ring] = {}

    def choose(
        self, request: RoutingRequest, groups: Sequence[Group], view: FleetView
    ) -> Route | None:
        """See the class."""
        if not groups:
            return None
        rng, key = self._rng, _key(request)
        group = least_loaded_group(groups, view, rng)
        if not group.prefills:
            most = most_sequences(group.heads, view, rng)
            heads = self._order(group.heads, key, lambda pod: view.load(pod).sequences < most)
            return Route(heads[0])
        head = least_loaded_head(group.heads, view, rng)
        tokens = most_prompt_tokens(group.prefills, view, rng, request.prompt_tokens)

        def takes(pod: Endpoint) -> bool:
            return view.load(pod).prompt_tokens <= tokens and not view.avoids(pod.uid, head.uid)

        return Route(head, tuple(self._order(group.prefills, key, takes)))

    def _order(
        self, pods: Sequence[Endpoint], key: int, takes: Callable[[Endpoint], bool]
    ) -> list[Endpoint]:
        """The first pod of the key that takes the request, then its next ones."""
        name = (pods[0].role, pods[0].revision if pods[0].role != "colocated" else "")
        if name not in self._rings and len(self._rings) >= _MOST_RINGS:
            self._rings.clear()
        ring = self._rings.setdefault(name, Ring())
        ring.update(pods)
        first = next((pod for pod in ring.order(key) if takes(pod)), None)
        others = (pod for pod in ring.order(key) if first is None or pod.uid != first.uid)
        found = [] if first is None else [first]
        return [*found, *islice(others, PREFILL_CANDIDATES - len(found))]


def _key(request: RoutingRequest) -> int:
    if request.cache_key is not None:
        return hash_of(request.cache_key.encode(errors="surrogatepass"))
    if request.prefixes:
        return request.prefixes[:_CHUNKS][-1]
    return hash_of(request.prompt_start)


_NOTHING = Hit(0, 0)


class _Members:
    """Some pods by uid, made anew only for another sequence."""

    def __init__(self) -> None:
        self._pods: Sequence[Endpoint] = ()
        self._by_uid: dict[str, Endpoint] = {}

    def candidates(
        self, pods: Sequence[Endpoint], hits: Mapping[str, Hit], rng: random.Random
    ) -> list[Endpoint]:
        """Some of the pods, and those with a part of the prompt in their cache."""
        if pods is not self._pods:
            self._pods, self._by_uid = pods, {pod.uid: pod for pod in pods}
        looked_at = {pod.uid: pod for pod in some_of(pods, rng)}
        looked_at |= {uid: self._by_uid[uid] for uid in hits if uid in self._by_uid}
        return list(looked_at.values())


class KvAware:
    """The pod on which the first token is expected first, its prefix cache counted in.

    The expected time of a pod is

        (prompt tokens that wait there + the prompt's own - those in its cache) / tokens per second

    and the pace is the same for all, so tokens are compared. What is in a cache is this gateway's
    own guess (`Caches`), from the prompts that it sent. Colocated pods have at most 1.25 times the
    mean of sequences.

    In pairs this is the prefill pod. The decode pod is the one with most of the prompt in its own
    cache, of those with at most 1.25 times the mean of sequences: less KV travels, and the decode
    pod may compute a prompt of which little is missing.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.caches = Caches()
        """Of pods that compute prompts."""
        self.decode_caches = Caches()
        """Of the decode pods of pairs."""
        self._prefillers, self._decodes = _Members(), _Members()

    def choose(
        self, request: RoutingRequest, groups: Sequence[Group], view: FleetView
    ) -> Route | None:
        """See the class."""
        if not groups:
            return None
        rng, hits = self._rng, self.caches.hits(request)
        group = least_loaded_group(groups, view, rng)
        pods = self._prefillers.candidates(group.prefills or group.heads, hits, rng)

        def expected(pod: Endpoint) -> tuple[int, int, float]:
            load, hit = view.load(pod), hits.get(pod.uid, _NOTHING)
            return load.prompt_tokens - hit.tokens, load.sequences, rng.random()

        if not group.prefills:
            most = most_sequences(group.heads, view, rng)
            head = min(pods, key=lambda pod: (view.load(pod).sequences >= most, *expected(pod)))
            return Route(head, (), *hits.get(head.uid, _NOTHING))
        head, own = self._decode_pod(request, group, view)
        pods.sort(key=lambda pod: (view.avoids(pod.uid, head.uid), *expected(pod)))
        hit = hits.get(pods[0].uid, _NOTHING)
        return Route(head, tuple(pods[:PREFILL_CANDIDATES]), *hit, *own)

    def remember(self, request: RoutingRequest, route: Route) -> None:
        """The pod that computes the prompt will have all of it in its cache, and so will the one
        that decodes."""
        self.caches.remember(request, route.prefiller.uid, route.cached_tokens)
        if route.prefills:
            self.decode_caches.remember(request, route.head.uid, route.head_cached_tokens)

    def learn(self, request: RoutingRequest, route: Route, *, cached_tokens: int) -> None:  # noqa: ARG002
        """Correct how much the cache of the head holds: it is the one that answers."""
        if route.prefills:
            expected = Hit(route.head_cached_tokens, route.head_cache_age)
            self.decode_caches.learn(route.head.uid, expected, cached_tokens)
        else:
            expected = Hit(route.cached_tokens, route.cache_age)
            self.caches.learn(route.head.uid, expected, cached_tokens)

    def _decode_pod(
        self, request: RoutingRequest, group: Group, view: FleetView
    ) -> tuple[Endpoint, Hit]:
        """The pod, and what it has of the prompt."""
        rng, hits = self._rng, self.decode_caches.hits(request)
        most = most_sequences(group.heads, view, rng)

        def order(pod: Endpoint) -> tuple[bool, int, int, int, float]:
            load, hit = view.load(pod), hits.get(pod.uid, _NOTHING)
            full = load.sequences >= most
            return full, -hit.tokens, load.sequences, load.prompt_tokens, rng.random()

        head = min(self._decodes.candidates(group.heads, hits, rng), key=order)
        return head, hits.get(head.uid, _NOTHING)


STRATEGIES: dict[str, Callable[[random.Random], Strategy]] = {
    "leastLoad": LeastLoad,
    "roundRobin": RoundRobin,
    "prefixHash": PrefixHash,
    "kvAware": KvAware,
}
"""By the names that `spec.routing.strategy` of the API has; a test compares."""
AFFINE = frozenset(("prefixHash", "kvAware"))
"""Strategies that read `RoutingRequest.prefixes`, which cost about 2 µs for each 256 bytes."""
