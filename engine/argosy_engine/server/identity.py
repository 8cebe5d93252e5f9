"""Every answer of the API port names the pod that gave it, errors included.

A pod's address may be given to another pod, of another fleet even, before a gateway hears of it.
The name tells the gateway whose answer it reads. An engine that drains closes each connection after
its answer: callers keep connections, and it has no next answer.
"""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from argosy_engine.server.role import EngineRole

__all__ = ["NamedApp", "plain_send"]

_SEND = "argosy.send"
"""Of a scope's extensions: the server's own `send`."""


def plain_send(scope: Scope, send: Send) -> Send:
    """For the rest of an answer whose head went through `send`: past all that only looks at heads,
    which costs a call each for every token of a stream."""
    found: Send = scope.get("extensions", {}).get(_SEND, send)
    return found


class NamedApp:
    """An ASGI application whose answers carry more headers."""

    def __init__(
        self, app: ASGIApp, role: EngineRole, pod_name: str, drains: Callable[[], bool]
    ) -> None:
        self._app = app
        self._role = role
        self._pod_name = pod_name.encode()
        self._drains = drains

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                name = b"x-argosy-decode-pod" if self._role.now == "decode" else b"x-argosy-pod"
                headers = [*message.get("headers", ()), (name, self._pod_name)]
                if self._drains():
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)

        extensions = {**scope.get("extensions", {}), _SEND: send}
        await self._app({**scope, "extensions": extensions}, receive, named)
