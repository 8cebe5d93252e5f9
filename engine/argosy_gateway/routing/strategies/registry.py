"""The strategies by name. `spec.routing.strategy` of the API offers the same; a test compares."""

import random
from collections.abc import Callable

from argosy_gateway.routing.strategies.kv_aware import KvAware
from argosy_gateway.routing.strategies.least_load import LeastLoad
from argosy_gateway.routing.strategies.prefix_hash import PrefixHash
from argosy_gateway.routing.strategies.round_robin import RoundRobin
from argosy_gateway.routing.strategies.strategy import Strategy

__all__ = ["AFFINE", "STRATEGIES"]

STRATEGIES: dict[str, Callable[[random.Random], Strategy]] = {
    "leastLoad": LeastLoad,
    "roundRobin": RoundRobin,
    "prefixHash": PrefixHash,
    "kvAware": KvAware,
}
AFFINE = frozenset(("prefixHash", "kvAware"))
"""Strategies that read `RoutingRequest.prefixes`, which cost about 2 µs for each 256 bytes."""
