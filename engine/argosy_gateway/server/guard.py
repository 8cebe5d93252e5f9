"""One client's connection: `argosy.http_server.Guard`, with what the app wants to know.

`Guard` makes a Client for each request, over uvicorn's own state of it: what the app may know and
do without waiting. ASGI has a call for most of this, too, but each of its calls may wait. So a
caller needs a timer or a task of its own for it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from argosy import http_server
from argosy_gateway.server.app import CLIENT, RECEIVED_AT

__all__ = ["Client", "Guard"]


class Client:
    """See `relay.answer.ClientBody` and `server.asgi.Client`."""

    __slots__ = ("_cycle", "_on_gone", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._on_gone: Callable[[], None] | None = None
        if cycle.scope["method"] != "HEAD":  # nothing follows the head of its answer
            cycle.transport = _HeadWaits(cycle)

    @property
    def sent_all(self) -> bool:
        """The whole request has arrived."""
        return not self._cycle.more_body

    @property
    def has_room(self) -> bool:
        """The head of an answer in chunks is sent, and the client reads."""
        cycle = self._cycle
        ended = cycle.disconnected or cycle.response_complete
        if cycle.transport is not self._transport:  # the head still waits: a part would overtake it
            return False
        return cycle.chunked_encoding is True and not cycle.flow.write_paused and not ended

    def write(self, part: bytes) -> None:
        """Write a part of the body at once, in the form that uvicorn would use."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))

    def on_gone(self, call: Callable[[], None] | None) -> None:
        """Call this when the client leaves, soon if it has left; None: call nothing any more."""
        self._on_gone = call
        if call is None:
            return
        if self._cycle.disconnected:
            asyncio.get_running_loop().call_soon(call)
        else:
            self._cycle.flow.resume_reading()  # a socket that is not read shows no end

    def connection_lost(self) -> None:
        """Called by `guard`. After a whole answer the client may leave."""
        if self._on_gone is not None and self._cycle.disconnected:
            self._on_gone()


class _HeadWaits(asyncio.Transport):
    """The connection to which uvicorn writes an answer: the head goes out with what follows it.

    uvicorn writes the head by itself, and an app sends the first bytes of the body right behind it.
    Two writes would be two system calls here, and the client would wake up twice.
    """

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head: bytes | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """The first bytes of an answer are its head; what comes before is "100 Continue"."""
        if not self._cycle.response_started:
            self._transport.write(data)
        elif self._head is None:
            self._head = bytes(data)
        else:
            self._cycle.transport = self._transport
            self._transport.write(self._head + bytes(data))

    def close(self) -> None:
        """The app has failed behind the head."""
        self._transport.write(self._head or b"")
        self._transport.close()

    def is_closing(self) -> bool:
        """See `asyncio.Transport`."""
        return self._transport.is_closing()


class Guard(http_server.Guard):
    """Tells the app when the first byte of a request came, and when its client leaves."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._client: Client | None = None
        """Of the latest request."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._client is not None:
            self._client.connection_lost()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.in_head:
            self.scope["state"][RECEIVED_AT] = self.loop.time()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._client = cycle.scope["state"][CLIENT] = Client(cycle)
        super()._start_asgi_task(cycle, app)
