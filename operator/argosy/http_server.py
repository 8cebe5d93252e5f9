"""An HTTP server whose ports bound what strangers may do, before a caller has proven who it is.

uvicorn waits without a limit for a request's head and for a client that does not read, and takes
any number of connections. `Guard`, its protocol here, has a bound for each. uvicorn makes one for
each connection.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from argosy import descriptors

PROBES = 64
"""Most connections of a port for probes, Prometheus and the operator."""
_LEAST_READ_BYTES = 16_384
"""A client that reads less in `Bounds.write_stall_s` does not read."""
_INVALID = "Invalid HTTP request received."
_FRAMING = (b"content-length", b"transfer-encoding")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one connection may take, in bytes and seconds."""

    head_bytes: int = 32_768
    """Longest request line and headers; beyond it 431."""
    head_s: float = 10.0
    """From a request's first byte to the end of its headers; then the connection is closed."""
    first_byte_s: float = 5.0
    """From accept to a connection's first byte; then the connection is closed."""
    keep_alive_s: float = 65.0
    """Idle time of a connection between requests. Common clients close earlier, so a request does
    not meet a connection that is just being closed."""
    send_buffer_bytes: int = 256 * 1024
    """The kernel's send buffer for one client. Without a limit it grows to megabytes."""
    write_stall_s: float = 30.0
    """The connection of a client is aborted if it reads less than 16 KiB in this time while bytes
    wait for it."""


class Waiting:
    """The connections of one server that have no request, each kind in the order of its wait."""

    def __init__(self) -> None:
        self.idle: dict[Guard, None] = {}
        """They had an answer, and wait for the next request."""
        self.headless: dict[Guard, None] = {}
        """They have sent no whole head, or nothing at all."""

    def forget(self, connection: "Guard") -> None:
        self.idle.pop(connection, None)
        self.headless.pop(connection, None)

    def make_room(self) -> bool:
        """Close the connection that waits longest; False if none waits.

        First the idle ones: their clients expect that. Then those without a head. A new client
        sends its own at once, so a crowd of slow ones does not keep it out.
        """
        for connections in (self.idle, self.headless):
            while connections:
                oldest = next(iter(connections))
                del connections[oldest]
                transport = oldest.transport
                if not transport.is_closing() and not transport.get_write_buffer_size():
                    transport.abort()
                    return True
        return False


