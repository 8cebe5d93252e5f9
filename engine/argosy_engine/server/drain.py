"""Taking no more work, and knowing when the rest is done.

SIGTERM and `POST /drain` come here; the engine loop reads `draining`. SIGTERM is final. The other
order is a lease: it is repeated for as long as it is meant, and wears off when it is not, so that a
recall that was lost, or an order by a stranger, takes no engine out of service for good.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["DEFAULT_LEASE_S", "LONGEST_LEASE_S", "Drain"]

DEFAULT_LEASE_S = 60.0
LONGEST_LEASE_S = 120.0
log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.05  # the counts live on other threads, which do not report each change


class Cancellable(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Cancellable]


class Drain:
    """One engine's drain; all methods run on the event loop."""

    def __init__(
        self,
        *,
        running: Callable[[], int],
        leases: Callable[[], int],
        switch: Callable[[bool], None],
        timeout_s: float,
        later: Later | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._running = running
        self._leases = leases
        self._switch = switch
        self._timeout_s = timeout_s
        self._later = later or _call_later
        self._clock = clock
        self._expiry: Cancellable | None = None
        self._expires_at = float("inf")
        self._deadline = float("inf")
        self.terminating = asyncio.Event()
        self.draining = False

    def begin(self, lease_s: float = DEFAULT_LEASE_S) -> None:
        """Take no work for `lease_s` from now, however long an earlier order would have lasted."""
        self._forget_expiry()
        self.draining = True
        self._switch(True)
        if not self.terminating.is_set():
            self._expires_at = self._clock() + lease_s
            self._expiry = self._later(lease_s, self._wear_off)

    def call_back(self) -> bool:
        """Take work again; False once the process is told to end."""
        if self.terminating.is_set():
            return False
        self._forget_expiry()
        self.draining = False
        self._switch(False)
        return True

    def terminate(self) -> None:
        """SIGTERM: drain, then `quiet` returns and the process ends."""
        self.terminating.set()
        self.begin()
        self._deadline = min(self._deadline, time.monotonic() + self._timeout_s)

    def report(self) -> dict[str, object]:
        """`expires_in_s` is None while no order stands, and for one that does not wear off."""
        expires = self._expiry is not None
        return {
            "draining": self.draining,
            "running": self._running(),
            "leases": self._leases(),
            "expires_in_s": max(0.0, self._expires_at - self._clock()) if expires else None,
        }

    def _wear_off(self) -> None:
        self._expiry = None
        log.warning("the order to drain was not repeated: this engine takes work again")
        self.call_back()

    def _forget_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = None

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


def _call_later(seconds: float, call: Callable[[], None]) -> Cancellable:
    return asyncio.get_running_loop().call_later(seconds, call)
