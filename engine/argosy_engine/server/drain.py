"""Drains an engine: it admits no request, and ends when the running ones have ended.

Input: SIGTERM and `POST /drain`; the engine loop reads `draining`. SIGTERM is final. The other
order is a lease that the operator repeats. It expires when it is not repeated, so a lost recall
cannot keep an engine out of service.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

DEFAULT_LEASE_S = 60.0
LONGEST_LEASE_S = 120.0
log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.05  # other threads own the counts and do not report each change


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
        role: Callable[[], str] = lambda: "",
        later: Later | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._running = running
        self._leases = leases
        self._switch = switch
        self._timeout_s = timeout_s
        self._role = role
        self._later = later or _call_later
        self._clock = clock
        self._expiry: Cancellable | None = None
        self._expires_at = float("inf")
        self._deadline = float("inf")
        self.terminating = asyncio.Event()
        self.draining = False

    def begin(self, lease_s: float = DEFAULT_LEASE_S) -> None:
        """Admit no request for `lease_s` seconds from now. Replaces an earlier order."""
        self._forget_expiry()
        self.draining = True
        self._switch(True)
        if not self.terminating.is_set():
            self._expires_at = self._clock() + lease_s
            self._expiry = self._later(lease_s, self._expire)

    def recall(self) -> bool:
        """Admit requests again; False after SIGTERM."""
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
        """`expires_in_s` is None without an order, and after SIGTERM."""
        expires = self._expiry is not None
        return {
            "role": self._role(),
            "draining": self.draining,
            "running": self._running(),
            "leases": self._leases(),
            "expires_in_s": max(0.0, self._expires_at - self._clock()) if expires else None,
        }

    def busy(self) -> bool:
        """Whether requests run or leases are held."""
        return bool(self._running() or self._leases())

    def _expire(self) -> None:
        self._expiry = None
        log.warning("the drain order expired: this engine accepts requests again")
        self.recall()

    def _forget_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = None

    async def quiet(self) -> bool:
        """Wait for `terminate`, then for streams and leases; False when the deadline came first."""
        await self.terminating.wait()
        seen_idle = 0
        while True:
            if not self.busy():
                seen_idle += 1
                # Between two counts a prompt may be in neither: no longer running, not yet leased.
                if seen_idle == 2:
                    return True
            elif time.monotonic() >= self._deadline:
                return False
            else:
                seen_idle = 0
            await asyncio.sleep(_LOOK_EVERY_S)


def _call_later(seconds: float, call: Callable[[], None]) -> Cancellable:
    return asyncio.get_running_loop().call_later(seconds, call)
