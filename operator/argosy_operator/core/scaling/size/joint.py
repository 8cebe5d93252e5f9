"""Replicas of all roles together: the fewest GPUs with which requests meet both limits.

A request must meet TTFT and TPOT, so that the goal is on the product of what the pools attain. A
role whose next replica costs less for what it gains takes more of the goal. `decide` calls it with
the pools' models.
"""

from dataclasses import dataclass
from functools import cache
from math import prod, sqrt

from argosy_operator.core.scaling.size.model import (
    BELOW_REACHABLE,
    MOST_REPLICAS,
    Model,
    smallest,
)

WORSE = 2
"""The search ends after so many steps in one direction that were no better: costs are about convex,
and whole replicas make them uneven by one."""


@dataclass(frozen=True, slots=True)
class Demanded:
    """One role's load."""

    model: Model
    rate: float
    """Planned requests per second."""
    gpus: int
    """GPUs of one replica."""


def fewest(pools: tuple[Demanded, ...], goal: float) -> tuple[int, ...]:
    """Replicas of each pool, with the fewest GPUs, whose attainments have the product `goal`.

    The goal is lowered to just below what any number could reach. Where a pool carries its load
    only because no request meets its limit, each pool is sized for the goal alone.
    """
    alone = tuple(smallest(pool.model, pool.rate, goal) for pool in pools)
    if len(pools) != 2 or any(pool.rate <= 0 or pool.model.reachable <= 0 for pool in pools):
        return alone
    reach = [_reachable(pool) for pool in pools]
    wanted = min(goal, prod(reach) - BELOW_REACHABLE)
    if wanted <= 0:
        return alone
    return _Search(pools, wanted, (reach[0], reach[1])).best()


def _reachable(pool: Demanded) -> float:
    """What any number of replicas attains."""
    return min(pool.model.reachable, pool.model.attainment(1, pool.rate * 1e-9))


class _Search:
    """Two pools: from an even split of the goal, more of one and fewer of the other."""

    def __init__(
        self, pools: tuple[Demanded, ...], wanted: float, reach: tuple[float, float]
    ) -> None:
        self.one, self.other = pools
        self.wanted, self.reach = wanted, reach
        self._first = cache(lambda n: self.one.model.attainment(n, self.one.rate))
        self._second = cache(lambda n: self.other.model.attainment(n, self.other.rate))

    def best(self) -> tuple[int, int]:
        share = min(max(sqrt(self.wanted), self.wanted / self.reach[1]), self.reach[0])
        first = smallest(self.one.model, self.one.rate, share)
        while not self._may_do(first) and first < MOST_REPLICAS:
            first += 1
        left = self.wanted / max(self._first(first), self.wanted)
        second = smallest(self.other.model, self.other.rate, left)
        start = (first, self._enough(first, second, MOST_REPLICAS))
        return min(self._walk(start, 1), self._walk(start, -1), key=self._cost)

    def _cost(self, fleet: tuple[int, int]) -> int:
        return fleet[0] * self.one.gpus + fleet[1] * self.other.gpus

    def _met(self, first: int, second: int) -> bool:
        return self._first(first) * self._second(second) >= self.wanted

    def _may_do(self, first: int) -> bool:
        """Whether a large enough second pool meets the goal beside `first`."""
        return self._first(first) * (self.reach[1] - BELOW_REACHABLE / 2) >= self.wanted

    def _enough(self, first: int, second: int, most: int) -> int:
        """The fewest of the second pool beside `first`, looked for from `second` to `most`."""
        while second <= most and not self._met(first, second):
            second += 1
        while second > 1 and self._met(first, second - 1):
            second -= 1
        return second

    def _walk(self, start: tuple[int, int], step: int) -> tuple[int, int]:
        """The cheapest fleet with more (1) or fewer (-1) of the first pool than the start."""
        best, (first, second), worse = start, start, 0
        while worse < WORSE and first + step >= 1 and self._may_do(first + step):
            first += step
            left = self._cost(best) - first * self.one.gpus
            most = max(second, left // max(self.other.gpus, 1))
            second = self._enough(first, second, most)
            if second > most:
                break
            if self._cost((first, second)) < self._cost(best):
                best, worse = (first, second), 0
            else:
                worse += 1
        return best
