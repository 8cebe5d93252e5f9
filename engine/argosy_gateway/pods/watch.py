"""Keeps pods and settings as the API server has them, or the pods as a file has them.

It lists pods, then watches from the list's resourceVersion. On 410 it lists again; on any other
error it watches again from the last version seen. While the API server fails, the directory stays
as it is and `relay` goes on serving. The same holds when the API server denies access to this
gateway, but then the directory records it, because other gateways may still have access. A denial
counts only from a server that reports itself healthy: one that cannot read etcd rejects every
token, and that must not turn every gateway unready.

The fleet's settings object is read by a call each few seconds, not by a watch: the right to watch
one ConfigMap cannot be given by an operator that has no right to list them. `options` knows what is
in it. While the API server fails, the settings stay as they are.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from argosy_gateway.errors import (
    AccessDeniedError,
    ApiServerError,
    ExchangeError,
    StaleVersionError,
)
from argosy_gateway.pods.credentials import ApiServer
from argosy_gateway.pods.endpoints import (
    FLEET_LABEL,
    Directory,
    Endpoint,
    Role,
    State,
    endpoint_of_pod,
    is_ready_gateway,
)
from argosy_gateway.wire import http1

__all__ = ["WatchTimes", "follow_api_server", "follow_file", "follow_settings"]

log = logging.getLogger(__name__)

_PAGE = 500
"""Pods per page of a list, as kubectl asks."""
_LINE_LIMIT_BYTES = 8 << 20
"""Longest event; objects in etcd are at most 1.5 MiB."""


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """How long the watch waits for the API server, in seconds."""

    server_timeout_s: int = 290
    """The API server ends a watch after this time, less a random tenth, so that gateways do not
    reconnect at once. client-go asks for 5 to 10 minutes."""
    silence_s: float = 150.0
    """A watch that sends nothing for so long is dead: bookmarks come about once a minute."""
    connect_s: float = 5.0
    """To connect, TLS included."""
    answer_s: float = 30.0
    """To the first byte of an answer, and to the end of a page of the list."""
    first_backoff_s: float = 0.2
    """After the first error. Each further one doubles it."""
    longest_backoff_s: float = 10.0


_NOT_USABLE = (
    ExchangeError,
    ApiServerError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""Calls that failed, and answers that cannot be used. The last four errors come from JSON of
another shape than a list's or an event's, for example from a proxy in between."""


async def follow_api_server(
    server: ApiServer, *, namespace: str, fleet: str, into: Directory, times: WatchTimes
) -> None:
    """Keep `into` current until cancelled."""
    selector = urlencode({"labelSelector": f"{FLEET_LABEL}={fleet}"})
    target = f"/api/v1/namespaces/{namespace}/pods?{selector}"
    version: str | None = None
    backoff_s = times.first_backoff_s
    while True:
        try:
            if version is None:
                version = await _list(server, target, into, times)
                backoff_s = times.first_backoff_s
            async for seen in _watch(server, target, version, into, times):
                version, backoff_s = seen, times.first_backoff_s
            # A server that ends each watch at once must not be called without a pause.
            await asyncio.sleep(times.first_backoff_s)
        except StaleVersionError:
            log.info("watch of pods is too old to continue; listing again")
            version = None
        except _NOT_USABLE as error:
            if isinstance(error, AccessDeniedError) and await _is_healthy(server, times):
                into.deny_access()
            log.warning("API server: %r; serving with the pods known so far", error)
            await asyncio.sleep(backoff_s * random.uniform(0.8, 1.2))  # noqa: S311
            backoff_s = min(2 * backoff_s, times.longest_backoff_s)


async def _is_healthy(server: ApiServer, times: WatchTimes) -> bool:
    """Whether /readyz answers 200. The call has no token, because a token is what was denied. A
    server that denies calls without one (401, 403) counts as healthy."""
    try:
        exchange = await _call(replace(server, token=None, token_file=None), "/readyz", times)
        try:
            async with asyncio.timeout(times.answer_s):
                return (await exchange.head()).status in (200, 401, 403)
        finally:
            exchange.abort()
    except (*_NOT_USABLE, TimeoutError):
        return False


