"""/health, /ready and /metrics on the admin port.

/health follows progress. It fails if a round neither ends nor fails in time, or if the event loop
hangs. A call that waits for the API server has a deadline, and its failure is progress: a restart
does not help while the API server is away. Standbys are healthy and ready.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

STUCK_S = 120.0
"""Without progress for so long, the process should be restarted."""
REQUEST_LIMIT_S = 5.0


class Probed(Protocol):
    """A process whose probes are asked."""

    ready: bool

    def stuck(self) -> str | None:
        """Why it should be restarted; None while it makes progress."""


class Health:
    """What the probes ask. `beat` is called after every attempt to take or renew the Lease,
    successful or not."""

    def __init__(self, busy_since: Mapping[tuple[str, str], float]) -> None:
        self._busy_since = busy_since
        self._beat_at = time.monotonic()
        self.ready = False

    def beat(self) -> None:
        self._beat_at = time.monotonic()

    def stuck(self) -> str | None:
        """Why this process should be restarted; None while it makes progress."""
        now = time.monotonic()
        if now - self._beat_at > STUCK_S:
            return f"no attempt to renew the Lease for {now - self._beat_at:.0f} s"
        for key, since in self._busy_since.items():
            if now - since > STUCK_S:
                return f"the round of {'/'.join(key)} has lasted {now - since:.0f} s"
        return None


async def serve(health: Probed, host: str, port: int) -> asyncio.Server:
    """Answer the probes and Prometheus. Too small to need a web framework."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                line = (await reader.readline()).decode("latin-1").split()
                while (await reader.readline()).strip():
                    pass
                status, kind, body = _page(health, line[1] if len(line) > 1 else "/")
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):
            pass  # a client that is slow or does not speak HTTP
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=8192)


def _page(health: Probed, path: str) -> tuple[str, str, bytes]:
    if path == "/metrics":
        return "200 OK", CONTENT_TYPE_LATEST, generate_latest()
    if path == "/health":
        reason = health.stuck()
        status = "200 OK" if reason is None else "503 Service Unavailable"
        return status, "text/plain", (reason or "ok").encode()
    if path == "/ready":
        status = "200 OK" if health.ready else "503 Service Unavailable"
        return status, "text/plain", b"ready" if health.ready else b"not ready"
    return "404 Not Found", "text/plain", b"not found"
