"""Clients of a server that listens nowhere: a test sends their bytes and reads the answers."""

import asyncio
import json
from typing import Any

from argosy_gateway.config import Config
from argosy_gateway.server.guard import Guard
from argosy_gateway.server.serve import _server
from tests.gateway.transports import Transport

START = {"type": "http.response.start", "status": 200, "headers": []}
GET = b"GET /a HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /a HTTP/1.1\r\nhost: x\r\n"
HI = POST + b"content-length: 2\r\n\r\nhi"
HI_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
OFFER = POST + b"connection: upgrade\r\nupgrade: h2c\r\n"
LAST_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"


def refused(status, message):
    """The bytes of an answer that the guard gives by itself, before it closes."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    body = json.dumps({"error": error}, separators=(",", ":")).encode()
    return (
        b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body
    )


TOO_LARGE = refused(b"431 Request Header Fields Too Large", "The request's head is too large.")
INVALID = refused(b"400 Bad Request", "Invalid HTTP request received.")


class Echo:
    """An ASGI app that answers with the body that it got, and remembers what it was asked."""

    def __init__(self, *, length: bool = True) -> None:
        self.asked: list[tuple[str, str, bytes]] = []
        """Method, path and body of each whole request."""
        self.scopes: list[dict[str, Any]] = []
        self.go_on = asyncio.Event()
        """Cleared, requests wait with their answer."""
        self.go_on.set()
        self._length = length

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body, more = body + message["body"], message["more_body"]
        self.asked.append((scope["method"], scope["path"], body))
        await self.go_on.wait()
        length = [(b"content-length", str(len(body)).encode())] if self._length else []
        await send({**START, "headers": length})
        await send({"type": "http.response.body", "body": body})


class Client:
    """One connection to the server."""

    def __init__(self, guard: Guard) -> None:
        self.guard, self.transport = guard, Transport()
        self.transport.set_protocol(guard)
        guard.connection_made(self.transport)

    async def sends(self, *parts: bytes) -> bytes:
        """Send these bytes, part by part; what was answered until all that can go on has."""
        before = len(self.transport.written)
        for part in parts:
            if not self.transport.closing:
                self.guard.data_received(part)
            await turns()
        return self.transport.written[before:]

    @property
    def open(self) -> bool:
        return not self.transport.closing


class Server:
    """What `serve` makes of an app, without its sockets."""

    def __init__(self, app: Any, **settings: Any) -> None:
        config = Config("f", "ns", ("m",), **settings)
        self.server = _server(app, config, port=0, drain_timeout_s=1)
        self.server.config.load()

    def client(self) -> Client:
        """A new connection."""
        make = self.server.config.http_protocol_class
        assert isinstance(make, type)
        state = self.server.server_state
        return Client(make(config=self.server.config, server_state=state, app_state={}))


async def turns() -> None:
    """Let everything run that waits for no time."""
    for _ in range(20):
        await asyncio.sleep(0)
