"""allocate(): from the bids of all fleets and the budgets to each fleet's cap. Pure.

`shares` says who is to have how many. A fleet above its share gives back at once. A fleet that
grows waits for GPUs that another one gives back: a cap rises only by what no fleet holds.

    Budget 10. Fleet a holds 6 and wants 8, b holds 4 and wants 6; the least of both is 1, and
    neither says what GPUs are worth to it. Shares are 5 and 5. a gets cap 5. b gets cap 4, because
    a still holds 6. Once a has given one back, b gets cap 5.
"""

from dataclasses import dataclass, replace

from argosy_operator.core.budgets.bid import Bids, Fleet
from argosy_operator.core.budgets.room import Budgets, Room, Whose
from argosy_operator.core.budgets.share import Share, Shares, level, shares


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
