"""A GPU budget shared by prefill and decode: the replicas with the most goodput that fit.

Greedy: the step with the most predicted attainment per GPU, until none fits. The joint step of one
replica each is tried as well, because the product of both attainments stays flat when one pool
grows while the other is the bottleneck.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from math import prod
from typing import TypeVar

from argosy_law.size.model import Model

T = TypeVar("T")
FLAT = 1e-9
"""A gain below this is none; also the least load and cost that is divided by."""
SERVED = 0.01
"""Weight of the share of load that is served at all: it decides while both attainments are 0."""

IN_TIME, HALVINGS = 0.95, 5
"""A queue lets through what is served in time to this share; found to 1/32 of the load."""
POINTS = 24
"""Most points of `worth`: the record of a decision must fit into status."""


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
    queued: bool = False
    """Whether the gateway keeps from the pool what it could not serve in time (order by deadline).
    """


def gpus(pools: tuple[Pool, ...], replicas: tuple[int, ...]) -> int:
    """GPUs that so many replicas of each pool take."""
    return sum(pool.gpus * n for pool, n in zip(pools, replicas, strict=True))


def goodput(pools: tuple[Pool, ...], replicas: tuple[int, ...]) -> float:
    """Predicted share of requests within both limits, plus a little for load served at all."""
    pairs = tuple(zip(pools, replicas, strict=True))
    return prod(share_in_time(*pair) for pair in pairs) + sum(_served(*pair) for pair in pairs)


def worth(pools: tuple[Pool, ...], rate: float) -> tuple[tuple[int, float], ...]:
    """(GPUs, requests per second within both limits of `rate`), from the minimums to what is
    wanted: for each number of GPUs the best split between the pools, where it gains by more GPUs.

    At most `POINTS`, so of a large fleet not every number.
    """
    if not pools:
        return ()
    counts = [_thinned(range(min(pool.minimum, pool.wanted), pool.wanted + 1)) for pool in pools]
    met = [
        {n: share_in_time(pool, n) for n in numbers}
        for pool, numbers in zip(pools, counts, strict=True)
    ]
    best: dict[int, float] = {}
    for replicas in product(*counts):
        good = prod(of[n] for of, n in zip(met, replicas, strict=True))
        at = gpus(pools, replicas)
        best[at] = max(best.get(at, 0.0), rate * good)
    points: list[tuple[int, float]] = []
    for at in sorted(best):
        if not points or best[at] > points[-1][1] + FLAT:
            points.append((at, float(f"{best[at]:.6g}")))
    return tuple(_thinned(points))


def _thinned(items: Sequence[T]) -> list[T]:
    """At most `POINTS` of them, evenly, with the first and the last."""
    last = len(items) - 1
    if last < POINTS:
        return list(items)
    return [items[i * last // (POINTS - 1)] for i in range(POINTS)]


def _served(pool: Pool, replicas: int) -> float:
    return SERVED * min(replicas / max(pool.model.load(pool.rate), FLAT), 1.0)


def share_in_time(pool: Pool, replicas: int) -> float:
    """Share of the requests that the pool serves within its limit.

    A pool that gets more than it can serve is late for all. Behind a queue by deadline it gets as
    many as it serves in time, and the others are late: about the largest part of the load of which
    it serves nearly all in time.
    """
    if not replicas:
        return 0.0
    best = pool.model.attainment(replicas, pool.rate)
    enough = IN_TIME * pool.model.reachable
    if not pool.queued or best >= enough:
        return best
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        part = (low + high) / 2
        attained = pool.model.attainment(replicas, part * pool.rate)
        best = max(best, part * attained)
        low, high = (part, high) if attained >= enough else (low, part)
    return best


def fit(pools: tuple[Pool, ...], budget: int) -> tuple[int, ...]:
    """Replicas between minimum and wanted whose GPUs fit `budget`; minimums are kept over it."""
    wanted = tuple(pool.wanted for pool in pools)
    if gpus(pools, wanted) <= budget:
        return wanted
    have = tuple(min(pool.minimum, pool.wanted) for pool in pools)
    in_time = cache(lambda i, n: share_in_time(pools[i], n))

    def gained(replicas: tuple[int, ...]) -> float:
        """`goodput`, with what was found for each pool remembered."""
        served = sum(_served(pool, n) for pool, n in zip(pools, replicas, strict=True))
        return prod(in_time(i, n) for i, n in enumerate(replicas)) + served

    steps = [step for n in range(1, len(pools) + 1) for step in combinations(range(len(pools)), n)]
    while True:
        value = gained(have)
        best, best_gain = have, FLAT
        for step in steps:
            after = tuple(n + (i in step) for i, n in enumerate(have))
            if any(n > pool.wanted for n, pool in zip(after, pools, strict=True)):
                continue
            if gpus(pools, after) > budget:
                continue
            cost = gpus(pools, after) - gpus(pools, have)
            gain = (gained(after) - value) / max(cost, FLAT)
            if gain > best_gain:
                best, best_gain = after, gain
        if best == have:
            return have
        have = best
