"""Reads the fleet's settings object again and again; `options` knows what is in it.

By a call each few seconds, not by a watch: the right to watch one ConfigMap cannot be given by an
operator that has no right to list them. While the API server fails, nothing is taken.
"""

import asyncio
import json
import logging
import random
from collections.abc import Callable

from argosy_gateway.errors import ApiServerError, ExchangeError
from argosy_gateway.pods.credentials import ApiServer
from argosy_gateway.pods.watch import WatchTimes
from argosy_gateway.wire import http1

__all__ = ["follow_settings"]

log = logging.getLogger(__name__)

_FAILED = (ExchangeError, ApiServerError, OSError, ValueError, RecursionError, TimeoutError)
_LONGEST_BYTES = 4 << 20
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
            found = await _read(server, target, times)
            take(found)
            last_error = ""
            if found is not None:
                pause_s = every_s
        except _FAILED as error:
            if repr(error) != last_error:
                log.warning("the settings cannot be read: %r; they stay as they are", error)
            last_error = repr(error)
        await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311


async def _read(server: ApiServer, target: str, times: WatchTimes) -> object:
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
                if len(body) > _LONGEST_BYTES:
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
