"""The strategies by name. `spec.routing.strategy` of the API offers the same; a test compares."""

import random
from collections.abc import Callable

from argosy_gateway.routing.strategies.least_load import LeastLoad
from argosy_gateway.routing.strategies.round_robin import RoundRobin
from argosy_gateway.routing.strategies.strategy import Strategy

__all__ = ["STRATEGIES"]

STRATEGIES: dict[str, Callable[[random.Random], Strategy]] = {
    "leastLoad": LeastLoad,
    "roundRobin": RoundRobin,
}
