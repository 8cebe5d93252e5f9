"""What a fleet costs on each GPU type that may serve it, and which types to run on.

Each minute the whole fleet is sized for the planned load on every combination of types, from the
types' profiles. Measured constants are left out on purpose: only one type has them, and a type must
not be left because it was measured and the others were not. `core.steps.targets` keeps the
`Prices` between rounds, `core.steps.gpu_types` carries out what `chosen` says.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import inf, prod

from argosy_law.decide import limits_of
from argosy_law.estimate import capacity
from argosy_law.goals import Goals, Inputs, Profile
from argosy_law.observe import RoleName
from argosy_law.signals import lengths
from argosy_law.size.pools import BELOW_REACHABLE, Model, model_of
from argosy_law.size.sizing import Demanded, fewest, reach_of
from argosy_law.state import ScalingState

EVERY_S = 60.0
"""How often the costs are computed."""
SLOT_S, DAY_S = 900.0, 86_400.0
"""The largest cost of each slot is kept, for a day. A choice stands for a day, too."""
FIRST_SLOTS, ENOUGH_SLOTS = 4, 88
"""Slots that must have been seen before the first choice, and before any later one."""
PEAKS = 0.05
"""Share of the slots that count neither for the cost nor for whether a type can do it: the dearest.
"""
SAVES = 0.15
"""Share of the cost that another choice must save: it is paid with a rollout."""

Types = tuple[str, ...]
"""The name of one GPU type for each role of the mode, in the mode's order."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One GPU type for one role."""

    name: str
    gpus: int
    """GPUs of one replica."""
    cost: float
    """Of one GPU, per hour."""
    profile: Profile | None
    """None: it is not compared."""


Offers = Mapping[RoleName, tuple[Offer, ...]]
"""What may serve each role of the mode, in the user's order."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs per hour of the last day, by choice of types."""

    at: float | None = None
    """When they were computed last, in seconds since the epoch."""
    slots: tuple[tuple[float, tuple[tuple[Types, float], ...]], ...] = ()
    """Start of each slot, and the largest cost of each choice within it; infinite where no number
    of replicas within the bounds meets the SLO."""

    @property
    def usual(self) -> dict[Types, float]:
        """The mean of each choice over the day without its peaks; empty before the first slot.
        Infinite for a choice that cannot do it outside of the peaks."""
        if not self.slots:
            return {}
        counted = max(len(self.slots) - int(PEAKS * len(self.slots)), 1)
        found: dict[Types, list[float]] = {}
        for _, costs in self.slots:
            for types, cost in costs:
                found.setdefault(types, []).append(cost)
        return {types: sum(sorted(costs)[:counted]) / counted for types, costs in found.items()}


def costs(state: ScalingState, inputs: Inputs, offers: Offers, rate: float) -> dict[Types, float]:
    """The lowest cost per hour of each choice of types at `rate` requests per second.

    Empty while the lengths of requests are not measured.
    """
    if rate <= 0 or not state.lengths.measured:
        return {}
    work, slo, goals = lengths.work(state.lengths, inputs.metrics), inputs.slo, inputs.goals
    limits = limits_of(state, inputs)
    pools: list[list[tuple[Offer, Model]]] = []
    for role, offered in offers.items():
        of_role = list[tuple[Offer, Model]]()
        for offer in offered:
            if offer.profile is not None:
                estimate = capacity.begin(role, offer.profile, slo)
                replica = capacity.replica(estimate, offer.profile.kv_tokens, goals.serving)
                of_role.append((offer, model_of(role, replica, work, limits)))
        pools.append(of_role)
    return {
        tuple(offer.name for offer, _ in choice): _cost(choice, rate, goals, slo.attainment)
        for choice in product(*pools)
    }


def _cost(choice: tuple[tuple[Offer, Model], ...], rate: float, goals: Goals, goal: float) -> float:
    """Of the cheapest replicas within the bounds that meet the goal; infinite if none do."""
    models = tuple(model for _, model in choice)
    reach = reach_of(models).both
    if reach < goal:
        return inf
    pools = tuple(Demanded(model, rate, offer.gpus * offer.cost) for offer, model in choice)
    gpus = tuple(offer.gpus for offer, _ in choice)
    counts = fewest(pools, goal)
    if not _allows(counts, gpus, goals):
        fitting = _fit(pools, gpus, goals, min(goal, reach - BELOW_REACHABLE))
        return min((_sum(pools, counts) for counts in fitting), default=inf)
    return _sum(pools, counts)


def _sum(pools: tuple[Demanded, ...], counts: tuple[int, ...]) -> float:
    return sum(pool.cost * n for pool, n in zip(pools, counts, strict=True))


def _allows(counts: tuple[int, ...], gpus: tuple[int, ...], goals: Goals) -> bool:
    """Whether the replicas are within `min`, `max` and the GPU budget."""
    within = all(role.min <= n <= role.max for n, role in zip(counts, goals.roles, strict=True))
    held = sum(each * n for each, n in zip(gpus, counts, strict=True))
    return within and (goals.gpus is None or held <= goals.gpus)


def _fit(
    pools: tuple[Demanded, ...], gpus: tuple[int, ...], goals: Goals, wanted: float
) -> Iterator[tuple[int, ...]]:
    """For each number of the first role the fewest of the others with which what is wanted is met,
    as far as they are allowed. More of a role never meet less, so the second only falls."""
    attained = cache(lambda i, n: pools[i].model.attainment(n, pools[i].rate))
    least = [max(role.min, 1) for role in goals.roles]
    others = [goals.roles[i].max for i in range(1, len(pools))]

    def met(counts: tuple[int, ...]) -> bool:
        return prod(attained(i, n) for i, n in enumerate(counts)) >= wanted

    for first in range(least[0], goals.roles[0].max + 1):
        while others and others[0] > least[1] and met((first, others[0] - 1)):
            others[0] -= 1
        counts = (first, *others)
        if not met(counts):
            continue
        if _allows(counts, gpus, goals):
            yield counts
        if others == least[1:]:
            return


def with_costs(prices: Prices, found: Mapping[Types, float], now: float) -> Prices:
    """The prices with one more round of costs. Where other types may serve than before, what was
    kept no longer counts."""
    kept = tuple(slot for slot in prices.slots if slot[0] > now - DAY_S)
    if not found:
        return Prices(now, kept)
    if kept and {types for types, _ in kept[-1][1]} != set(found):
        kept = ()
    start, most = now - now % SLOT_S, dict(found)
    if kept and kept[-1][0] >= start:
        start, before = kept[-1]
        most = {types: max(cost, found[types]) for types, cost in before}
        kept = kept[:-1]
    return Prices(now, (*kept, (start, tuple(most.items()))))


def cheapest(
    prices: Prices, current: Types, shut: frozenset[Types], chosen_at: float | None, now: float
) -> Types | None:
    """The choice to go to for its cost; None: stay.

    `shut`: choices with a type that has no room. `chosen_at`: when the current one was chosen;
    None: it is what the user wrote first. A choice stands for a day, so that a fleet does not swing
    with its load; the first may come after an hour.
    """
    usual = {types: cost for types, cost in prices.usual.items() if types not in shut}
    if not usual or (chosen_at is not None and now - chosen_at < DAY_S):
        return None
    if len(prices.slots) < (FIRST_SLOTS if chosen_at is None else ENOUGH_SLOTS):
        return None
    best = min(usual, key=lambda types: (usual[types], types != current, types))
    own = prices.usual.get(current)
    if own is None or best == current or usual[best] == inf:
        return None
    return best if usual[best] <= (1 - SAVES) * own else None
