"""What this gateway takes the pods' prefix caches to hold. Pure.

An index has, for each prefix of the prompts that were sent, the pods that have it. It is this
gateway's own; others learn theirs from their own requests. What an engine has evicted is estimated
from the tokens that came to the pod since it last used a prefix.
`usage.prompt_tokens_details.cached_tokens` of an answer shows whether the prefix was still there,
and so how much the cache of the pod that answered holds. A decode pod reports its own cache, not
that of the prefill pod.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from argosy_gateway.routing.strategies.strategy import RoutingRequest

__all__ = ["Caches", "Hit"]

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
    """The caches of some pods."""

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
