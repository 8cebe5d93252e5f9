"""CORS: lets browsers show our answers to pages of other origins (`--cors-origin`).

Only headers of answers change: streams are written as they come.
"""

from collections.abc import Collection

from argosy_gateway.relay.answer import Send
from argosy_gateway.server.asgi import Scope, header

__all__ = ["cors_headers", "is_preflight", "with_headers"]

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


def with_headers(send: Send, more: Headers) -> Send:
    """Return a `send` that adds these headers to the head of an answer."""

    async def added(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            assert isinstance(headers, list | tuple)
            message = {**message, "headers": [*headers, *more]}
        await send(message)

    return added
