"""`kvAware`: the pod on which the first token is expected first, its prefix cache counted in.

The expected time of a pod is

    (prompt tokens that wait there + the prompt's own - those in its cache) / tokens per second

and the pace is the same for all, so tokens are compared. What is in a cache is this gateway's own
guess (`caches`), from the prompts that it sent.

In pairs this is the prefill pod. The decode pod is the one with most of the prompt in its own
cache, of those with at most 1.25 times the mean of sequences: less KV travels, and a prompt of
which little is missing may be computed there (`argosy_engine.core.costs.short_prompts`).
"""

import random
from collections.abc import Mapping, Sequence

from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.routing.groups import Group, Route
from argosy_gateway.routing.strategies.caches import Caches, Hit
from argosy_gateway.routing.strategies.loads import (
    least_loaded_group,
    most_sequences,
    some_of,
)
from argosy_gateway.routing.strategies.strategy import (
    PREFILL_CANDIDATES,
    FleetView,
    RoutingRequest,
)

__all__ = ["KvAware"]

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
    """See the module. Colocated pods, too, have at most 1.25 times the mean of sequences."""

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

    def sent(self, request: RoutingRequest, route: Route) -> None:
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
