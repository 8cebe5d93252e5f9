"""Which fleets are worth a look: the fewest GPUs at a rate, the highest rate with so many GPUs.

`plan` calls `cheapest` and `strongest`. Both rank the shapes (pods of one type together, prefill
and decode apart) by formulas, and play only the first `LOOKED_AT` of each kind.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from argosy_law.size.pools import find_fewest
from argosy_measure.predict import Binding, Fleet, Formulas, Predictor, Range, Types
from argosy_measure.profiles import PodProfile

LOOKED_AT = 2
"""Shapes of each kind that are played: the best two by the formulas."""
MOST_REPLICAS = 1000
"""Of one role; the most that the API takes for replicas.max."""
OVER = 1.15
"""Load over the goodput at which it shows what a fleet lacks."""


@dataclass(frozen=True, slots=True)
class Option:
    """A fleet that meets the goal, with what is predicted of it."""

    fleet: Fleet
    attainment: Range
    """At the rate that was asked for; without one, at the goodput."""
    goodput: Range
    """The highest rate at which the goal is met, in requests per second."""
    binding: Binding


def shapes(pods: list[PodProfile]) -> list[Types]:
    """Return all ways to serve with these pods. KV goes only between pods with the same layout."""
    apart = (
        (first, last)
        for first, last in product(pods, pods)
        if first.replica.machine.kv_bytes_per_token == last.replica.machine.kv_bytes_per_token
    )
    return [*((pod,) for pod in pods), *apart]


def _rank(found: list[Fleet], key: Callable[[Fleet], float]) -> list[Fleet]:
    """Return the first of each kind."""
    found.sort(key=key)
    return [
        fleet
        for kind in (1, 2)
        for fleet in [one for one in found if len(one.types) == kind][:LOOKED_AT]
    ]


def cost_of(fleet: Fleet) -> float:
    """Return the price where it is known, else the GPUs."""
    return fleet.price if fleet.price is not None else float(fleet.gpus)


def cheapest(of: list[Types], predictor: Predictor, rate: float) -> list[Option]:
    """Return the cheapest fleet of each shape that meets the goal at `rate`, cheapest first."""
    formulas = Formulas(predictor.slo, predictor.workload)
    guesses = _rank([formulas.fewest(types, rate) for types in of], cost_of)
    found = list(filter(None, (_fewest(guess, predictor, rate) for guess in guesses)))
    return [
        _option(fleet, predictor, predictor.attainment(fleet, rate), rate)
        for fleet in sorted(found, key=cost_of)
    ]


def _option(fleet: Fleet, predictor: Predictor, attainment: Range | None, near: float) -> Option:
    goodput = predictor.goodputs(fleet, near)
    return Option(
        fleet,
        attainment or predictor.attainment(fleet, goodput.median),
        goodput,
        predictor.binding(fleet, OVER * goodput.median),
    )


def _fewest(guess: Fleet, predictor: Predictor, rate: float) -> Fleet | None:
    """Return the cheapest fleet of the guess's shape; None if up to 1000 replicas do not do."""
    types, known = guess.types, dict[tuple[int, ...], bool]()

    def meets(*replicas: int) -> bool:
        """More replicas of a role do not attain less, so what is known decides for others."""
        for others, met in known.items():
            pairs = list(zip(others, replicas, strict=True))
            if all(a <= b for a, b in pairs) if met else all(a >= b for a, b in pairs):
                return met
        known[replicas] = answer = predictor.meets(Fleet(types, replicas), rate)
        return answer

    spare = [max(4 * n, 4) for n in guess.replicas]
    while not meets(*spare):
        if min(spare) >= MOST_REPLICAS:
            return None
        spare = [min(4 * n, MOST_REPLICAS) for n in spare]
    if len(types) == 1:
        return Fleet(types, (find_fewest(meets, min(guess.replicas[0], spare[0])),))
    first = find_fewest(lambda n: meets(n, spare[1]), guess.replicas[0])
    least = find_fewest(lambda n: meets(spare[0], n), guess.replicas[1])
    best = Fleet(types, (first, spare[1]))
    while cost_of(Fleet(types, (first, least))) < cost_of(best):
        others = find_fewest(_enough(meets, best, first), least)
        tried = Fleet(types, (first, others))
        best = tried if cost_of(tried) < cost_of(best) or others == spare[1] else best
        first += 1
    return best


def _enough(meets: Callable[[int, int], bool], best: Fleet, first: int) -> Callable[[int], bool]:
    """Whether so many decode replicas do beside `first`, or are no cheaper than the best."""

    def enough(others: int) -> bool:
        fleet = Fleet(best.types, (first, others))
        return cost_of(fleet) >= cost_of(best) or meets(first, others)

    return enough


def strongest(of: list[Types], predictor: Predictor, gpus: int) -> list[Option]:
    """Return the fleet of each shape with the highest goodput on so many GPUs, highest first."""
    formulas = Formulas(predictor.slo, predictor.workload)
    guesses = [
        max(splits, key=formulas.goodput)
        for splits in ([*_splits(types, gpus)] for types in of)
        if splits
    ]
    ranked = _rank(guesses, lambda fleet: -formulas.goodput(fleet))
    found = [_climb(guess, predictor, formulas, gpus) for guess in ranked]
    options = [_option(fleet, predictor, None, goodput) for fleet, goodput in found if goodput > 0]
    return sorted(options, key=lambda option: -option.goodput.median)


def _splits(types: Types, gpus: int) -> Iterator[Fleet]:
    """Yield the fleets to which no pod can be added."""
    if len(types) == 1:
        if gpus >= types[0].gpus:
            yield Fleet(types, (gpus // types[0].gpus,))
        return
    for first in range(1, (gpus - types[1].gpus) // types[0].gpus + 1):
        yield Fleet(types, (first, (gpus - first * types[0].gpus) // types[1].gpus))


def _climb(
    guess: Fleet, predictor: Predictor, formulas: Formulas, gpus: int
) -> tuple[Fleet, float]:
    """Return the best split around the guess, with its goodput: the next ones on both sides are
    tried as long as they are better."""
    splits = list(_splits(guess.types, gpus))
    start, near = splits.index(guess), formulas.goodput(guess)
    best, most = guess, predictor.goodput(guess, near)
    for step in (1, -1):
        at = start + step
        while 0 <= at < len(splits):
            goodput = predictor.goodput(splits[at], most or near)
            if goodput <= most:
                break
            best, most, at = splits[at], goodput, at + step
    return best, most
