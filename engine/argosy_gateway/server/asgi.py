"""What both ASGI apps share: the types of the protocol, and how a small answer is sent."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from argosy_gateway.relay.answer import Send

__all__ = ["App", "Receive", "Scope", "header", "respond"]

Receive = Callable[[], Awaitable[dict[str, Any]]]
Scope = Mapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


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
