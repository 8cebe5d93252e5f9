"""Keeps a certificate that counts, and the API server's bundle in step with it.

The next certificate is made when half of the life of the current one is over. Its authority goes
into the bundle first, beside the current one; it is shown from the next look on. So at each moment
the API server knows what it is shown.
"""

import asyncio
import datetime as dt
import logging
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from argosy_operator.ports.protocols import ClusterError
from argosy_operator.shell.webhook.certificates import Certificate, bundle, new_certificate

log = logging.getLogger("argosy.webhook")

LOOK_AGAIN_S = 15.0
"""Time between two looks at the bundle, after which a foreign change of it is corrected."""
LOOKS = 20
"""The least number of looks in the life of a certificate."""
STUCK_S = 120.0
"""If there was no look for this time, the process should be restarted."""

Now = Callable[[], dt.datetime]


class Bundle(Protocol):
    """The bundle in the webhook's configuration."""

    async def read(self) -> tuple[bytes, str]:
        """The bundle (empty: none) and the version of the object."""

    async def write(self, bundle: bytes, version: str) -> None:
        """Replace it, if the object is still of that version."""


def utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Rotation:
    """The certificate that `context` shows. Probes ask it whether the API server knows it."""

    def __init__(
        self,
        api: Bundle,
        host: str,
        lifetime: dt.timedelta,
        context: ssl.SSLContext,
        now: Now = utc_now,
    ) -> None:
        self._api, self._host, self._lifetime = api, host, lifetime
        self._context, self._now = context, now
        self._current = new_certificate(host, now(), lifetime)
        self._next: Certificate | None = None
        self._looked_at = time.monotonic()
        self.ready = False
        _show(context, self._current)

    @property
    def look_again_s(self) -> float:
        return min(LOOK_AGAIN_S, self._lifetime.total_seconds() / LOOKS)

    def stuck(self) -> str | None:
        """Why this process should be restarted; None while it makes progress."""
        since_s = time.monotonic() - self._looked_at
        return f"no look at the bundle for {since_s:.0f} s" if since_s > STUCK_S else None

    def unready(self) -> str | None:
        """Why the API server cannot ask this process; None if it can."""
        return None if self.ready else "the webhook's configuration lacks its certificate"

    async def run(self) -> None:
        """Look until cancelled. A look that fails is tried again: without the API server there is
        no one to answer."""
        while True:
            try:
                await self.look()
            except ClusterError as error:
                log.warning("the bundle of the webhook's configuration is not kept: %s", error)
            self._looked_at = time.monotonic()
            await asyncio.sleep(self.look_again_s)

    async def look(self) -> None:
        """One look at the bundle: renew, write what is missing, or show what it has. Raises
        ClusterError."""
        now = self._now()
        if self._next is None and self._current.is_due(now):
            self._next = new_certificate(self._host, now, self._lifetime)
        own = [one.authority for one in (self._current, self._next) if one is not None]
        held, version = await self._api.read()
        wanted = bundle(held, own, now)
        if wanted != held:
            await self._api.write(wanted, version)
            log.info("wrote the bundle of the webhook's configuration")
        elif self._next is not None:
            self._current, self._next = self._next, None
            _show(self._context, self._current)
            log.info("shows a new certificate until %s", self._current.ends_at.isoformat())
        self.ready = True


def _show(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Let new connections see it. The ssl module reads certificates from files only."""
    with tempfile.TemporaryDirectory() as folder:  # of mode 0700
        chain, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        chain.write_bytes(certificate.chain)
        key.write_bytes(certificate.key)
        context.load_cert_chain(chain, key)
