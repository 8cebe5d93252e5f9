"""How much the operator does at the same time: rounds of fleets, and calls to pods.

`workers.py` takes a slot for each round; `gather.py` and `execute.py` call many pods at once.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from argosy_operator.shell import metrics

T = TypeVar("T")

LEAST_ROUNDS = 4
ROUND_S = 6.0
"""Within this time the API server answers all calls of the rounds that run at once, so that what a
round has read is not old when it writes."""
CALLS_PER_ROUND = 10

PODS_AT_ONCE = 32
PODS_DEADLINE_S = 6.0


class RoundSlots:
    """At most `at_once` rounds run at the same time, half of them first rounds.

    After a start every fleet needs its first round. With a limit of their own, a fleet that is
    edited meanwhile waits for a few rounds and not for all of them.
    """

    def __init__(self, at_once: int) -> None:
        self._all = asyncio.Semaphore(at_once)
        self._first = asyncio.Semaphore(max(1, at_once // 2))

    @asynccontextmanager
    async def slot(self, *, first: bool) -> AsyncIterator[None]:
        """Wait for a free slot and hold it inside the block."""
        async with AsyncExitStack() as held:
            with metrics.WAITING.track_inprogress():
                if first:
                    await held.enter_async_context(self._first)
                await held.enter_async_context(self._all)
            yield


def rounds_at_once(qps: float) -> int:
    """Return rounds whose calls fit into `ROUND_S` at `qps` calls a second."""
    return max(LEAST_ROUNDS, int(qps * ROUND_S / CALLS_PER_ROUND))


async def call_all(calls: Sequence[Callable[[], Awaitable[T]]], late: T) -> list[T]:
    """Return results of calls to pods, in their order; `late` for those not done in
    `PODS_DEADLINE_S`.

    A pod on a dead node costs a whole time-out; 160 of them one after the other would take longer
    than a round may last. The calls start in random order: where time is too short for all, each
    one is made in one of the next rounds.
    """
    free = asyncio.Semaphore(PODS_AT_ONCE)
    results = [late] * len(calls)

    async def call(number: int) -> None:
        async with free:
            results[number] = await calls[number]()

    order = random.sample(range(len(calls)), len(calls))
    tasks = [asyncio.create_task(call(number)) for number in order]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=PODS_DEADLINE_S)
    finally:
        for task in tasks:
            task.cancel()
    for done in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(done, Exception):
            raise done
    return results
