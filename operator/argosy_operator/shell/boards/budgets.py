"""The board of the shared GPU budgets: fleets publish bids, and read their cap.

`gather.py` reads a fleet's cap into its snapshot, `loop.py` publishes the fleet's bid once its
round is planned. Between the two nothing waits, so no two fleets are given the same GPUs. The board
is in memory: a new leader learns the bids again.
"""

import time
from collections.abc import Callable

from argosy_operator.core.budgets.allocate import Cap, allocate
from argosy_operator.core.budgets.bid import Bid
from argosy_operator.core.budgets.room import Budgets
from argosy_operator.core.budgets.share import Share
from argosy_operator.core.fleet.objects import FleetKey

LEARN_S = 60.0
"""After a start no fleet grows until no further fleet has made its first bid for this long. First
rounds follow each other at once, so the fleets are known then, however many there are. A standby
has no bids, so the time begins when it leads."""
AGAIN_S = 15.0
"""How often the caps are found again while no bid changes: holds of shares end with time."""


class BudgetBoard:
    """Bids of all fleets, and the caps that follow from them."""

    def __init__(
        self, budgets: Budgets | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.budgets = budgets or Budgets()
        self._monotonic = monotonic
        self._learnt = False
        self._newest_at = float("inf")
        """Of the fleet that made its first bid last, while the board learns which fleets exist."""
        self._bids: dict[FleetKey, Bid] = {}
        self._caps: dict[FleetKey, Cap] | None = None
        self._shares: dict[FleetKey, Share] = {}
        self._found_at = float("-inf")

    def cap(self, key: FleetKey, targeted: int) -> Cap | None:
        """GPUs that the fleet may hold; None if no shared budget is about it.

        `targeted`: GPUs of its targets as they are. That is its cap while the board does not know
        enough to give it more or less."""
        if not self.budgets.cover(key):
            return None
        now = self._monotonic()
        self._learnt = self._learnt or now - self._newest_at >= LEARN_S
        if key not in self._bids or not self._learnt:
            return Cap(targeted, "operator" if self.budgets.fleets is not None else "namespace")
        if self._caps is None or now - self._found_at >= AGAIN_S:
            self._found_at = now
            self._caps, self._shares = allocate(self._bids, self.budgets, self._shares, now)
        return self._caps[key]

    def publish(self, key: FleetKey, bid: Bid) -> None:
        if key not in self._bids:
            self._newest_at = self._monotonic()
        if self._bids.get(key) != bid:
            self._bids[key] = bid
            self._caps = None

    def withdraw(self, key: FleetKey) -> None:
        """The fleet is gone."""
        if self._bids.pop(key, None) is not None:
            self._caps = None
