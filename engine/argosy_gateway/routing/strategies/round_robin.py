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
