"""Stands before the ports 8000 and 8001: who calls, and which pod does the caller mean?

Two headers decide. `authorization` has the caller's token (`transfer.verifier`); without a valid
one the answer is 401. `x-argosy-pod-uid` names the pod that the caller means: an address may belong
to another pod by now, which answers 421. An engine that was started without `--peers-file` asks
nobody for a token.
"""

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from argosy_engine.server.openai.errors import ApiError
from argosy_engine.transfer.callers import Port, Verifier

_UNREAD_S = 5.0
"""How long the rest of a refused request is read. Closing on unread bytes would reset the
connection, and the caller might not see why it was refused."""


@dataclass(slots=True)
class ProvenApp:
    """An ASGI application behind the check."""

    app: ASGIApp
    verifier: Verifier | None
    port: Port

    pod_uid: str
    """Uid of this pod; "" if it is not known, then every caller means this pod."""

    open_paths: Collection[str] = ()
    """Probes and metrics: anyone may GET these."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/"):
            # It means the same path. Starlette would redirect to it, to a host and with a scheme
            # that behind a proxy are not the client's.
            scope = {**scope, "path": scope["path"].rstrip("/")}
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            await _refuse(refusal, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        if scope["path"] in self.open_paths and scope["method"] in ("GET", "HEAD"):
            return None
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self.verifier is not None:
            token = _token(headers.get(b"authorization"))
            if (unproven := self.verifier.check(token, self.port)) is not None:
                challenge = {"www-authenticate": "Bearer"}
                text, kind = unproven.message, "authentication_error"
                return ApiError(401, text, kind, code="unproven_caller", headers=challenge)
        meant = headers.get(b"x-argosy-pod-uid", b"").decode("latin-1")
        if meant and self.pod_uid and meant != self.pod_uid:
            text = f"this is not the pod {meant:.64}: look up its address again"
            return ApiError(421, text, param="x-argosy-pod-uid", code="wrong_pod")
        return None


def _token(value: bytes | None) -> bytes | None:
    """The token of an `authorization` header; None without one."""
    scheme, _, token = (value or b"").strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


async def _refuse(error: ApiError, receive: Receive, send: Send) -> None:
    body = error.body()
    fields = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **error.headers,
    }
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_UNREAD_S):
            while (await receive()).get("more_body"):
                pass
    await send({"type": "http.response.body", "body": body, "more_body": False})
