"""Calls to many pods at the same time, bounded in number and in time.

A pod on a dead node answers nothing and costs a whole time-out. One after the other, 160 of them
would take longer than the round may last.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 32
DEADLINE_S = 6.0


async def together(calls: Sequence[Callable[[], Awaitable[T]]], late: T) -> list[T]:
    """The calls' results in their order; `late` for those that were not done in `DEADLINE_S`.

    They begin in an order of chance: where time is too short for all, each has its turn in one of
    the next rounds.
    """
    free = asyncio.Semaphore(AT_ONCE)
    results = [late] * len(calls)

    async def one(number: int) -> None:
        async with free:
            results[number] = await calls[number]()

    order = random.sample(range(len(calls)), len(calls))
    tasks = [asyncio.create_task(one(number)) for number in order]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=DEADLINE_S)
    finally:
        for task in tasks:
            task.cancel()
    for done in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(done, Exception):
            raise done
    return results
