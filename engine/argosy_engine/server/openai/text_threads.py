"""Reading and tokenising prompts beside the event loop, in two threads with bounded queues.

Every body that asks for tokens passes here. A long prompt takes a second of a core. It must not
delay probes, streams or short prompts, so short prompts have a thread of their own.

`Bodies` reads request bodies: each has a limit, and the long ones share one. The gateway sends
whole bodies at once. A client that sends slowly holds a bounded number of bytes for a bounded time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.types import Receive

from argosy_engine.errors import ClientGoneError
from argosy_engine.server.openai.errors import ApiError, overloaded

SHORT_BYTES = 64 << 10  # a body up to this is read and tokenised in some 20 ms
_LONG_BYTES = 64 << 20  # shared by longer bodies; the pod holds weights and KV pool as well
_LONG_BODIES = 8
_WHOLE_WITHIN_S = 60.0
_GATEWAY_ADDS = 1024  # bytes: a seed, and the wish for usage, where the client did not name them
_SENT_IDS = 1 << 20  # bytes: the gateway's limit for the token ids of a stream that goes on here


def long_bytes(limit: int) -> int:
    """Upper bound of all long bodies together, in bytes; one body may have `limit` bytes."""
    return max(limit, min(_LONG_BODIES * limit, _LONG_BYTES))


class Bodies:
    """All bodies that arrive at one port; runs on the event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._most = long_bytes(limit) + _GATEWAY_ADDS
        self._arriving = 0

    async def read(self, receive: Receive, *, resumes: bool = False) -> bytes:
        """The whole body; ApiError (408, 413, 429), ClientGoneError.

        With `resumes` it also has the token ids of a stream that goes on here.
        """
        most = self._limit + _GATEWAY_ADDS + (_SENT_IDS if resumes else 0)
        try:
            async with asyncio.timeout(_WHOLE_WITHIN_S):
                return await self._read(receive, most)
        except TimeoutError:
            text = f"the body did not arrive within {_WHOLE_WITHIN_S:g} s: send it faster"
            raise ApiError(408, text, code="body_timeout") from None

    async def _read(self, receive: Receive, most: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                self._arriving += len(parts[-1])
                self._check(size, most)
                if not message.get("more_body"):
                    return b"".join(parts)
        finally:
            self._arriving -= size

    def _check(self, size: int, most: int) -> None:
        if size > most:
            text = f"the body is larger than {self._limit} bytes: send a shorter prompt"
            raise ApiError(413, text, code="body_too_large")
        if size > SHORT_BYTES and self._arriving > max(self._most, most):
            raise overloaded(f"bodies of {self._arriving} bytes are arriving; retry later")


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
