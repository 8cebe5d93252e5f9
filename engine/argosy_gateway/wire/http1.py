"""One HTTP/1.1 call; bytes are handed over as they arrive.

`wire.pool` calls engines for `relay`, and `pods.watch` calls the API server. Streams pass here byte
by byte, so it must be cheap. httptools parses; a chunk that needs no waiting is passed on in the
callback in which it arrives (`Exchange.on_arrival`). designs/0012-front.md has the figures beside
aiohttp's client.

A connection is closed after its call, unless the answer was read to its end and the owner of the
exchange keeps it for the next one. An engine learns by the close that a request was aborted.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import httptools

from argosy.descriptors import are_out
from argosy_gateway.errors import BrokenError, ShortageError, StaleError, UnreachableError

__all__ = ["Exchange", "Head", "Keep", "authority", "call", "connect", "request_head"]

Keep = Callable[[asyncio.Transport], None]
"""Takes a connection over which another request can be sent."""

_HIGH_WATER_BYTES = 256 * 1024
"""Unread body beyond which the socket is not read, so that a slow client slows its engine."""
_HEAD_LIMIT_BYTES = 64 * 1024
"""Longest status line and headers of an answer."""
_REST_S = 1.0
"""From `release` to the last byte of the body, which only ends it."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers, names in lower case."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]

    def get(self, name: bytes) -> bytes | None:
        """The first header of that name, which is in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Exchange(asyncio.Protocol):
    """The response to one request; made by `call` or `wire.pool`."""

    __slots__ = (
        "_body",
        "_buffered",
        "_complete",
        "_error",
        "_framed",
        "_head",
        "_head_bytes",
        "_headers",
        "_keep",
        "_loop",
        "_parser",
        "_paused",
        "_rest_timer",
        "_reusable",
        "_reused",
        "_transport",
        "_waiter",
        "on_arrival",
        "waiting_since",
    )

    def __init__(self, keep: Keep | None = None, *, reused: bool = False) -> None:
        """`keep` gets the connection at the end, if it can be used again; None closes it. `reused`:
        it has had an answer before."""
        self._keep = keep
        self._reused = reused
        self._reusable = False  # the head says so, and nothing has come behind the answer
        self._rest_timer: asyncio.TimerHandle | None = None
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

    def send(self, head: bytes, body: bytes) -> None:
        """Send the request; once."""
        assert self._transport is not None
        self._transport.write(head + body)

    def release(self) -> None:
        """The answer needs no more reading: keep the connection if it can be used again.

        The last bytes of a stream's body may still be on their way, because `[DONE]` comes before
        them. The exchange must not be used afterwards.
        """
        if self._complete or self._keep is None or self._body:
            self._end()
        else:
            self._rest_timer = self._loop.call_later(_REST_S, self.abort)

    def _end(self) -> None:
        """Hand the connection over, or close it."""
        transport, self._transport = self._transport, None
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None
        if transport is None:
            return
        clean = self._complete and self._reusable and not self._body
        if clean and not transport.is_closing() and self._keep is not None:
            self._keep(transport)
        else:
            transport.abort()

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

    def _pass_on_arrived(self) -> bool:
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
        if self._rest_timer is not None:
            if self._complete or self._body:
                self._end()
            return
        if self._waiter is not None and self._body and self._pass_on_arrived():
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
                self._error = self._explain_early_end(exc)
        if self._rest_timer is not None:
            self._end()
        self._wake()

    def _explain_early_end(self, exc: Exception | None) -> BrokenError | UnreachableError:
        """What a connection's end before the answer's says about the engine."""
        why = f"connection closed early ({exc or 'end of stream'})"
        if not self._reused or self._head_bytes:
            return BrokenError(why)
        if isinstance(exc, TimeoutError):  # see `wire.pool`: no packet of the request was received
            return UnreachableError(f"a kept connection is dead: {exc}")
        return StaleError(why)

    # Called by httptools.

    def on_message_begin(self) -> None:
        if self._complete:  # a second answer, which nothing asked for
            self._reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        self._framed = self._framed or key in (b"content-length", b"transfer-encoding")
        self._headers.append((key, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._head is None:
            self._head = Head(status, tuple(self._headers))
            persists = self._parser.should_keep_alive()
            self._reusable = persists and self._parser.get_http_version() == "1.1"
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
    """Connect and send the only request. Raises UnreachableError. The caller must `abort` at the
    end."""
    exchange = await connect(Exchange, host, port, connect_s=connect_s, tls=tls)
    lines = [*headers, ("connection", "close")]
    if body or method == "POST":
        lines.append(("content-length", str(len(body))))
    exchange.send(request_head(method, target, authority(host, port), lines), body)
    return exchange


async def connect(
    make: Callable[[], Exchange],
    host: str,
    port: int,
    *,
    connect_s: float,
    tls: ssl.SSLContext | None,
) -> Exchange:
    """A new connection, TLS included. Raises UnreachableError, and ShortageError of that kind."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(connect_s):
            return (await loop.create_connection(make, host, port, ssl=tls))[1]
    except (OSError, TimeoutError, ssl.SSLError) as error:
        why = f"{host}:{port}: {str(error) or 'no answer'}"
        raise (ShortageError if are_out(error) else UnreachableError)(why) from error


def authority(host: str, port: int) -> str:
    """Host and port as the header `host` has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def request_head(method: str, target: str, host: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Request line and headers; `host` is an `authority`."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
