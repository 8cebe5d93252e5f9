"""When a round of queries is sent, and for which fleets: once per interval for all of them.

`metrics.py` has one `SharedRounds` per server and spans. Pure scheduling: the queries are the
caller's function, times are those of the running event loop (asyncio's monotonic clock).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from argosy_operator.core.snapshot.objects import FleetKey

T = TypeVar("T")

EARLIEST_S = 1.0
"""A fleet that is new starts a round before the interval is over, but this long after the last one
began: fleets that appear together, as after a start, share a round."""
SPREAD_S = 0.1
"""Fleets take their share this far apart, so that they do not all call the API server at once. A
round of a fleet takes ten calls, and 100 a second are allowed."""
SPREAD_SHARE = 1 / 3
"""Of the interval: the most that the last fleet waits, and the greatest age of what it reads."""
FORGET_S = 60.0
"""A fleet that has not asked for three intervals and this long is left out of the next round."""


class SharedRounds(Generic[T]):
    """Rounds for all fleets that ask here. The first fleet that is due starts one; the others take
    its answer until an interval has passed since it began."""

    def __init__(
        self, interval_s: float, ask: Callable[[frozenset[FleetKey]], Awaitable[T]]
    ) -> None:
        """`ask` must not raise: every fleet of the round gets what it returns."""
        self.interval_s, self._ask = interval_s, ask
        self._asked_at: dict[FleetKey, float] = {}
        self._newest: _Round[T] | None = None

    async def take(self, key: FleetKey) -> tuple[T, float]:
        """Return the answer of a round with this fleet that is younger than the interval, and when
        the fleet should ask again (the loop's clock)."""
        loop = asyncio.get_running_loop()
        self._asked_at[key] = loop.time()
        while True:
            newest = self._newest
            if newest is None or (newest.done and not newest.serves(key, self._since())):
                newest = self._newest = _Round(self._begin(newest))
            if newest.serves(key, self._since()):
                # A caller that gives up does not end the round of the others.
                answer = await asyncio.shield(newest.task)
                return answer, self._next_at(key, newest)
            await asyncio.wait({newest.task})

    @property
    def unused(self) -> bool:
        """Whether no fleet asks here any more."""
        return not self._members()

    def close(self) -> None:
        if self._newest is not None:
            self._newest.task.cancel()

    async def _begin(self, last: "_Round[T] | None") -> T:
        loop = asyncio.get_running_loop()
        if last is not None:
            pause_s = min(EARLIEST_S, self.interval_s / 2)
            await asyncio.sleep(last.begun_at + pause_s - loop.time())
        fleets = self._members()
        assert self._newest is not None
        self._newest.begun_at, self._newest.fleets = loop.time(), fleets
        return await self._ask(fleets)

    def _since(self) -> float:
        """Return the time at or before which a round is too old."""
        return asyncio.get_running_loop().time() - self.interval_s

    def _members(self) -> frozenset[FleetKey]:
        oldest = asyncio.get_running_loop().time() - 3 * self.interval_s - FORGET_S
        self._asked_at = {key: at for key, at in self._asked_at.items() if at >= oldest}
        return frozenset(self._asked_at)

    def _next_at(self, key: FleetKey, taken: "_Round[T]") -> float:
        """Return an interval after the round began, for each fleet a little after the one before
        it."""
        fleets = sorted(taken.fleets or ())
        gap_s = min(SPREAD_S, SPREAD_SHARE * self.interval_s / len(fleets))
        return taken.begun_at + self.interval_s + gap_s * fleets.index(key)


class _Round(Generic[T]):
    def __init__(self, work: "Awaitable[T]") -> None:
        self.task = asyncio.ensure_future(work)
        self.begun_at = float("inf")
        self.fleets: frozenset[FleetKey] | None = None
        """None until it begins: all who ask before then are part of it."""

    @property
    def done(self) -> bool:
        return self.task.done()

    def serves(self, key: FleetKey, since: float) -> bool:
        return self.begun_at > since and (self.fleets is None or key in self.fleets)
