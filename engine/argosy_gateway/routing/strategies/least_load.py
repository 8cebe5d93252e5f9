"""`leastLoad`: the pod with the least in flight. Pure but for the given random source."""

import random
from collections.abc import Sequence

from argosy_gateway.pods.endpoints import Endpoint
from argosy_gateway.routing.groups import Group, Route
from argosy_gateway.routing.strategies.loads import least_loaded_group, least_loaded_head, some_of
from argosy_gateway.routing.strategies.strategy import (
    PREFILL_CANDIDATES,
    FleetView,
    RoutingRequest,
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
        group = least_loaded_group(groups, view, rng)
        head = least_loaded_head(group.heads, view, rng)

        def as_prefill(pod: Endpoint) -> tuple[bool, int, int, float]:
            has, avoided = load(pod), view.avoids(pod.uid, head.uid)
            return avoided, has.prompt_tokens, has.sequences, rng.random()

        prefills = sorted(some_of(group.prefills, rng), key=as_prefill)
        return Route(head, tuple(prefills[:PREFILL_CANDIDATES]))
