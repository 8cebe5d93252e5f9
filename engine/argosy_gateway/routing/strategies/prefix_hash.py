"""`prefixHash`: prompts that begin alike go to one pod, unless it has more than its share of work.

The pod that computes a prompt follows from a hash of the prompt's first 1,024 bytes, or of OpenAI's
`prompt_cache_key`, on a ring of the pods: consistent hashing with bounded loads (Mirrokni et al.
2018). Nothing is stored or shared, so all gateways choose alike. In pairs this is the prefill pod;
the decode pod is the least loaded.
"""

import random
from collections.abc import Callable, Sequence
from itertools import islice

from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.routing.groups import Group, Route
from argosy_gateway.routing.strategies.loads import (
    least_loaded_group,
    least_loaded_head,
    most_prompt_tokens,
    most_sequences,
)
from argosy_gateway.routing.strategies.ring import Ring, hash_of
from argosy_gateway.routing.strategies.strategy import (
    PREFILL_CANDIDATES,
    FleetView,
    RoutingRequest,
)

__all__ = ["PrefixHash"]

_CHUNKS = 4
"""Of 256 bytes. Longer keys would tell prompts apart that share a long prefix."""
_MOST_RINGS = 16
"""One for colocated pods, and one for each revision of pairs; more are made anew."""


class PrefixHash:
    """The first pod of the key's order that is not over 1.25 times the mean load."""

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
