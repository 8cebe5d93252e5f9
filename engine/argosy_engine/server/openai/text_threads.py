"""Reading and tokenising prompts beside the event loop, in two threads with bounded queues.

Every body that asks for tokens passes here. A long prompt takes a second of a core. It must not
delay probes, streams or short prompts, so short prompts have a thread of their own.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.types import Receive

from argosy_engine.errors import ClientGoneError
from argosy_engine.server.openai.bodies import SHORT_BYTES, long_bytes
from argosy_engine.server.openai.errors import overloaded

__all__ = ["TextThreads", "while_connected"]

T = TypeVar("T")


async def while_connected(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """What `work` returns; ClientGoneError when the client leaves first. Then the work is
    cancelled: what waits for a thread gives its place to others."""
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        task.cancel()
        left.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class TextThreads:
    """One thread for short bodies, one for long ones; `run` is called on the event loop."""

    def __init__(self, *, max_queue: int, max_body_bytes: int) -> None:
        self._short = _Lane("short-prompts", max_queue * SHORT_BYTES)
        self._long = _Lane("long-prompts", long_bytes(max_body_bytes))

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """`work()` for a body of `size` bytes; ApiError 429 when too many bytes wait already."""
        lane = self._short if size <= SHORT_BYTES else self._long
        return await lane.run(size, work)

    def close(self) -> None:
        """Start nothing new; running work ends by itself."""
        self._short.close()
        self._long.close()


class _Lane:
    """A thread, and the bytes of the bodies that it holds or that wait for it."""

    def __init__(self, name: str, budget: int) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._budget = budget
        self._held = 0

    async def run(self, size: int, work: Callable[[], T]) -> T:
        if self._held and self._held + size > self._budget:
            raise overloaded(f"prompts of {self._held} bytes wait to be tokenised; retry later")
        self._held += size
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._held -= size

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
