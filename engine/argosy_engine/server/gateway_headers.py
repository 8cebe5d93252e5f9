"""Headers between Argosy's gateway and this engine.

The gateway names prefill engines, a priority, an attempt and limits. Every answer of the API port
names the pod that gave it, errors included: a pod's address may be given to another pod, of another
fleet even, before a gateway hears of it. An engine that drains closes each connection after its
answer: callers keep connections, and it has no next answer.
"""

import re
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from argosy_engine.server.openai.errors import ApiError
from argosy_engine.server.role import EngineRole

MAX_CANDIDATES = 8

_UID = re.compile(r"[A-Za-z0-9._-]{0,64}")
_CANDIDATE = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")


def candidates(addresses: str, uids: str | None) -> tuple[str, ...]:
    """Addresses, each with "/" and its pod's uid where the gateway names uids, too.

    Input: the values of `x-argosy-prefill` and `x-argosy-prefill-uids`. Raises ApiError.
    """
    found = tuple(part.strip() for part in addresses.split(","))
    pods = ("," * (len(found) - 1) if uids is None else uids).split(",")
    well_formed = all(map(_CANDIDATE.fullmatch, found)) and all(map(_UID.fullmatch, pods))
    if not well_formed or len(pods) != len(found) or len(found) > MAX_CANDIDATES:
        raise ApiError(
            400,
            f"x-argosy-prefill: write at most {MAX_CANDIDATES} of ip:port, comma between, and "
            "in x-argosy-prefill-uids as many uids of their pods, or no such header",
            param="x-argosy-prefill",
        )
    pairs = zip(found, pods, strict=True)
    return tuple(f"{address}/{uid}" if uid else address for address, uid in pairs)


def kept_at(value: str) -> str:
    """From `x-argosy-kept-at`: an address, "/" and its pod's uid. Raises ApiError."""
    address, _, uid = value.partition("/")
    if not (_CANDIDATE.fullmatch(address) and _UID.fullmatch(uid)):
        raise ApiError(400, "x-argosy-kept-at: write ip:port/uid", param="x-argosy-kept-at")
    return value


_PRIORITY = re.compile(r"-?[0-9]{1,3}")
_MILLISECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")


def priority(value: str) -> int:
    """From `x-argosy-priority`. Raises ApiError."""
    if not _PRIORITY.fullmatch(value):
        raise ApiError(400, "x-argosy-priority must be a whole number from -999 to 999")
    return int(value)


def tpot_limit_s(value: str | None) -> float:
    """From `x-argosy-tpot-ms`: seconds; 0 if the header is absent. Raises ApiError."""
    if value is None:
        return 0.0
    if not _MILLISECONDS.fullmatch(value) or not float(value):
        raise ApiError(400, "x-argosy-tpot-ms must be a number of milliseconds above 0, like 50")
    return float(value) / 1000


def first_token_by_s(value: str | None, arrival_s: float) -> float:
    """From `x-argosy-first-token-ms`, counted from the request's arrival here: until when its first
    token may wait for a batch; 0 if the header is absent. Raises ApiError."""
    if value is None:
        return 0.0
    if not _MILLISECONDS.fullmatch(value):
        message = "x-argosy-first-token-ms must be a number of milliseconds, like 180"
        raise ApiError(400, message)
    return arrival_s + float(value) / 1000


def attempt(value: str | None) -> int:
    """From `x-argosy-attempt`; 1 if it is absent or no number."""
    return int(value) if value is not None and value.isdecimal() and len(value) < 4 else 1


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
