"""GPU budgets that fleets share: what each fleet asks for, and what each may hold.

Bids are made in each round by `core/steps/targets.py` and collected by `shell/boards.py`;
`allocate` gives each fleet its cap. All numbers are GPUs, unless said otherwise.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import Literal

Fleet = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Bid:
    least: int
    """What a budget never takes: the minimum replicas of the spec, or all that the fleet runs if
    the scaling law does not size it or has no metrics."""
    wanted: int
    """What the fleet would hold without a shared budget; `least` or more."""
    held: int
    """What its pods hold now, those of old revisions and those that drain included, or will hold
    once the replicas that were written have their pods."""
    unit: int = 1
    """GPUs of the fleet's smallest replica: fewer are of no use to it."""
    worth: tuple[tuple[int, float], ...] = ()
    """(GPUs, requests per second within the SLO that the law predicts with them), more of both in
    each pair. Empty: unknown, and the fleet shares what the others' predicted gains leave over."""
    weight: float = 1.0
    """A good request of this fleet counts as so many: `gpuBudget.weight`."""
    hold_s: float = 0.0
    """How long GPUs that it was given stay with it, in seconds: its hold before going down."""

    def good(self, gpus: int) -> float:
        """Weighted requests per second within the SLO, with so many GPUs."""
        return self.weight * max((good for at, good in self.worth if at <= gpus), default=0.0)


Bids = Mapping[Fleet, Bid]


Whose = Literal["operator", "namespace"]
"""Which of the shared budgets a fleet lacks room in."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """GPUs that fleets may hold together."""

    fleets: int | None = None
    """All fleets; None: no limit."""
    namespaces: Mapping[str, int] = field(default_factory=dict)
    """Those of a namespace; a namespace that is not named has no limit of its own."""

    def cover(self, fleet: Fleet) -> bool:
        """Whether any of them limits this fleet."""
        return self.fleets is not None or fleet[0] in self.namespaces


class Room:
    """What is left; below 0 where minimums exceed a budget."""

    def __init__(self, budgets: Budgets) -> None:
        self._fleets = inf if budgets.fleets is None else float(budgets.fleets)
        self._namespaces = {name: float(gpus) for name, gpus in budgets.namespaces.items()}

    def __copy__(self) -> "Room":
        other = Room(Budgets())
        other._fleets, other._namespaces = self._fleets, dict(self._namespaces)
        return other

    def left(self, fleet: Fleet) -> float:
        """GPUs that the fleet could be given."""
        return min(self._fleets, self._namespaces.get(fleet[0], inf))

    def take(self, fleet: Fleet, gpus: int) -> None:
        self._fleets -= gpus
        if fleet[0] in self._namespaces:
            self._namespaces[fleet[0]] -= gpus

    def short(self, fleet: Fleet, gpus: int) -> Whose:
        """Whose budget has no room for so many GPUs of the fleet. The namespace's if both have
        none: in that of all fleets a larger gain finds room."""
        return "namespace" if self._namespaces.get(fleet[0], inf) < gpus else "operator"


MARGIN = 0.2
"""By so much must another fleet gain more than this one would lose."""
FLAT = 1e-6
"""A gain below this, in good requests per second and GPU, is none."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a fleet was given."""

    gpus: int
    raised_at: float
    """When it was last given more, in seconds on any clock; -∞: never."""


Shares = Mapping[Fleet, Share]


def shares(bids: Bids, room: Room, before: Shares, now: float) -> dict[Fleet, Share]:
    """GPUs of each fleet, from its `least` to its `wanted`. They are taken from `room`.

    `before`: the shares so far; a fleet that is not in it had what it holds.

    They are divided again from the result until that stays, so that the next round with the same
    bids moves nothing: what fleets had counts more (`MARGIN`), and where a fleet's second GPU
    brings more than its first, that alone may change who comes first. If the results go round in a
    circle, the one that is worth most counts."""
    former = {fleet: before.get(fleet) or _standing(bid) for fleet, bid in bids.items()}
    held = {
        fleet: min(share.gpus, bids[fleet].wanted) - bids[fleet].least
        for fleet, share in former.items()
        if now - share.raised_at < bids[fleet].hold_s
    }
    found = [{fleet: share.gpus for fleet, share in former.items()}]
    while (given := _divide(bids, copy(room), held, found[-1])) not in found:
        found.append(given)
    circle = found[found.index(given) :]
    given = max(circle, key=lambda each: (_worth(bids, each), sorted(each.items())))
    for fleet, gpus in given.items():
        room.take(fleet, gpus)
    return {
        fleet: Share(gpus, now if gpus > former[fleet].gpus else former[fleet].raised_at)
        for fleet, gpus in given.items()
    }


