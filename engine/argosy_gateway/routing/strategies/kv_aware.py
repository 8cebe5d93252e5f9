"""`kvAware`: the pod on which the first token is expected first, its prefix cache counted in.

An index has, for each prefix of the prompts that were sent, the pods that computed it. The expected
time of a pod is

    (prompt tokens that wait there + the prompt's own - those in its cache) / tokens per second

and the pace is the same for all, so tokens are compared. The index is this gateway's own; others
learn theirs from their own requests.

What an engine has evicted is estimated from the tokens that the pod has computed since it last
used a prefix. `usage.prompt_tokens_details.cached_tokens` of an answer shows whether the prefix was
still there, and so how much the pod's cache holds. Only colocated pods show that: a decode pod
reports its own cache, not that of the prefill pod.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.routing.groups import Group, Route
from argosy_gateway.routing.strategies.loads import (
    least_loaded_group,
    least_loaded_head,
    most_sequences,
    some_of,
)
from argosy_gateway.routing.strategies.strategy import (
    PREFILL_CANDIDATES,
    FleetView,
    RoutingRequest,
)

__all__ = ["KvAware"]

_CHUNK_BYTES = 256
"""Text of one prefix; see `wire.prefixes`."""
_MOST_PREFIXES = 1 << 16
"""Prefixes in the index: about 25 MiB, and the text of 4 million tokens."""
_PODS_PER_PREFIX = 4
_MOST_PODS = 4096
"""Pods of which something is known besides the index."""
_HOLDS_AT_LEAST = 8192
"""Tokens that every cache is taken to hold. A prefix can also be missing because the request that
computes it is still waiting."""
_GROWTH = 0.1
"""Of each computed token. What a cache holds is forgotten slowly, or one wrong guess would last."""
_STILL_THERE = 0.5
"""An answer with this share of the expected tokens from the cache confirms the expectation."""


@dataclass(slots=True)
class _Cache:
    """What is known of one pod's prefix cache, in tokens."""

    computed: int = 0
    """Prompt tokens that this gateway had the pod compute."""
    holds: float = math.inf
    """A prefix that was last used so many computed tokens ago, or more, is taken for evicted."""


@dataclass(frozen=True, slots=True)
class _Hit:
    tokens: int
    age: int
    """Tokens that the pod has computed since it last used the end of the prefix."""


class KvAware:
    """Prefill pods, or colocated ones of at most 1.25 times the mean of sequences, by tokens."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._index: OrderedDict[int, dict[str, int]] = OrderedDict()
        """Prefix → pod uid → its `computed` when it last used the prefix; the newest last."""
        self._caches: OrderedDict[str, _Cache] = OrderedDict()
        self._pods: tuple[Sequence[Endpoint], dict[str, Endpoint]] = ((), {})
        """The last pods that were chosen from, and the same by uid."""

    def choose(
        self, request: RoutingRequest, groups: Sequence[Group], view: FleetView
    ) -> Route | None:
        """See the class."""
        if not groups:
            return None
        rng, hits = self._rng, self._hits(request)
        group = least_loaded_group(groups, view, rng)
        pods = self._candidates(group.prefills or group.heads, hits)

        def expected(pod: Endpoint) -> tuple[int, int, float]:
            load, hit = view.load(pod), hits.get(pod.uid)
            return load.prompt_tokens - (hit.tokens if hit else 0), load.sequences, rng.random()

        if group.prefills:
            head = least_loaded_head(group.heads, view, rng)
            pods.sort(key=lambda pod: (view.avoids(pod.uid, head.uid), *expected(pod)))
            prefills = tuple(pods[:PREFILL_CANDIDATES])
        else:
            most = most_sequences(group.heads, view, rng)
            head = min(pods, key=lambda pod: (view.load(pod).sequences >= most, *expected(pod)))
            prefills = ()
        chosen = prefills[0] if prefills else head
        hit = hits.get(chosen.uid, _Hit(0, 0))
        return Route(head, prefills, hit.tokens, hit.age)

    def sent(self, request: RoutingRequest, route: Route) -> None:
        """The pod that computes the prompt will have all of it in its cache."""
        self._remember(request, route.prefiller.uid, route.cached_tokens)

    def learn(self, request: RoutingRequest, route: Route, *, cached_tokens: int) -> None:  # noqa: ARG002
        """Correct how much the pod's cache holds."""
        cache = self._caches.get(route.head.uid)
        if cache is None or route.prefills or not route.cached_tokens:
            return
        if cached_tokens >= _STILL_THERE * route.cached_tokens:
            cache.holds = max(cache.holds, route.cache_age + 1)
        else:
            cache.holds = max(_HOLDS_AT_LEAST, min(cache.holds, route.cache_age))

    def _hits(self, request: RoutingRequest) -> dict[str, _Hit]:
        """The longest prefix of the prompt in each pod's cache, by pod uid."""
        found: dict[str, tuple[int, int]] = {}
        for depth, prefix in enumerate(request.prefixes):
            pods = self._index.get(prefix)
            if pods is None:
                break
            for uid, at in pods.items():
                cache = self._caches.get(uid)
                if cache is None:
                    continue
                age = cache.computed - at
                if found.get(uid, (0, 0))[0] == depth and age < cache.holds:
                    found[uid] = (depth + 1, age)
        text = max(request.prompt_chars, _CHUNK_BYTES * len(request.prefixes), _CHUNK_BYTES)
        per_chunk = request.prompt_tokens * _CHUNK_BYTES / text
        return {
            uid: _Hit(min(int(depth * per_chunk), request.prompt_tokens - 1), age)
            for uid, (depth, age) in found.items()
        }

    def _candidates(self, pods: Sequence[Endpoint], hits: dict[str, _Hit]) -> list[Endpoint]:
        """Some pods, and those with a part of the prompt in their cache."""
        if pods is not self._pods[0]:
            self._pods = (pods, {pod.uid: pod for pod in pods})
        by_uid = self._pods[1]
        looked_at = {pod.uid: pod for pod in some_of(pods, self._rng)}
        looked_at |= {uid: by_uid[uid] for uid in hits if uid in by_uid}
        return list(looked_at.values())

    def _remember(self, request: RoutingRequest, uid: str, cached: int) -> None:
        """The pod will have the whole prompt in its cache."""
        cache = self._caches.setdefault(uid, _Cache())
        self._caches.move_to_end(uid)
        if len(self._caches) > _MOST_PODS:
            self._caches.popitem(last=False)
        cache.computed += request.prompt_tokens - cached
        cache.holds += _GROWTH * (request.prompt_tokens - cached)
        index = self._index
        for prefix in request.prefixes:
            pods = index.setdefault(prefix, {})
            index.move_to_end(prefix)
            pods.pop(uid, None)
            pods[uid] = cache.computed
            if len(pods) > _PODS_PER_PREFIX:
                del pods[next(iter(pods))]
        while len(index) > _MOST_PREFIXES:
            index.popitem(last=False)
