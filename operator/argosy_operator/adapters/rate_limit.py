"""Limits on calls to the API server: how many at once, how many a second, how long each may last.

After a start every fleet needs a round, and a round takes nine calls. Without a limit the calls
would time out in their own queue. Each `ApiCluster` has one `RateLimiter`. The Lease has an
`ApiCluster` of its own, so that it never waits behind a fleet.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

QPS = 100.0
BURST = 200
AT_ONCE = 32
CALL_S = 10.0


class RateLimiter:
    """`qps` calls a second on average, `burst` after a quiet time, `at_once` at the same time.

    `deadline_s` is the longest that one call may last once it has begun; the time spent waiting
    here is not part of it. Calls begin in the order in which they came.
    """

    def __init__(
        self,
        qps: float = QPS,
        burst: int = BURST,
        at_once: int = AT_ONCE,
        deadline_s: float = CALL_S,
    ) -> None:
        self.at_once, self.deadline_s = at_once, deadline_s
        self._gap_s = 1.0 / qps
        self._ahead_s = (burst - 1) * self._gap_s
        self._free = asyncio.Semaphore(at_once)
        self._next_at = float("-inf")

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait until one more call is within the limits; the call is made inside the block."""
        async with self._free:
            now = asyncio.get_running_loop().time()
            begin = max(self._next_at, now - self._ahead_s)
            self._next_at = begin + self._gap_s
            if begin > now:
                await asyncio.sleep(begin - now)
            yield


def lease_limiter() -> RateLimiter:
    """One call at a time, and two calls fit into a term: a slow API server does not end the term,
    and a call that was lost is repeated in time."""
    return RateLimiter(at_once=1, deadline_s=4.0)
