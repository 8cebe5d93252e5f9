"""/health, /ready and /metrics on the admin port.

/health follows progress. It fails if a round neither ends nor fails in time, if the event loop
hangs, or if a watch of the leader is dead. A call that waits for the API server has a deadline, and
its failure is progress: a restart does not help while the API server is away.

/ready says whether this replica leads or could: it knows the Lease, and every kind that it must
watch is there. What stands in the way is in the answer, and a restart would not remove it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from argosy.descriptors import Listener

STUCK_S = 120.0
"""Without progress for so long, the process should be restarted."""
UNSEEN_S = 30.0
"""A replica that could neither read nor write the Lease for so long is not ready. It tries every
six seconds at least."""
REQUEST_LIMIT_S = 5.0
_CONNECTIONS = 64
_LONGEST_LINE_BYTES = 8192


class Health:
    """What the probes ask. `beat` is called after every attempt to take or renew the Lease, and
    `wait` while this replica does not try."""

    def __init__(
        self,
        busy_since: Mapping[tuple[str, str], float],
        blind: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`blind` names the watches that are dead."""
        self._busy_since, self._blind = busy_since, blind
        self._beat_at = time.monotonic()
        self._lease_at: float | None = None
        self._failed: str | None = "the Lease was not read yet"

    def beat(self, failed: str | None = None) -> None:
        """Note a try at the Lease; `failed` says why it could be neither read nor written."""
        self._beat_at, self._failed = time.monotonic(), failed
        if failed is None:
            self._lease_at = self._beat_at

    def wait(self, obstacle: str) -> None:
        """Note that this replica does not stand for the Lease, because of the obstacle."""
        self._beat_at, self._failed, self._lease_at = time.monotonic(), obstacle, None

    def stuck(self) -> str | None:
        """Return why this process should be restarted; None while it makes progress."""
        now = time.monotonic()
        if now - self._beat_at > STUCK_S:
            return f"no attempt to renew the Lease for {now - self._beat_at:.0f} s"
        for key, since in self._busy_since.items():
            if now - since > STUCK_S:
                return f"the round of {'/'.join(key)} has lasted {now - since:.0f} s"
        return self._blind()

    def unready(self) -> str | None:
        """Return why this replica neither leads nor could; None if it does or could."""
        if self._failed is None:
            return None
        if self._lease_at is None:
            return self._failed
        unseen_s = time.monotonic() - self._lease_at
        return self._failed if unseen_s > UNSEEN_S else None


async def serve(health: Health, host: str, port: int) -> asyncio.Server:
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
            writer.close()
        except (TimeoutError, ConnectionError, ValueError):
            # A client that is slow or does not speak HTTP: what it has not read it never will.
            writer.transport.abort()

    sock = Listener((host, port), most=_CONNECTIONS, backlog=_CONNECTIONS)
    return await asyncio.start_server(
        answer, sock=sock, backlog=_CONNECTIONS, limit=_LONGEST_LINE_BYTES
    )


def _page(health: Health, path: str) -> tuple[str, str, bytes]:
    if path == "/metrics":
        return "200 OK", CONTENT_TYPE_LATEST, generate_latest()
    if path == "/health":
        reason = health.stuck()
        status = "200 OK" if reason is None else "503 Service Unavailable"
        return status, "text/plain", (reason or "ok").encode()
    if path == "/ready":
        reason = health.unready()
        status = "200 OK" if reason is None else "503 Service Unavailable"
        return status, "text/plain", (f"not ready: {reason}" if reason else "ready").encode()
    return "404 Not Found", "text/plain", b"not found"
