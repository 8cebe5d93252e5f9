"""What both ASGI apps share: types, small answers, CORS."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from argosy_gateway.relay.answer import ClientBody, Send

__all__ = [
    "App",
    "Client",
    "Receive",
    "Scope",
    "add_headers",
    "cors_headers",
    "header",
    "is_preflight",
    "respond",
]

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


_ANY = "*"
_PREFLIGHT_S = b"600"
"""How long a browser need not ask again; Chromium and Firefox have longer limits of their own."""

Headers = list[tuple[bytes, bytes]]


def is_preflight(scope: Scope) -> bool:
    """Return whether a browser asks what a page may send, before it sends it."""
    asks = header(scope, b"access-control-request-method") is not None
    return scope["method"] == "OPTIONS" and asks


def cors_headers(origins: Collection[str], scope: Scope) -> Headers:
    """Return the headers of an answer for the page that sent this request; none if it may not read
    the answer, or is no page."""
    origin = header(scope, b"origin")
    if origin is None or not (_ANY in origins or origin.decode("latin-1") in origins):
        return []
    found = [(b"access-control-allow-origin", b"*" if _ANY in origins else origin)]
    if _ANY not in origins:
        found.append((b"vary", b"origin"))  # a cache must not give this answer to other pages
    if not is_preflight(scope):
        return [*found, (b"access-control-expose-headers", b"*")]
    wanted = header(scope, b"access-control-request-headers")
    return [
        *found,
        (b"access-control-allow-methods", b"GET, POST"),
        *([(b"access-control-allow-headers", wanted)] if wanted else []),
        (b"access-control-max-age", _PREFLIGHT_S),
    ]


def add_headers(send: Send, more: Headers) -> Send:
    """Return a `send` that adds these headers to the head of an answer."""

    async def send_with_headers(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            assert isinstance(headers, list | tuple)
            message = {**message, "headers": [*headers, *more]}
        await send(message)

    return send_with_headers