async def _call(server: ApiServer, target: str, times: WatchTimes) -> http1.Exchange:
    return await http1.call(
        server.host,
        server.port,
        method="GET",
        target=target,
        headers=[*server.headers(), ("accept", "application/json")],
        connect_s=times.connect_s,
        tls=server.context(),
    )


async def _open_answer(
    server: ApiServer, target: str, into: Directory, times: WatchTimes
) -> http1.Exchange:
    """The answer to a list or a watch, after its status was checked."""
    exchange = await _call(server, target, times)
    try:
        async with asyncio.timeout(times.answer_s):
            head = await exchange.head()
            if head.status == 410:
                raise StaleVersionError
            if head.status != 200:
                kind = AccessDeniedError if head.status in (401, 403) else ApiServerError
                raise kind(f"{head.status}: {(await exchange.read())[:300]!r}")
    except TimeoutError as error:
        exchange.abort()
        raise ApiServerError(f"no answer within {times.answer_s:g} s") from error
    except BaseException:
        exchange.abort()
        raise
    into.grant_access()
    return exchange


async def _list(server: ApiServer, target: str, into: Directory, times: WatchTimes) -> str:
    """Replace the directory's content by a full list. Returns the list's resourceVersion."""
    found: list[Endpoint] = []
    gateways: dict[str, str] = {}
    more = ""
    while True:
        page = urlencode({"limit": _PAGE, **({"continue": more} if more else {})})
        exchange = await _open_answer(server, f"{target}&{page}", into, times)
        body = bytearray()
        try:
            async with asyncio.timeout(times.answer_s):
                while data := await exchange.read():
                    body += data
        except TimeoutError as error:
            raise ApiServerError(f"the list did not end within {times.answer_s:g} s") from error
        finally:
            exchange.abort()
        answer = json.loads(body)
        items = answer.get("items") or []
        found += [e for pod in items if (e := endpoint_of_pod(pod))]
        metas = [pod["metadata"] for pod in items if is_ready_gateway(pod)]
        gateways |= {meta["uid"]: meta["name"] for meta in metas}
        more = answer["metadata"].get("continue") or ""
        if not more:
            into.replace(found, gateways)
            log.info("listed %d engine pods", len(found))
            return str(answer["metadata"]["resourceVersion"])


async def _watch(
    server: ApiServer, target: str, version: str, into: Directory, times: WatchTimes
) -> AsyncIterator[str]:
    """Apply the events of one watch until the server ends it. Yields the version after each."""
    timeout_s = int(times.server_timeout_s * random.uniform(0.9, 1.0))  # noqa: S311
    query = {
        "watch": "1",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": timeout_s,
    }
    exchange = await _open_answer(server, f"{target}&{urlencode(query)}", into, times)
    try:
        async for line in _lines(exchange, times.silence_s):
            yield _apply(json.loads(line), into)
    finally:
        exchange.abort()


async def _lines(exchange: http1.Exchange, silence_s: float) -> AsyncIterator[bytes]:
    rest = b""
    while True:
        try:
            async with asyncio.timeout(silence_s):
                data = await exchange.read()
        except TimeoutError as error:
            raise ApiServerError(f"the watch was silent for {silence_s:g} s") from error
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _LINE_LIMIT_BYTES:
            raise ApiServerError("an event larger than 8 MiB")
        for line in lines:
            if line.strip():
                yield line


def _apply(event: dict[str, Any], into: Directory) -> str:
    kind, pod = event["type"], event["object"]
    if kind == "ERROR":  # then the object is a Status
        if pod.get("code") == 410:
            raise StaleVersionError
        raise ApiServerError(f"watch: {pod.get('message')}")
    meta = pod["metadata"]
    if kind in ("ADDED", "MODIFIED", "DELETED"):
        endpoint = endpoint_of_pod(pod)
        if kind != "DELETED" and is_ready_gateway(pod):
            into.put_gateway(meta["uid"], meta["name"])
        elif endpoint is None or kind == "DELETED":
            into.remove(meta.get("uid") or meta.get("name", ""))
        else:
            into.put(endpoint)
    return str(meta["resourceVersion"])


