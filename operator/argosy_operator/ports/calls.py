"""How many calls to the API server run at once, how often one may begin, how long it may last.

The operator's work comes in herds: after a start every fleet is looked at, and one look at a fleet
takes nine calls. Without a bound the calls time out in their own queue. Each `ApiCluster` has one
`Calls`, and the Lease has an `ApiCluster` of its own, so that it never waits behind a fleet.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

QPS = 100.0
BURST = 200
AT_ONCE = 32
CALL_S = 10.0


class Calls:
    """A budget: `qps` calls a second on average, `burst` after a quiet time, `at_once` under way.

    `deadline_s` is the longest that one call may last once it has begun; the time spent waiting
    for the budget is not part of it. Those who wait are served in the order in which they came.
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
    async def turn(self) -> AsyncIterator[None]:
        """Wait until the budget has room for one call; it counts as under way inside."""
        async with self._free:
            now = asyncio.get_running_loop().time()
            begin = max(self._next_at, now - self._ahead_s)
            self._next_at = begin + self._gap_s
            if begin > now:
                await asyncio.sleep(begin - now)
            yield


def of_the_lease() -> Calls:
    """One call at a time, two of which fit into a term: a slow API server ends no term, and a
    call that got lost is repeated in time."""
    return Calls(at_once=1, deadline_s=4.0)
