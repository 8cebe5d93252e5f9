"""What fleets share: GPU budgets, and places for rollouts. Kept in memory.

`gather.py` reads a fleet's cap and its place into its snapshot; `loop.py` publishes the fleet's
bid, and whether it rolls out, once its round is planned. Between the two nothing waits, so no two
fleets are given the same GPUs. No fleet grows or begins before all are known (`Learning`).
"""

import time
from collections.abc import Callable

from argosy_operator.core.budgets import Bid, Budgets, Cap, Share, allocate
from argosy_operator.core.snapshot.objects import FleetKey

LEARN_S = 60.0
"""For how long no further fleet must have come. First rounds follow each other at once, so the
fleets are known then, however many there are. A standby sees no fleet, so the time begins when it
leads."""


class Learning:
    """Say when a board knows the fleets that exist: a new leader has seen none yet.

    It ends once, when no fleet has come for the first time within `LEARN_S`.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._done = False
        self._newest_at = float("inf")
        """When the fleet came that came last; infinite before the first one."""

    def fleet_came(self) -> None:
        """Note a fleet that is seen for the first time."""
        self._newest_at = self._monotonic()

    def done(self) -> bool:
        """Whether the fleets are known."""
        self._done = self._done or self._monotonic() - self._newest_at >= LEARN_S
        return self._done


AGAIN_S = 15.0
"""How often the caps are found again while no bid changes: holds of shares end with time."""


class BudgetBoard:
    """Bids of all fleets, and the caps that follow from them."""

    def __init__(
        self, budgets: Budgets | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.budgets = budgets or Budgets()
        self._monotonic = monotonic
        self._learning = Learning(monotonic)
        self._bids: dict[FleetKey, Bid] = {}
        self._caps: dict[FleetKey, Cap] | None = None
        self._shares: dict[FleetKey, Share] = {}
        self._found_at = float("-inf")

    def cap(self, key: FleetKey, targeted: int) -> Cap | None:
        """Return GPUs that the fleet may hold; None if no shared budget is about it.

        `targeted`: GPUs of its targets as they are. That is its cap while the board does not know
        enough to give it more or less."""
        if not self.budgets.cover(key):
            return None
        now = self._monotonic()
        if not self._learning.done() or key not in self._bids:
            return Cap(targeted, "operator" if self.budgets.fleets is not None else "namespace")
        if self._caps is None or now - self._found_at >= AGAIN_S:
            self._found_at = now
            self._caps, self._shares = allocate(self._bids, self.budgets, self._shares, now)
        return self._caps[key]

    def publish(self, key: FleetKey, bid: Bid) -> None:
        if key not in self._bids:
            self._learning.fleet_came()
        if self._bids.get(key) != bid:
            self._bids[key] = bid
            self._caps = None

    def withdraw(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        if self._bids.pop(key, None) is not None:
            self._caps = None


LOOK_S = 10.0
"""How often a fleet asks for a place at most. No event says that one is free."""
LOOK_PER_FLEET_S = 1.0
"""And how much longer it waits for each fleet that there is. A round takes about ten calls of the
API server, so 100 fleets that wait make ten calls per second, and so do 1,000."""


class RolloutBoard:
    """The fleets that roll out, whatever the reason, and whether one more may begin.

    A rollout needs GPUs beyond the fleet's own, and one that fails never ends: then the other
    fleets keep what works.
    """

    def __init__(self, limit: int = 0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._learning = Learning(monotonic)
        self._rolling: dict[FleetKey, bool] = {}

    def allows(self, key: FleetKey) -> bool:
        """Whether the fleet may take newer images now. A fleet that may counts as rolling out."""
        if self._limit == 0 or not self._learning.done() or key not in self._rolling:
            return False
        if not self._rolling[key] and sum(self._rolling.values()) >= self._limit:
            return False
        self._rolling[key] = True
        return True

    def look_s(self) -> float:
        """Return when a fleet that waits for a place asks again; infinite if none gets one."""
        if self._limit == 0:
            return float("inf")
        return max(LOOK_S, LOOK_PER_FLEET_S * len(self._rolling))

    def publish(self, key: FleetKey, *, rolling: bool) -> None:
        """Note what the fleet's last round found."""
        if key not in self._rolling:
            self._learning.fleet_came()
        self._rolling[key] = rolling

    def withdraw(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        self._rolling.pop(key, None)
