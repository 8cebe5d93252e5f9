"""`roundRobin`: one pod after the other. Starts at a random one, so that replicas differ."""

import random
from collections.abc import Sequence

from argosy_gateway.routing.groups import Group, Route
from argosy_gateway.routing.strategies.strategy import (
    PREFILL_CANDIDATES,
    FleetView,
    RoutingRequest,
)

__all__ = ["RoundRobin"]


class RoundRobin:
    """Heads in turn, over all groups; prefills of the head's group in turn."""

    def __init__(self, rng: random.Random) -> None:
        self._turn = rng.randrange(1024)

    def choose(
        self,
        request: RoutingRequest,  # noqa: ARG002
        groups: Sequence[Group],
        view: FleetView,  # noqa: ARG002
    ) -> Route | None:
        """See the class."""
        heads = [(group, head) for group in groups for head in group.heads]
        if not heads:
            return None
        self._turn += 1
        chosen, head = heads[self._turn % len(heads)]
        prefills = chosen.prefills
        first = self._turn % len(prefills) if prefills else 0
        return Route(head, (prefills[first:] + prefills[:first])[:PREFILL_CANDIDATES])