async def follow_file(path: Path, *, into: Directory, every_s: float = 0.1) -> None:
    """Keep `into` as a JSON file says: for tests and for fleets without a cluster.

    The file is a list of {"name", "role", "ip"} with optional "uid", "revision", "state", "port",
    "kv_port", "tls", "model", "adapters" and "engine". It is read every `every_s` seconds. The name
    must be the one that the engine sends: its `POD_NAME`, or its host's name without one. A file
    that cannot be read changes nothing.
    """
    seen: bytes | None = None
    last_error = ""
    while True:
        try:
            text = path.read_bytes()  # noqa: ASYNC240 (small and local)
            if text != seen:
                into.replace([_read_entry(entry) for entry in json.loads(text)])
                seen = text
        except _NOT_USABLE as error:
            if str(error) != last_error:
                log.warning("%s cannot be read: %r", path, error)
            last_error = str(error)
        await asyncio.sleep(every_s)


def _read_entry(entry: dict[str, Any]) -> Endpoint:
    return Endpoint(
        uid=entry.get("uid", entry["name"]),
        name=entry["name"],
        ip=entry["ip"],
        role=Role(entry["role"]),
        revision=entry.get("revision", ""),
        state=State(entry.get("state", State.SERVING)),
        port=entry.get("port", 8000),
        kv_port=entry.get("kv_port", 8002),
        tls=entry.get("tls", False),
        model=entry.get("model"),
        adapters=frozenset(entry.get("adapters", ())),
        engine=entry.get("engine", "argosy"),
    )


_SETTINGS_FAILED = (
    ExchangeError,
    ApiServerError,
    OSError,
    ValueError,
    RecursionError,
    TimeoutError,
)
_LONGEST_OBJECT_BYTES = 4 << 20
"""Objects in etcd are at most 1.5 MiB."""


async def follow_settings(
    server: ApiServer,
    target: str,
    take: Callable[[object], None],
    *,
    times: WatchTimes,
    every_s: float = 5.0,
) -> None:
    """Call `take` with `data` of the ConfigMap at the path `target`, or None where there is none,
    until cancelled; about each `every_s` seconds, and five times as often before the first."""
    pause_s, last_error = every_s / 5, ""
    while True:
        try:
            found = await _read_settings(server, target, times)
            take(found)
            last_error = ""
            if found is not None:
                pause_s = every_s
        except _SETTINGS_FAILED as error:
            if repr(error) != last_error:
                log.warning("the settings cannot be read: %r; they stay as they are", error)
            last_error = repr(error)
        await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311


async def _read_settings(server: ApiServer, target: str, times: WatchTimes) -> object:
    # From the API server's cache: without the parameter each call is one of etcd, too.
    exchange = await http1.call(
        server.host,
        server.port,
        method="GET",
        target=f"{target}?resourceVersion=0",
        headers=[*server.headers(), ("accept", "application/json")],
        connect_s=times.connect_s,
        tls=server.context(),
    )
    body = bytearray()
    try:
        async with asyncio.timeout(times.answer_s):
            head = await exchange.head()
            while data := await exchange.read():
                body += data
                if len(body) > _LONGEST_OBJECT_BYTES:
                    raise ApiServerError("an object larger than 4 MiB")
    finally:
        exchange.abort()
    if head.status == 404:
        return None
    if head.status != 200:
        raise ApiServerError(f"{head.status}: {bytes(body[:300])!r}")
    found = json.loads(body)
    if not isinstance(found, dict) or found.get("kind") != "ConfigMap":
        raise ApiServerError("the answer is no ConfigMap")
    return found.get("data") or {}
