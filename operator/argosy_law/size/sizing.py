"""Replicas from load: of all roles together, of one role, and within a GPU budget.

A request must meet TTFT and TPOT, so that the goal is on the product of what the pools attain. In
`fewest`, a role whose next replica costs less for what it gains takes more of the goal. `size` adds
the queue that exists and the requests in flight. `fit_budget` is greedy: the step with the most
predicted attainment per GPU, until none fits. The joint step of one replica each is tried as well,
because the product of both attainments stays flat when one pool grows while the other is the
bottleneck.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from math import ceil, prod, sqrt
from typing import TypeVar

from argosy_law.decision import Rule
from argosy_law.goals import Goals
from argosy_law.observe import RoleName, RoleSupply
from argosy_law.size.pools import (
    BELOW_REACHABLE,
    MOST_REPLICAS,
    ColocatedModel,
    Model,
    PrefillModel,
    carrying,
    find_fewest,
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
    cost: float
    """Of one replica: its GPUs, each in those of the cheapest type."""
    near: int = 0
    """About how many replicas it needs, such as those that there are: the search begins there."""


def fewest(pools: tuple[Demanded, ...], goal: float) -> tuple[int, ...]:
    """Replicas of each pool, at the lowest cost, whose attainments have the product `goal`.

    The goal is lowered to just below what any number could reach. Where a pool carries its load
    only because no request meets its limit, each pool is sized for the goal alone.
    """
    if len(pools) == 2 and all(pool.rate > 0 and pool.model.reachable > 0 for pool in pools):
        reach = [_reachable(pool) for pool in pools]
        wanted = min(goal, prod(reach) - BELOW_REACHABLE)
        if wanted > 0:
            return _Search(pools, wanted, (reach[0], reach[1])).best()
    return tuple(smallest(pool.model, pool.rate, goal) for pool in pools)


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
        share = min(share, self.reach[0] - BELOW_REACHABLE)
        first = find_fewest(lambda n: self._first(n) >= share, self.one.near)
        while not self._may_do(first) and first < MOST_REPLICAS:
            first += 1
        left = self.wanted / max(self._first(first), self.wanted)
        left = min(left, self.reach[1] - BELOW_REACHABLE)
        second = find_fewest(lambda n: self._second(n) >= left, self.other.near)
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


HYSTERESIS = 1.15
"""Going down is decided for this much more load. On the load and not on the count, because a band
on counts does nothing at 3 replicas and too much at 100.

A replica that carries 10 requests/s: at 19/s two are needed. They become one below 10/1.15 = 8.7/s,
and the second comes back above 10/s. Poisson noise of 40 arrivals (σ = 16 %) moves the measured
rate by about as much as the band is wide.
"""

CATCHING_UP, CATCHING_UP_LEAST = 0.25, 4
"""Most replicas that are added for a queue: a quarter of those that the load keeps busy, or
four. A burst that is shorter than a start leaves a queue that no replica reaches in time."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one role must serve."""

    rate: float
    """Planned requests per second, margins included."""
    prompt_tokens: float
    """Mean tokens of a prompt that prefill computes."""
    outstanding_prompt_tokens: float = 0.0
    """Prompt tokens that are queued or being prefilled now."""
    running: float = 0.0
    """Sequences in flight now."""
    full: bool = False
    """Whether the role has no room for another request (`is_full`)."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """How long a queue may last, in seconds."""

    cold_s: float
    """Until a replica that is added now serves."""
    drain_s: float
    """The queue that is left then is worked off within this time."""
    patience_s: float
    """A queue that is worked off within this time loses no request: the TTFT limit."""
    started_s: float = 0.0
    """For how long all pending replicas have been starting, at least."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Replicas of one role that its planned load asks for."""

    up: int
    down: int
    """For `HYSTERESIS` times the load."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many replicas one role's load needs."""

    up: int
    """Needed for `rate`."""
    down: int
    """Enough for `HYSTERESIS` times `rate`: going down is decided by this one."""
    rule: Rule
    model: Model
    rate: float
    """Planned requests per second."""
    reachable: bool
    """Whether a large enough pool meets the goal at all."""
    backlog_s: float = 0.0
    """Work of the queued prompts in this role, in replica-seconds."""
    share: float = 1.0
    """Predicted share of requests within the role's limit, with what the load alone needs."""
    full: bool = False
    """Whether the role has no room for another request now."""


