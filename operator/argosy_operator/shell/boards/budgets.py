"""The board of the shared GPU budgets: fleets publish bids, and read their cap.

`gather.py` reads a fleet's cap into its snapshot, `loop.py` publishes the fleet's bid once its
round is planned. Between the two nothing waits, so no two fleets are given the same GPUs. No fleet
grows before all have made a bid (`learning.py`).
"""

import time
from collections.abc import Callable

from argosy_operator.core.budgets import Bid, Budgets, Cap, Share, allocate
from argosy_operator.core.snapshot.objects import FleetKey
from argosy_operator.shell.boards.learning import Learning

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
        """GPUs that the fleet may hold; None if no shared budget is about it.

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
        """The fleet is gone."""
        if self._bids.pop(key, None) is not None:
            self._caps = None
