"""Which transport decode uses towards a prefill engine: NIXL where both have it and it works.

One for all pulls of an engine; called on the threads of pulls and on the event loop.
"""

import time
from collections.abc import Callable, Collection

from argosy_engine.transfer.nixl.link import Link

__all__ = ["NIXL", "Routes"]

NIXL = "nixl"
_AVOID_S = 60.0
"""A peer to which NIXL failed is sent no order over it for so long: each costs its time-out."""


class Routes:
    """Remembers peers to which NIXL failed, such as those behind a closed port of UCX."""

    def __init__(self, link: Link | None, now: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._now = now
        self._avoided: dict[str, float] = {}

    def to(self, address: str, transports: Collection[str]) -> Link | None:
        """The link to a peer that offers these transports; None: TCP."""
        link = self._link
        if link is None or link.offer is None or NIXL not in transports:
            return None
        if self._now() < self._avoided.get(address, 0.0):
            return None
        return link

    def failed(self, address: str) -> None:
        now = self._now()
        self._avoided = {a: until for a, until in self._avoided.items() if until > now}
        self._avoided[address] = now + _AVOID_S
