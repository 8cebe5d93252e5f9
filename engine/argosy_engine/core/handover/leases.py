"""Which prefilled prompts are held for a peer, and until when.

The prefill engine grants a lease when a remote prompt is computed; the KV service pins it while
it sends; the loop collects what is over and frees the blocks. A lease is over when it was
released or its time has passed, and never while a send is active.
"""

from dataclasses import dataclass

from argosy_engine.core.handover.messages import LeaseKey
from argosy_engine.errors import LeaseGoneError

__all__ = ["Lease", "LeaseTable"]


@dataclass(slots=True)
class Lease:
    key: LeaseKey
    block_ids: tuple[int, ...]
    expires_s: float
    sends: int = 0
    released: bool = False


class LeaseTable:
    """Leases by key. Not thread-safe: the runtime holds a lock around it."""

    def __init__(self) -> None:
        self._leases: dict[LeaseKey, Lease] = {}
        self.expired = 0  # leases that ended by time, since the start

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def blocks(self) -> int:
        return sum(len(lease.block_ids) for lease in self._leases.values())

    def grant(self, key: LeaseKey, block_ids: tuple[int, ...], *, expires_s: float) -> None:
        if key in self._leases:
            raise ValueError(f"{key} is leased already")
        self._leases[key] = Lease(key, block_ids, expires_s)

    def begin_send(self, key: LeaseKey, now: float) -> tuple[int, ...]:
        lease = self._alive(key, now)
        lease.sends += 1
        return lease.block_ids

    def end_send(self, key: LeaseKey) -> None:
        lease = self._leases.get(key)
        if lease is not None and lease.sends:
            lease.sends -= 1

    def renew(self, key: LeaseKey, *, expires_s: float, now: float) -> None:
        self._alive(key, now).expires_s = expires_s

    def release(self, key: LeaseKey) -> None:
        lease = self._leases.get(key)
        if lease is not None:
            lease.released = True

    def collect(self, now: float) -> list[LeaseKey]:
        """Forget the leases that are over and return their keys; their blocks may be freed."""
        over = [
            lease
            for lease in self._leases.values()
            if not lease.sends and (lease.released or lease.expires_s <= now)
        ]
        for lease in over:
            self.expired += not lease.released
            del self._leases[lease.key]
        return [lease.key for lease in over]

    def _alive(self, key: LeaseKey, now: float) -> Lease:
        lease = self._leases.get(key)
        if lease is None:
            raise LeaseGoneError(f"no lease {key}: it ended, or this engine started since")
        if lease.released:
            raise LeaseGoneError(f"lease {key} was released")
        if lease.expires_s <= now:
            raise LeaseGoneError(f"lease {key} expired {now - lease.expires_s:.1f} s ago")
        return lease
