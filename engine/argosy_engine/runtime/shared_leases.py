"""The lease table behind a lock, with a clock.

The KV thread pins leases; the engine thread collects those that are over.
"""

import secrets
import threading
import time
from collections.abc import Callable

from argosy_engine.core.handover.leases import LeaseTable
from argosy_engine.core.handover.messages import LeaseKey

__all__ = ["SharedLeases"]


class SharedLeases:
    """Each method holds the lock for microseconds; times are the clock's seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = LeaseTable()
        self._lock = threading.Lock()
        self._clock = clock

    @property
    def active(self) -> int:
        return len(self._table)

    @property
    def expired(self) -> int:
        return self._table.expired

    def __contains__(self, key: LeaseKey) -> bool:
        return key in self._table

    def promise(self, key: LeaseKey) -> str:
        """The ticket: 128 random bits as 32 hexadecimal digits."""
        ticket = secrets.token_hex(16)
        with self._lock:
            self._table.promise(key, ticket)
        return ticket

    def extend(self, key: LeaseKey, block_ids: tuple[int, ...]) -> bool:
        with self._lock:
            return self._table.extend(key, block_ids)

    def find(self, ticket: str) -> LeaseKey:
        with self._lock:
            return self._table.find(ticket)

    def grant(self, key: LeaseKey, block_ids: tuple[int, ...], lease_s: float) -> None:
        with self._lock:
            self._table.grant(key, block_ids, expires_s=self._clock() + lease_s)

    def begin_send(self, key: LeaseKey) -> tuple[int, ...]:
        with self._lock:
            return self._table.begin_send(key, self._clock())

    def end_send(self, key: LeaseKey) -> None:
        with self._lock:
            self._table.end_send(key)

    def renew(self, key: LeaseKey, lease_s: float) -> None:
        with self._lock:
            now = self._clock()
            self._table.renew(key, expires_s=now + lease_s, now=now)

    def release(self, key: LeaseKey) -> None:
        with self._lock:
            self._table.release(key)

    def collect(self) -> list[LeaseKey]:
        with self._lock:
            return self._table.collect(self._clock())
