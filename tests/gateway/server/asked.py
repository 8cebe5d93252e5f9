"""Requests to an ASGI app, without a server around it."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from argosy_gateway.config import Config
from argosy_gateway.relay.gateway import Gateway
from argosy_gateway.server.app import CLIENT, RECEIVED_AT


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Client:
    """A client that has sent its request and takes its answer through ASGI."""

    sent_all = True
    has_room = False

    def __init__(self) -> None:
        self.when_gone: Callable[[], None] | None = None

    def on_gone(self, call: Callable[[], None] | None) -> None:
        self.when_gone = call


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def gateway_of(**settings: Any) -> Gateway:
    """A fleet without pods whose time stands still; `fleet.clock.now` moves it."""
    names = {"fleet": "f", "namespace": "ns", "served_names": ("m",)}
    gateway = Gateway(Config(**{**names, **settings}), Clock())
    gateway.directory.replace([])
    return gateway


async def asked(
    app: Any,
    path: str,
    method: str = "GET",
    body: bytes | None = b"",
    headers: Iterable[tuple[bytes, bytes]] = (),
    received_at: float = 1000.0,
    client: Client | None = None,
) -> Answer | None:
    """What the app answers to one request, None if nothing; its client then leaves. It leaves
    within its body if that is None."""
    sent: list[dict[str, Any]] = []
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    if body is None:
        incoming = []

    async def receive() -> dict[str, Any]:
        return incoming.pop() if incoming else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": list(headers),
        "state": {RECEIVED_AT: received_at, CLIENT: client or Client()},
    }
    await app(scope, receive, send)
    if not sent:
        return None
    start, *rest = sent
    assert [start["type"], *(message["type"] for message in rest)] == [
        "http.response.start",
        "http.response.body",
    ]
    names = {name.decode(): value.decode() for name, value in start["headers"]}
    assert len(names) == len(start["headers"])
    return Answer(start["status"], names, rest[0]["body"])
