"""Whose round is next: how many fleets are looked at at the same time.

After a start every fleet wants its first round. They go through a lane of their own that is half
as wide as the whole, so that a fleet that is edited meanwhile waits for a few rounds, not for all.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

LEAST = 4
ROUND_S = 6.0
CALLS_OF_A_ROUND = 10


class Turns:
    """At most `at_once` rounds are under way, half of them first ones."""

    def __init__(self, at_once: int) -> None:
        self._all = asyncio.Semaphore(at_once)
        self._first = asyncio.Semaphore(max(1, at_once // 2))

    @asynccontextmanager
    async def turn(self, *, first: bool) -> AsyncIterator[None]:
        """Wait for a place; the round is counted inside."""
        async with AsyncExitStack() as held:
            if first:
                await held.enter_async_context(self._first)
            await held.enter_async_context(self._all)
            yield


def rounds_at_once(qps: float) -> int:
    """As many rounds as the budget of calls finishes within a few seconds: what a round has read
    is not old when it writes."""
    return max(LEAST, int(qps * ROUND_S / CALLS_OF_A_ROUND))
