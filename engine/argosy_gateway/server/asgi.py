"""What both ASGI apps share: the types of the protocol, and how a small answer is sent."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from argosy_gateway.relay.answer import ClientBody, Send

__all__ = ["App", "Client", "Receive", "Scope", "header", "respond"]

Receive = Callable[[], Awaitable[dict[str, Any]]]
Scope = Mapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Client(ClientBody, Protocol):
    """The client of a request, as the server offers it beside ASGI."""

    @property
    def sent_all(self) -> bool:
        """The whole request has arrived: `receive` does not wait before its end."""
        ...

    def on_gone(self, call: Callable[[], None] | None) -> None:
        """Call this when the client leaves, soon if it has left; None: call nothing any more."""
        ...


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first request header of that name, which is in lower case."""
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    for key, value in headers:
        if key == name:
            return value
    return None


async def respond(
    send: Send,
    status: int,
    body: bytes,
    request_id: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Send a whole answer. It is JSON unless `headers` has another content type."""
    fields = {"content-type": "application/json", "content-length": str(len(body))}
    if request_id:
        fields["x-request-id"] = request_id
    fields |= headers or {}
    pairs = [(k.encode(), v.encode()) for k, v in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