def demanded(model: Model, rate: float, supply: RoleSupply, goals: Goals) -> Demanded:
    """Return a role's load with what one of its replicas costs."""
    cost = supply.gpus_per_replica * goals.price(supply.role)
    return Demanded(model, rate, cost, supply.desired)


def counts(
    models: Mapping[RoleName, Model],
    loads: Mapping[RoleName, Load],
    supplies: Mapping[RoleName, RoleSupply],
    goals: Goals,
    goal: float,
) -> dict[RoleName, Counts]:
    """What all roles need together for the share `goal` within the SLO, at the lowest cost."""

    def needed(factor: float) -> tuple[int, ...]:
        pools = tuple(
            demanded(models[role], loads[role].rate * factor, supply, goals)
            for role, supply in supplies.items()
        )
        return fewest(pools, goal)

    pairs = zip(needed(1.0), needed(HYSTERESIS), strict=True)
    return {role: Counts(*pair) for role, pair in zip(supplies, pairs, strict=True)}


def size(
    model: Model, load: Load, needed: Counts, supply: RoleSupply, goal: float, horizon: Horizon
) -> Size:
    """Replicas of one role, at least 1: those of its load, its queue and its requests in flight."""
    rate, up, down = load.rate, needed.up, needed.down
    reachable = model.reachable >= goal
    rule = Rule.DEMAND if reachable else Rule.SLO_UNREACHABLE
    carried = carrying(model, goal)
    if not isinstance(carried, PrefillModel):
        floor = min(carried.in_flight_floor(load.running), MOST_REPLICAS)
        if floor > up:
            up, rule = floor, Rule.IN_FLIGHT
    prompts = load.outstanding_prompt_tokens / max(load.prompt_tokens, 1.0)
    queued_s = prompts * carried.load(1.0)
    floor = min(backlog(carried, queued_s, rate, supply, horizon), MOST_REPLICAS)
    if floor > up:
        up, rule = floor, Rule.BACKLOG
    share = model.attainment(needed.up, rate)
    return Size(up, max(up, down), rule, model, rate, reachable, queued_s, share, load.full)


def backlog(
    model: Model, queued_s: float, rate: float, supply: RoleSupply, horizon: Horizon
) -> int:
    """Replicas that work off the queue, 0 if it is gone before a new replica could be ready.

    `queued_s` is work of this role in replica-seconds, `rate` requests per second. The queue is the
    one that is left when a replica that is added now is ready: until then it grows by what the
    ready ones do not serve, and replicas that have been starting serve for that much longer.
    """
    load = model.load(rate)
    ahead_s = supply.pending * min(horizon.started_s, horizon.cold_s)
    left_s = queued_s + (load - supply.ready) * horizon.cold_s - ahead_s
    if left_s <= 0 or queued_s / max(supply.ready, 1) <= horizon.patience_s:
        return 0
    return ceil(load + min(left_s / horizon.drain_s, max(CATCHING_UP * load, CATCHING_UP_LEAST)))


FULL = 0.8
"""Of the largest batch that meets the limit, for a pod in which no further prompt has room: the
gateway keeps its sequences below that batch, and some of its requests are on their way."""


def is_full(model: Model, running: float | None, ready: int, goal: float) -> bool:
    """Whether a prompt that waits may wait for room in this pool, as it may while `running` is not
    known. Prefill has room for any."""
    carried = carrying(model, goal)
    if isinstance(carried, PrefillModel):
        return False
    decode = carried.decode if isinstance(carried, ColocatedModel) else carried
    return running is None or running >= FULL * max(decode.batch_limit, 1.0) * ready


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


def fit_budget(pools: tuple[Pool, ...], budget: int) -> tuple[int, ...]:
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