def _divide(
    bids: Bids, room: Room, held: Mapping[Fleet, int], former: Mapping[Fleet, int]
) -> dict[Fleet, int]:
    """Give each fleet its `least`, then what is `held` beyond it, what gains most, and the rest."""
    given = {fleet: bid.least for fleet, bid in bids.items()}
    for fleet, gpus in given.items():
        room.take(fleet, gpus)
    _add(given, level(held, bids, room))
    _by_gain(given, bids, room, former)
    _add(given, level({f: bid.wanted - given[f] for f, bid in bids.items()}, bids, room))
    return given


def _worth(bids: Bids, given: Mapping[Fleet, int]) -> float:
    return sum(bids[fleet].good(gpus) for fleet, gpus in given.items())


def level(wants: Mapping[Fleet, int], bids: Bids, room: Room) -> dict[Fleet, int]:
    """Share the room so that the smallest shares are as large as they can be, in whole replicas.

    The next replica goes where it makes the smallest share; equal ones in the order of namespace
    and name. What is left over is too little for any fleet that still wants a replica.
    """

    def next_step(fleet: Fleet) -> int:
        return min(bids[fleet].unit, wants[fleet] - given[fleet])

    given = dict.fromkeys(wants, 0)
    hungry = [(next_step(fleet), fleet) for fleet, want in wants.items() if want > 0]
    heapify(hungry)
    while hungry:
        share, fleet = heappop(hungry)
        if share - given[fleet] > room.left(fleet):
            continue
        room.take(fleet, share - given[fleet])
        given[fleet] = share
        if share < wants[fleet]:
            heappush(hungry, (share + next_step(fleet), fleet))
    return given


def _standing(bid: Bid) -> Share:
    return Share(min(bid.held, bid.wanted), float("-inf"))


def _add(given: dict[Fleet, int], more: Mapping[Fleet, int]) -> None:
    for fleet, gpus in more.items():
        given[fleet] += gpus


def _by_gain(given: dict[Fleet, int], bids: Bids, room: Room, former: Mapping[Fleet, int]) -> None:
    """Give out steps in the order of their gain per GPU, until none fits that gains anything."""

    def push(fleet: Fleet) -> None:
        step = _best_step(bids[fleet], given[fleet], former[fleet], room.left(fleet))
        if step is not None:
            gain, gpus = step
            heappush(steps, (-gain, fleet, gpus))

    steps = list[tuple[float, Fleet, int]]()
    for fleet in bids:
        push(fleet)
    while steps:
        _, fleet, gpus = heappop(steps)
        if gpus <= room.left(fleet):
            room.take(fleet, gpus)
            given[fleet] += gpus
        push(fleet)


def _best_step(bid: Bid, given: int, former: int, room: float) -> tuple[float, int] | None:
    """The step with the largest gain per GPU that fits: (weighted gain per GPU, GPUs).

    GPUs that the fleet had before count more by `MARGIN`. A step may be of several replicas: one
    more of either role gains nothing while the other is the bottleneck.
    """
    best, have = None, bid.good(given)
    for at, good in bid.worth:
        gpus = at - given
        if gpus <= 0 or gpus > room or at > bid.wanted:
            continue
        had = min(max(former - given, 0), gpus)
        gain = (bid.weight * good - have) / gpus * (1 + MARGIN * had / gpus)
        if gain > FLAT and (best is None or gain > best[0]):
            best = gain, gpus
    return best


@dataclass(frozen=True, slots=True)
class Cap:
    """What a fleet may hold."""

    gpus: int
    whose: Whose = "operator"
    """Whose budget keeps it from what it wants."""


def allocate(
    bids: Bids, budgets: Budgets, before: Shares | None = None, now: float = 0.0
) -> tuple[dict[Fleet, Cap], dict[Fleet, Share]]:
    """GPUs that each fleet may hold, at least its `least`; and the shares behind them, for the next
    call. `now` is on the clock of `Share.raised_at`.

    The caps sum up to each budget at most if the minimums do.
    """
    room, free = Room(budgets), Room(budgets)
    fair = shares(bids, room, before or {}, now)
    caps, growth = {}, {}
    for fleet, bid in bids.items():
        standing = max(bid.least, bid.held)
        free.take(fleet, standing)
        caps[fleet] = Cap(min(fair[fleet].gpus, standing))
        growth[fleet] = fair[fleet].gpus - caps[fleet].gpus
    extra = level(growth, bids, free)
    for fleet, bid in bids.items():
        gpus = caps[fleet].gpus + extra[fleet]
        # Short of its share it waits for GPUs; at its share it wants more than there are.
        scarce = free if gpus < fair[fleet].gpus else room
        whose = scarce.short(fleet, min(bid.unit, max(bid.wanted - gpus, 1)))
        caps[fleet] = replace(caps[fleet], gpus=gpus, whose=whose)
    return caps, fair
