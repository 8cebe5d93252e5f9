"""Request bodies in memory: those that still arrive and those of requests in flight are bounded.

`server.app` opens one Body per request and closes it when the request has ended. If the arriving
bodies together take too much, the one that began first is given up. A client of usual speed is
never the oldest for long, and many clients that never finish cost a bounded number of bytes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from argosy_gateway.config import Limits
from argosy_gateway.errors import ClientGoneError, RequestError

__all__ = ["Bodies", "Body"]

Receive = Callable[[], Awaitable[dict[str, Any]]]

_READ_OVER = 8
"""A body beyond the limit is read and dropped up to so many times the limit. Closing on a client
that still sends resets the connection, and the client never sees the 413."""
_CLOSE = {"connection": "close"}


class Bodies:
    """All bodies of one process."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.arriving = 0
        """Bytes of bodies that still arrive."""
        self.held = 0
        """Bytes of bodies of requests in flight."""
        self._unfinished: dict[Body, None] = {}
        """Bodies that still arrive, oldest first."""

    def open(self) -> "Body":
        """A body for one request, to be used with `with`."""
        return Body(self)

    def begin(self, body: "Body") -> None:
        """The body is about to arrive."""
        self._unfinished[body] = None

    def grow(self, body: "Body", size: int) -> None:
        """So many more bytes have arrived. Gives up the oldest bodies if all take too much."""
        body.size += size
        self.arriving += size
        while self.arriving > max(self.limits.arriving_bytes, self.limits.body_bytes):
            self._leave(oldest := next(iter(self._unfinished)))
            oldest.give_up()

    def finish(self, body: "Body") -> None:
        """The body is whole. Raises RequestError (429) if requests in flight hold too much."""
        self._leave(body)
        if self.held + body.size > max(self.limits.held_bytes, self.limits.body_bytes):
            raise RequestError(
                429,
                "The requests in flight hold too many bytes; try again later.",
                type="overloaded",
                code="overloaded",
                headers={"retry-after": "1", "retry-after-ms": "1000"},
            )
        self.held += body.size
        body.whole = True

    def close(self, body: "Body") -> None:
        """The request has ended, or its body was given up."""
        self._leave(body)
        if body.whole:
            self.held -= body.size
            body.whole = False

    def _leave(self, body: "Body") -> None:
        if body in self._unfinished:
            del self._unfinished[body]
            self.arriving -= body.size


class Body:
    """One request's body."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._deadline: asyncio.Timeout | None = None
        self._given_up = False
        self._data = bytearray()
        self.size = 0
        self.whole = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bodies.close(self)

    async def read(self, receive: Receive, announced: int, *, sent_all: bool = False) -> bytes:
        """The whole body; `announced` is its content-length, 0 if there is none. `sent_all`: it has
        arrived, so no time limit is needed.

        Raises RequestError (408, 413, 429, 503) and ClientGoneError.
        """
        limits = self._bodies.limits
        if announced > _READ_OVER * limits.body_bytes:
            raise self._too_large()
        self._bodies.begin(self)
        try:
            if sent_all:
                size = await self._take(receive)
            else:
                async with asyncio.timeout(limits.body_s) as self._deadline:
                    size = await self._take(receive)
        except TimeoutError as error:
            raise self._too_slow() from error
        if self._given_up:  # its last part had arrived before the reading was cancelled
            raise self._too_slow()
        if size > limits.body_bytes:
            raise self._too_large()
        self._bodies.finish(self)
        data, self._data = bytes(self._data), bytearray()
        return data

    def give_up(self) -> None:
        """Cancel the reading; the memory is free at once."""
        self._given_up = True
        self._data.clear()
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(0)

    async def _take(self, receive: Receive) -> int:
        limits, size = self._bodies.limits, 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part = message.get("body", b"")
            size += len(part)
            if size <= limits.body_bytes and not self._given_up:
                self._data += part
                self._bodies.grow(self, len(part))
            if size > _READ_OVER * limits.body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return size

    def _too_large(self) -> RequestError:
        text = f"The request body is larger than {self._bodies.limits.body_bytes} bytes."
        return RequestError(413, text, headers=_CLOSE)

    def _too_slow(self) -> RequestError:
        if not self._given_up:
            text = f"The request body did not arrive within {self._bodies.limits.body_s:g} s."
            return RequestError(408, text, headers=_CLOSE)
        return RequestError(
            503,
            "Too many request bodies arrive at once, and this one began first; send it again.",
            type="overloaded",
            code="overloaded",
            headers={"retry-after": "1", **_CLOSE},
        )
