"""One client's connection: uvicorn's protocol, with a limit for everything that a client may do.

uvicorn makes one Guard per connection (`serve` hands it the class). uvicorn alone waits without a
limit for a request's head and for a client that does not read; here both have one. The sweeper of
`serve` calls `Guard.check_time`.
"""

import asyncio
import socket
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from argosy_gateway.config import Limits
from argosy_gateway.server.app import CLIENT, RECEIVED_AT
from argosy_gateway.server.client import Client
from argosy_gateway.wire.openai import error_body

__all__ = ["Guard"]

_LEAST_READ_BYTES = 16_384
"""A client that reads less in `Limits.write_stall_s` does not read."""
_INVALID = "Invalid HTTP request received."
_FRAMING = (b"content-length", b"transfer-encoding")


class Guard(HttpToolsProtocol):
    """Closes connections that send no request in time or read no answer in time.

    A pipelined request, which arrives before the previous answer has ended, is dropped: the
    connection is closed after that answer, and the client sends the request again. If it waited,
    uvicorn would not notice that the client has left.
    """

    limits = Limits()
    max_connections = 4096
    """Beyond it the connection that is idle for longest is closed, or else the new one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._client: Client | None = None
        """Of the latest request."""
        self._in_head = False
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
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.send_buffer_bytes)
        if len(self.connections) > self.max_connections and not self._close_idlest():
            self._close_with(503, "Service Unavailable", "Too many connections.")
            return
        self._expect_within(self.limits.first_byte_s)

    def resume_writing(self) -> None:
        self._unsent = (0, 0.0)  # the client reads, even if the buffer is soon full again
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)
        if self._client is not None:
            self._client.connection_lost()

    def data_received(self, data: bytes) -> None:
        if self.surplus:
            return
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response(_INVALID)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._refuse_head()
            elif self._deadline is None:
                self._expect_within(self.limits.head_s)

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
        elif now - since > self.limits.write_stall_s:
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
        self.scope["state"][RECEIVED_AT] = self.loop.time()
        self._in_head, self._head_bytes = True, 0
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
        self._in_head = False
        self._expect_nothing()
        # A head that came in one piece was not counted while it arrived.
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.head_bytes:
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

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(app, cycle)
        self._client = cycle.scope["state"][CLIENT] = Client(cycle)
        super()._start_asgi_task(cycle, app)

    def _refuse_head(self) -> None:
        self.surplus = True
        self._close_with(431, "Request Header Fields Too Large", "The request's head is too large.")

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _close_idlest(self) -> bool:
        """Close the connection that waits longest for its next request; False if none waits."""
        waiting = [
            (connection.timeout_keep_alive_task.when(), id(connection), connection)
            for connection in self.connections
            if isinstance(connection, Guard)
            and connection.timeout_keep_alive_task is not None
            and not connection.transport.is_closing()
            and not connection.transport.get_write_buffer_size()
        ]
        if not waiting:
            return False
        min(waiting)[2].transport.close()
        return True

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(seconds, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_with(self, status: int, phrase: str, message: str) -> None:
        self._expect_nothing()
        body = error_body(message, type_="invalid_request_error")
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
