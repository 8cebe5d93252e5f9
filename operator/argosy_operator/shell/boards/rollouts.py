"""The board of rollouts: how many fleets may take the operator's newer images at one time.

`gather.py` asks it for a fleet whose images are not the operator's, `loop.py` says after each round
whether a fleet rolls out. A rollout needs twice a fleet's GPUs, and one that fails never ends: then
the other fleets keep what works. The board is in memory: a new leader learns the rollouts again.
"""

import time
from collections.abc import Callable

from argosy_operator.core.fleet.objects import FleetKey

LEARN_S = 60.0
"""After a start no fleet takes newer images until no further fleet was seen for this long."""


class RolloutBoard:
    """The fleets that roll out, whatever the reason, and whether one more may begin."""

    def __init__(self, limit: int = 0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._monotonic = monotonic
        self._learnt = False
        self._newest_at = float("inf")
        """Of the fleet that was seen first last, while the board learns which fleets exist."""
        self._rolling: dict[FleetKey, bool] = {}

    def allows(self, key: FleetKey) -> bool:
        """Whether the fleet may take newer images now. A fleet that may counts as rolling out."""
        if self._limit == 0:
            return False
        self._learnt = self._learnt or self._monotonic() - self._newest_at >= LEARN_S
        if not self._learnt or key not in self._rolling:
            return False
        if not self._rolling[key] and sum(self._rolling.values()) >= self._limit:
            return False
        self._rolling[key] = True
        return True

    def publish(self, key: FleetKey, *, rolling: bool) -> None:
        """What the fleet's last round found."""
        if key not in self._rolling:
            self._newest_at = self._monotonic()
        self._rolling[key] = rolling

    def withdraw(self, key: FleetKey) -> None:
        """The fleet is gone."""
        self._rolling.pop(key, None)
