"""allocate(): from the bids of all fleets and the budget to each fleet's cap. Pure.

Fairness is max-min over what fleets want beyond their minimum: the next replica goes to the fleet
that then has the smallest share, until the budget is used up or every fleet has what it wants. A
fleet that grows waits for GPUs that another one gives back: a cap rises only by what no fleet
holds.

    Budget 10. Fleet a holds 6 and wants 8, b holds 4 and wants 6; the least of both is 1.
    Shares are 5 and 5. a gets cap 5. b gets cap 4, because a still holds 6. Once a has given one
    back, b gets cap 5.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from argosy_operator.core.budgets.bid import Bid

Fleet = tuple[str, str]
"""Namespace and name."""


def allocate(bids: Mapping[Fleet, Bid], budget: int) -> dict[Fleet, int]:
    """GPUs that each fleet may hold, at least its `least`.

    The caps sum up to `budget` at most if the minimums do.
    """
    least = sum(bid.least for bid in bids.values())
    beyond = {fleet: max(0, bid.wanted - bid.least) for fleet, bid in bids.items()}
    shares = level(beyond, bids, budget - least)
    caps, growth = {}, {}
    for fleet, bid in bids.items():
        share, standing = bid.least + shares[fleet], max(bid.least, bid.held)
        caps[fleet] = min(share, standing)
        growth[fleet] = share - caps[fleet]
    free = budget - sum(max(bid.least, bid.held) for bid in bids.values())
    extra = level(growth, bids, free)
    return {fleet: cap + extra[fleet] for fleet, cap in caps.items()}


def level(wants: Mapping[Fleet, int], bids: Mapping[Fleet, Bid], gpus: int) -> dict[Fleet, int]:
    """Share `gpus` so that the smallest shares are as large as they can be, in whole replicas.

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
        if share - given[fleet] > gpus:
            continue
        gpus -= share - given[fleet]
        given[fleet] = share
        if share < wants[fleet]:
            heappush(hungry, (share + next_step(fleet), fleet))
    return given
