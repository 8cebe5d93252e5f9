"""One HTTP/1.1 call per connection; bytes are handed over as they arrive.

`relay.attempt` calls engines and `pods.watch` the API server. Streams pass here byte by byte, so it
must be cheap. httptools parses; a chunk that needs no waiting is passed on in the callback in which
it arrives (`Exchange.on_arrival`). designs/0012-front.md has the figures beside aiohttp's client.

A connection is closed after its call: that is how an engine learns that a request was aborted, and
without a pool no stale connection can look like a failed engine.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import httptools

from argosy_gateway.errors import BrokenError, UnreachableError

__all__ = ["Exchange", "Head", "call"]

_HIGH_WATER_BYTES = 256 * 1024
"""Unread body beyond which the socket is not read, so that a slow client slows its engine."""
_HEAD_LIMIT_BYTES = 64 * 1024
"""Longest status line and headers of an answer."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers, names in lower case."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]

    def get(self, name: bytes) -> bytes | None:
        """The first header of that name, which is in lower case."""
        return next((value for key, value in self.headers if key == name), None)


class Exchange(asyncio.Protocol):
    """The response to one request; made by `call`."""

    __slots__ = (
        "_body",
        "_buffered",
        "_complete",
        "_error",
        "_framed",
        "_head",
        "_head_bytes",
        "_headers",
        "_loop",
        "_parser",
        "_paused",
        "_transport",
        "_waiter",
        "on_arrival",
        "waiting_since",
    )

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head: Head | None = None
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._framed = False  # by length or chunks; otherwise the connection's end ends the body
        self._complete = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.on_arrival: Callable[[bytes], bool] | None = None
        """Called with what arrives while `read` waits; set after `head`. True: the bytes were
        taken, and `read` waits on. This saves the turn of the event loop that wakes the reader."""
        self.waiting_since: float | None = None
        """Event loop time since which `head` or `read` waits; None while neither does."""

    # Called by the user of the exchange.

    @property
    def answered(self) -> bool:
        """The head has come."""
        return self._head is not None

    async def head(self) -> Head:
        """Wait for status line and headers. Raises BrokenError."""
        while self._head is None:
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """All that has arrived, at least one byte; b"" at the end. Raises BrokenError."""
        while not self._body:
            if self._complete:
                return b""
            await self._wait()
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def abort(self, reason: str = "aborted") -> None:
        """Close now; a waiting `head` or `read` raises BrokenError(reason)."""
        if self._error is None and not self._complete:
            self._error = BrokenError(reason)
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        self.waiting_since = self._loop.time()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self.waiting_since = None

    def _is_taken(self) -> bool:
        """Whether `on_arrival` takes what has arrived. The reader itself gets the body's end."""
        if self.on_arrival is None or self._complete:
            return False
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        if not self.on_arrival(data):
            return False
        self._body.clear()
        self._buffered = 0
        self.waiting_since = self._loop.time()
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        if self._error is not None:
            return
        if self._head is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort(f"not HTTP/1.1: {error}")
            return
        if self._head is None and self._head_bytes > _HEAD_LIMIT_BYTES:
            self.abort("response headers larger than 64 KiB")
            return
        if self._waiter is not None and self._body and self._is_taken():
            return
        if self._buffered > _HIGH_WATER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._complete and self._error is None:
            if self._head is not None and not self._framed and exc is None:
                self._complete = True
            else:
                self._error = BrokenError(f"connection closed early ({exc or 'end of stream'})")
        self._wake()

    # Called by httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        self._framed = self._framed or key in (b"content-length", b"transfer-encoding")
        self._headers.append((key, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._head is None:
            self._head = Head(status, tuple(self._headers))
        self._headers.clear()

    def on_body(self, body: bytes) -> None:
        if self._complete:  # a second answer, which nothing asked for
            return
        self._body.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        self._complete = self._head is not None


async def call(
    host: str,
    port: int,
    *,
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    connect_s: float,
    tls: ssl.SSLContext | None = None,
) -> Exchange:
    """Connect and send one request. Raises UnreachableError. The caller must `abort` at the end."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(connect_s):
            transport, exchange = await loop.create_connection(Exchange, host, port, ssl=tls)
    except (OSError, TimeoutError, ssl.SSLError) as error:
        raise UnreachableError(f"{host}:{port}: {error or 'no answer'}") from error
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"{method} {target} HTTP/1.1", f"host: {authority}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body or method == "POST":
        lines.append(f"content-length: {len(body)}")
    transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    return exchange
