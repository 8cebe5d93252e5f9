"""A gateway without sockets of its own: a test calls it as ASGI, and its clock is the test's.

Its engines listen on loopback as in `engines.py`. Only the clock's steps count: what a test takes
in real time is in no TTFT and no TPOT.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from argosy_gateway.config import Config
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.server.app import CLIENT, RECEIVED_AT, api_app
from tests.gateway.engines import Engine, Seen, started

CHAT = "/v1/chat/completions"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Client:
    """One request and what it is answered."""

    def __init__(
        self,
        gateway: "World",
        body: object,
        path: str,
        headers: Iterable[tuple[bytes, bytes]] = (),
        method: str = "POST",
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._incoming = [{"type": "http.request", "body": data}]
        self._when_gone: Callable[[], None] | None = None
        self._read = asyncio.Condition()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.text = ""
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": list(headers),
            "state": {RECEIVED_AT: gateway.clock(), CLIENT: self},
        }
        self.whole = asyncio.create_task(gateway.app(scope, self._receive, self._send))

    async def leave(self) -> None:
        """Close the connection."""
        assert self._when_gone is not None
        self._when_gone()
        await self.whole

    async def reads(self, text: str, times: int = 1) -> None:
        """Wait until the answer has the text so many times."""
        async with asyncio.timeout(5), self._read:
            await self._read.wait_for(lambda: self.text.count(text) >= times)

    async def _receive(self) -> dict[str, Any]:
        return self._incoming.pop()

    sent_all = True
    has_room = False
    """Each part of the answer comes through `_send`."""

    def on_gone(self, call: Callable[[], None] | None) -> None:
        self._when_gone = call

    async def _send(self, message: dict[str, Any]) -> None:
        async with self._read:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            self.text += message.get("body", b"").decode()
            self._read.notify_all()


@dataclass
class World(Seen):
    """A gateway whose time stands still unless a test advances it."""

    app: Any
    clock: Clock
    client: Client | None = None
    """The latest."""

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds

    def ask(
        self,
        body: object,
        path: str = CHAT,
        headers: Iterable[tuple[bytes, bytes]] = (),
        method: str = "POST",
    ) -> Client:
        """Send a request now."""
        self.client = Client(self, body, path, headers, method)
        return self.client

    async def answered(
        self,
        body: object,
        path: str = CHAT,
        headers: Iterable[tuple[bytes, bytes]] = (),
        method: str = "POST",
    ) -> Client:
        """Send a request and wait until it has ended."""
        client = self.ask(body, path, headers, method)
        async with asyncio.timeout(5):
            await client.whole
        return client


@contextlib.asynccontextmanager
async def direct(*engines: Engine, **settings: Any) -> AsyncIterator[World]:
    """Start engines and a gateway that knows them; stop the engines."""
    clock = Clock()
    fleet = Gateway(Config("f", "ns", ("m",), **settings), clock)
    async with started(fleet, engines):
        yield World(fleet, api_app(fleet), clock)
