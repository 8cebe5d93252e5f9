"""Replicas of all roles together: the cheapest with which requests meet both limits.

A request must meet TTFT and TPOT, so that the goal is on the product of what the pools attain. A
role whose next replica costs less for what it gains takes more of the goal. `decide` calls it with
the pools' models.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import prod, sqrt

from argosy_law.size.colocated import ColocatedModel
from argosy_law.size.model import (
    BELOW_REACHABLE,
    MOST_REPLICAS,
    Model,
    smallest,
)
from argosy_law.size.prefill import PrefillModel

WORSE = 2
"""The search ends after so many steps in one direction that were no better: costs are about convex,
and whole replicas make them uneven by one."""


@dataclass(frozen=True, slots=True)
class Demanded:
    """One role's load."""

    model: Model
    rate: float
    """Planned requests per second."""
    cost: float
    """Of one replica: its GPUs, each in those of the cheapest type."""


def fewest(pools: tuple[Demanded, ...], goal: float) -> tuple[int, ...]:
    """Replicas of each pool, at the lowest cost, whose attainments have the product `goal`.

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


def share_held(prefill: PrefillModel, rate: float, goal: float, until_s: float) -> float:
    """Share of the requests within the TTFT limit whose prompt is computed within `until_s`, with
    the prefill replicas that `goal` needs: they have time left for a pause before the next token.
    """
    replicas = smallest(prefill, rate, sqrt(goal))
    early = replace(prefill, limit_s=max(min(until_s, prefill.limit_s), 0.0))
    whole = prefill.attainment(replicas, rate)
    return min(early.attainment(replicas, rate) / whole, 1.0) if whole > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Reach:
    """Shares of requests that meet each limit alone in the fleet. More replicas raise neither."""

    ttft: float
    tpot: float

    @property
    def both(self) -> float:
        """The lengths of prompt and answer are taken to be independent, as in the sizes."""
        return self.ttft * self.tpot


def reach_of(models: Iterable[Model]) -> Reach:
    """What the roles of a fleet reach together."""
    ttft, tpot = 1.0, 1.0
    for model in models:
        parts = (model.prefill, model.decode) if isinstance(model, ColocatedModel) else (model,)
        for part in parts:
            if isinstance(part, PrefillModel):
                ttft = min(ttft, part.reachable)
            else:
                tpot = min(tpot, part.reachable)
    return Reach(ttft, tpot)


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

    def _cost(self, fleet: tuple[int, int]) -> float:
        return fleet[0] * self.one.cost + fleet[1] * self.other.cost

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
            left = self._cost(best) - first * self.one.cost
            most = max(second, int(left // (self.other.cost or 1.0)))
            second = self._enough(first, second, most)
            if second > most:
                break
            if self._cost((first, second)) < self._cost(best):
                best, worse = (first, second), 0
            else:
                worse += 1
        return best
