"""The board of rollouts: how many fleets may take the operator's newer images at one time.

`gather.py` asks it for a fleet whose images are not the operator's, `loop.py` says after each round
whether a fleet rolls out. A rollout needs twice a fleet's GPUs, and one that fails never ends: then
the other fleets keep what works. No fleet begins before all are known (`learning.py`).
"""

import time
from collections.abc import Callable

from argosy_operator.core.snapshot.objects import FleetKey
from argosy_operator.shell.boards.learning import Learning

LOOK_S = 10.0
"""How often a fleet asks for a place at most. No event says that one is free."""
LOOK_PER_FLEET_S = 1.0
"""And how much longer it waits for each fleet that there is. A round takes about ten calls of the
API server, so 100 fleets that wait make ten calls per second, and so do 1,000."""


class RolloutBoard:
    """The fleets that roll out, whatever the reason, and whether one more may begin."""

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
        """When a fleet that waits for its place should ask again; infinite if none gets one."""
        if self._limit == 0:
            return float("inf")
        return max(LOOK_S, LOOK_PER_FLEET_S * len(self._rolling))

    def publish(self, key: FleetKey, *, rolling: bool) -> None:
        """What the fleet's last round found."""
        if key not in self._rolling:
            self._learning.fleet_came()
        self._rolling[key] = rolling

    def withdraw(self, key: FleetKey) -> None:
        """The fleet is gone."""
        self._rolling.pop(key, None)
