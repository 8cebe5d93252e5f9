"""A GPU budget shared by prefill and decode: the replicas with the most goodput that fit.

Greedy: the step with the most predicted attainment per GPU, until none fits. The joint step of one
replica each is tried as well, because the product of both attainments stays flat when one pool
grows while the other is the bottleneck.
"""

from dataclasses import dataclass
from itertools import combinations
from math import prod

from argosy_operator.core.scaling.size.model import Model

FLAT = 1e-9
"""A gain below this is none; also the least load and cost that is divided by."""
SERVED = 0.01
"""Weight of the share of load that is served at all: it decides while both attainments are 0."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One role's claim on the budget."""

    minimum: int
    """Replicas that it keeps even over the budget."""
    wanted: int
    """Replicas that it would have without a budget."""
    gpus: int
    """GPUs of one replica."""
    model: Model
    rate: float
    """Planned requests per second."""


def gpus(pools: tuple[Pool, ...], replicas: tuple[int, ...]) -> int:
    """GPUs that so many replicas of each pool take."""
    return sum(pool.gpus * n for pool, n in zip(pools, replicas, strict=True))


def goodput(pools: tuple[Pool, ...], replicas: tuple[int, ...]) -> float:
    """Predicted share of requests within both limits, plus a little for load served at all."""
    pairs = tuple(zip(pools, replicas, strict=True))
    joint = prod(pool.model.attainment(n, pool.rate) if n else 0.0 for pool, n in pairs)
    served = sum(min(n / max(pool.model.load(pool.rate), FLAT), 1.0) for pool, n in pairs)
    return joint + SERVED * served


def fit(pools: tuple[Pool, ...], budget: int) -> tuple[int, ...]:
    """Replicas between minimum and wanted whose GPUs fit `budget`; minimums are kept over it."""
    wanted = tuple(pool.wanted for pool in pools)
    if gpus(pools, wanted) <= budget:
        return wanted
    have = tuple(min(pool.minimum, pool.wanted) for pool in pools)
    steps = [step for n in range(1, len(pools) + 1) for step in combinations(range(len(pools)), n)]
    while True:
        value = goodput(pools, have)
        best, best_gain = have, FLAT
        for step in steps:
            after = tuple(n + (i in step) for i, n in enumerate(have))
            if any(n > pool.wanted for n, pool in zip(after, pools, strict=True)):
                continue
            if gpus(pools, after) > budget:
                continue
            cost = gpus(pools, after) - gpus(pools, have)
            gain = (goodput(pools, after) - value) / max(cost, FLAT)
            if gain > best_gain:
                best, best_gain = after, gain
        if best == have:
            return have
        have = best
