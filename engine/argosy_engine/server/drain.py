"""Taking no more work, and knowing when the rest is done.

SIGTERM, `POST /drain` and a preStop hook come here; the engine loop reads `draining`.
"""

import asyncio
import time
from collections.abc import Callable

__all__ = ["Drain"]

_LOOK_EVERY_S = 0.05  # the counts live on other threads, which do not report each change


class Drain:
    """One engine's drain; all methods run on the event loop."""

    def __init__(
        self,
        *,
        running: Callable[[], int],
        leases: Callable[[], int],
        switch: Callable[[bool], None],
        timeout_s: float,
    ) -> None:
        self._running = running
        self._leases = leases
        self._switch = switch
        self._timeout_s = timeout_s
        self._deadline = float("inf")
        self.terminating = asyncio.Event()
        self.draining = False

    def begin(self) -> None:
        self.draining = True
        self._switch(True)

    def call_back(self) -> bool:
        """Take work again; False once the process is told to end."""
        if self.terminating.is_set():
            return False
        self.draining = False
        self._switch(False)
        return True

    def terminate(self) -> None:
        """SIGTERM: drain, then `quiet` returns and the process ends."""
        self.begin()
        self._deadline = min(self._deadline, time.monotonic() + self._timeout_s)
        self.terminating.set()

    def report(self) -> dict[str, object]:
        return {"draining": self.draining, "running": self._running(), "leases": self._leases()}

    async def quiet(self) -> bool:
        """Wait for `terminate`, then for streams and leases; False when the deadline came first."""
        await self.terminating.wait()
        seen_idle = 0
        while True:
            if not self._running() and not self._leases():
                seen_idle += 1
                # One look may fall where a prompt is counted no more and its lease not yet.
                if seen_idle == 2:
                    return True
            elif time.monotonic() >= self._deadline:
                return False
            else:
                seen_idle = 0
            await asyncio.sleep(_LOOK_EVERY_S)
