"""`leastLoad`: the pod with the least in flight. Pure but for the random source that it is given.

Of up to sixteen pods it looks at all, of more at sixteen taken at random: the least loaded of so
many is nearly the best of all, and a pick among a thousand pods costs the same. Ties are broken at
random, so that replicas of the gateway do not all choose the same pod.
"""

import random
from collections.abc import Sequence

from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.routing.groups import Group, Route
from argosy_gateway.routing.strategies.strategy import (
    PREFILL_CANDIDATES,
    FleetView,
    RoutingRequest,
    some_of,
)

__all__ = ["LeastLoad"]


class LeastLoad:
    """Group by sequences per pod, prefill by outstanding prompt tokens, head by sequences."""

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

        def pressure(group: Group) -> tuple[float, float]:
            # The random part is weighted: among idle groups each is chosen by its share of pods.
            heads = some_of(group.heads, rng)
            sequences = sum(load(pod).sequences for pod in heads) * len(group.heads) / len(heads)
            return sequences / group.size, rng.random() ** (1.0 / group.size) * -1.0

        def as_head(pod: Endpoint) -> tuple[int, int, float]:
            return load(pod).sequences, load(pod).prompt_tokens, rng.random()

        def as_prefill(pod: Endpoint) -> tuple[bool, int, int, float]:
            avoided = view.avoids(pod.uid, head.uid)
            return avoided, load(pod).prompt_tokens, load(pod).sequences, rng.random()

        chosen = groups[0] if len(groups) == 1 else min(groups, key=pressure)
        head = min(some_of(chosen.heads, rng), key=as_head)
        prefills = sorted(some_of(chosen.prefills, rng), key=as_prefill)
        return Route(head, tuple(prefills[:PREFILL_CANDIDATES]))
