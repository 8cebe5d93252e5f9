"""shares(): how many GPUs each fleet is to have of the budgets, by what they are worth there.

Each fleet has its minimum. What is left goes where it brings the most good requests per GPU, each
weighted; of equal gains to the first by namespace and name. What brings none, such as replicas that
a hold keeps, is shared evenly. `allocate` calls it and turns shares into caps.

So that GPUs do not wander with the noise of the measurements, a fleet keeps what it was given for
its own hold, and loses it after that only to a gain that is larger by `MARGIN`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from argosy_operator.core.budgets.bid import Bid, Bids, Fleet
from argosy_operator.core.budgets.room import Room

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

    `before`: the shares so far; a fleet that is not in it had what it holds."""
    former = {fleet: before.get(fleet) or _standing(bid) for fleet, bid in bids.items()}
    given = {fleet: bid.least for fleet, bid in bids.items()}
    for fleet, gpus in given.items():
        room.take(fleet, gpus)
    kept = {
        fleet: min(share.gpus, bids[fleet].wanted) - given[fleet]
        for fleet, share in former.items()
        if now - share.raised_at < bids[fleet].hold_s
    }
    _add(given, level(kept, bids, room))
    _by_gain(given, bids, room, former)
    _add(given, level({f: bid.wanted - given[f] for f, bid in bids.items()}, bids, room))
    return {
        fleet: Share(gpus, now if gpus > former[fleet].gpus else former[fleet].raised_at)
        for fleet, gpus in given.items()
    }


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


def _by_gain(given: dict[Fleet, int], bids: Bids, room: Room, former: Shares) -> None:
    """Give out steps in the order of their gain per GPU, until none fits that gains anything."""

    def push(fleet: Fleet) -> None:
        step = _best_step(bids[fleet], given[fleet], former[fleet].gpus, room.left(fleet))
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