class Guard(HttpToolsProtocol):
    """Closes connections that send no request in time or read no answer in time.

    A pipelined request, which arrives before the previous answer has ended, is dropped: the
    connection is closed after that answer, and the client sends the request again. If it waited,
    uvicorn would not notice that the client has left.
    """

    bounds = Bounds()
    max_connections = 4096
    """Beyond it the connection that waits longest for a request is closed, or else the new one."""

    waiting = Waiting()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self.in_head = False
        """A head has begun and is not whole."""
        self._head_bytes = 0
        self._declining = False
        """The parser reads a head of ours, which says how long a request's body is."""
        self._unsent = (0, 0.0)
        """Bytes that wait for the client, and the loop time at which it last read enough."""
        self.surplus = False
        """A pipelined request or a malformed head came: what the client sends from then on is
    dropped."""

    # Called by asyncio.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.bounds.send_buffer_bytes)
        if len(self.connections) > self.max_connections and not self.waiting.make_room():
            self._close_with(503, "Service Unavailable", "Too many connections.")
            return
        self.waiting.headless[self] = None
        self._expect_within(self.bounds.first_byte_s)

    def resume_writing(self) -> None:
        self._unsent = (0, 0.0)  # the client reads, even if the buffer is soon full again
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self.waiting.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.surplus:
            return
        self._unset_keepalive_if_required()
        if self in self.waiting.idle:
            self.waiting.forget(self)
            self.waiting.headless[self] = None
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response(_INVALID)
        if self.in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.bounds.head_bytes:
                self._refuse_head()
                # It holds what came of the head, until the connection is lost.
                self.parser = None  # type: ignore[assignment]
            elif self._deadline is None:
                self._expect_within(self.bounds.head_s)
        elif self._deadline is None and not self._answering() and not self.transport.is_closing():
            # The rest of a body that was answered early, or empty lines: neither begins a head, and
            # both have ended the wait for the next one.
            self._expect_within(self.bounds.head_s)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])

    def _decline(self, rest: bytes) -> None:
        """Go on with a request that offered another protocol, as if it had not; `rest` follows its
        head.

        A server may ignore such an offer, but the parser has taken it: it ends the request, and
        reads no body. Java's own client makes an offer with every request. So a new parser reads
        on, from a head that has nothing but the length of the body.
        """
        if self.surplus:
            return
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        lines = [b"POST / HTTP/1.1", *(b": ".join(h) for h in self.headers if h[0] in _FRAMING)]
        self._declining = True
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))
        self._declining = False
        if rest:
            self._feed(rest)

    # Called by the sweeper.

    def check_time(self, now: float) -> None:
        """Abort if bytes wait for the client and it read less than 16 KiB in `write_stall_s`.

        Closing instead would wait until they are read. While an answer still grows, few bytes may
        only mean a slow engine: the client's time starts when the buffer is full or the answer is
        whole.
        """
        unsent, (before, since) = self.transport.get_write_buffer_size(), self._unsent
        full = self.flow.write_paused or self.transport.is_closing()
        growing = self._answering() and not full
        read = not unsent or not before - _LEAST_READ_BYTES < unsent <= before
        if growing or read:
            self._unsent = (unsent, now)
        elif now - since > self.bounds.write_stall_s:
            self.transport.abort()

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._declining:
            return
        if self._answering():
            self.surplus = True
            self.cycle.keep_alive = False
            self.headers = []  # those of the first request are in use
            return
        super().on_message_begin()
        self.in_head, self._head_bytes = True, 0
        self._expect_nothing()

    def on_url(self, url: bytes) -> None:
        if not self._declining:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._declining:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.surplus or self._declining:
            return
        problem = _problem_of_head(self.parser.get_http_version(), self.headers)
        if problem is not None:
            self.surplus = True
            self._close_with(400, "Bad Request", problem)
            return
        self.in_head = False
        self._expect_nothing()
        # A head that came in one piece was not counted while it arrived.
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.bounds.head_bytes:
            self._refuse_head()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.surplus:
            super().on_body(body)

    def on_message_complete(self) -> None:
        # When an offer is declined, the request ends with its body, not with its head.
        if not self.surplus and not self.parser.should_upgrade():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._answering():  # a second answer would be mixed into the first
            self.transport.abort()
        else:
            self._close_with(400, "Bad Request", msg)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self.waiting.idle[self] = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.waiting.forget(self)
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _refuse_head(self) -> None:
        self.surplus = True
        self._close_with(431, "Request Header Fields Too Large", "The request's head is too large.")

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_with(self, status: int, phrase: str, message: str) -> None:
        self._expect_nothing()
        kind = "invalid_request_error"
        error = {"message": message, "type": kind, "param": None, "code": None}
        body = json.dumps({"error": error}, separators=(",", ":")).encode()
        head = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _problem_of_head(version: str, headers: list[tuple[bytes, bytes]]) -> str | None:
    """What the parser accepts and RFC 9112 does not; proxies in front of us may read it otherwise.
    None if the head is well-formed."""
    if version not in ("1.0", "1.1"):
        return "The request line has no HTTP version that is served here: write HTTP/1.1."
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (version == "1.1" and not hosts):
        return f"A request has one host header, this one has {hosts}."
    return None


def _without_chunks(app: Any, cycle: RequestResponseCycle) -> Any:
    """HTTP/1.0 has no chunks: a body of unknown length ends with its connection. uvicorn closes it
    after such an answer in any case."""

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        async def pass_on(message: Any) -> None:
            cycle.chunked_encoding = False
            cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, pass_on)

    return plain


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: a process has two servers and its own order of ends."""

    def bound(self, bounds: Bounds, max_connections: int) -> None:
        """Bound connections that open from now on."""
        guard = self.config.http
        assert isinstance(guard, type)
        assert issubclass(guard, Guard)
        guard.bounds, guard.max_connections = bounds, max_connections

    def guards(self) -> list[Guard]:
        """Its open connections."""
        return [c for c in self.server_state.connections if isinstance(c, Guard)]

    def check_time(self, now: float) -> None:
        """Abort the connections of clients that do not read; see `Guard.check_time`."""
        for connection in self.guards():
            connection.check_time(now)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def server_config(
    app: Any, guard: type[Guard], bounds: Bounds, max_connections: int, **settings: Any
) -> uvicorn.Config:
    """The settings that all servers here share, over a class of connections of its own."""
    own = {"bounds": bounds, "max_connections": max_connections, "waiting": Waiting()}
    return uvicorn.Config(
        app,
        http=type("Guard", (guard,), own),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(bounds.keep_alive_s),
        # A crowd that connects at once waits in the kernel: what one turn of the event loop accepts
        # is open before the first of them can be closed again.
        backlog=descriptors.share(1 / 16, most=2048),
        **settings,
    )
