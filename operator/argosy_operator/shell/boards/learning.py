"""When a board knows the fleets that exist: it is in memory, and a new leader has seen none yet."""

import time
from collections.abc import Callable

LEARN_S = 60.0
"""For how long no further fleet must have come. First rounds follow each other at once, so the
fleets are known then, however many there are. A standby sees no fleet, so the time begins when it
leads."""


class Learning:
    """Ends once, when no fleet has come for the first time within `LEARN_S`."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._done = False
        self._newest_at = float("inf")
        """When the fleet came that came last; infinite before the first one."""

    def fleet_came(self) -> None:
        """A fleet is seen for the first time."""
        self._newest_at = self._monotonic()

    def done(self) -> bool:
        """Whether the fleets are known."""
        self._done = self._done or self._monotonic() - self._newest_at >= LEARN_S
        return self._done
