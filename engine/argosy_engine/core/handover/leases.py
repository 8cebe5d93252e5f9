"""Which prefilled prompts are held for a peer, and until when.

The prefill engine grants a lease when a remote prompt is computed. The KV service pins it while it
sends. The engine loop collects the leases that are over and frees their blocks. States and their
meanings are in `states.py`.
"""

from dataclasses import dataclass

from argosy_engine.core.handover.messages import LeaseKey
from argosy_engine.core.handover.states import LeaseState, move_lease
from argosy_engine.errors import LeaseGoneError

__all__ = ["Lease", "LeaseTable"]


@dataclass(slots=True)
class Lease:
    """One prompt whose blocks are held."""

    key: LeaseKey
    block_ids: tuple[int, ...]
    expires_s: float
    """On the clock of `now`."""

    sends: int = 0
    """Sends under way; the lease is neither expired nor freed meanwhile."""

    state: LeaseState = LeaseState.HELD

    def move(self, after: LeaseState) -> None:
        self.state = move_lease(self.state, after)


class LeaseTable:
    """Leases by key. Not thread-safe: the runtime holds a lock around it."""

    def __init__(self) -> None:
        self._leases: dict[LeaseKey, Lease] = {}
        self.expired = 0
        """Leases that ended by time, since the start."""

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, key: LeaseKey, block_ids: tuple[int, ...], *, expires_s: float) -> None:
        """Hold a prompt's blocks; ValueError for a key that is leased already."""
        if key in self._leases:
            raise ValueError(f"{key} is leased already")
        self._leases[key] = Lease(key, block_ids, expires_s)

    def begin_send(self, key: LeaseKey, now: float) -> tuple[int, ...]:
        """Pin the blocks until `end_send`; LeaseGoneError."""
        lease = self._alive(key, now)
        if not lease.sends:
            lease.move(LeaseState.SENDING)
        lease.sends += 1
        return lease.block_ids

    def end_send(self, key: LeaseKey) -> None:
        """Undo one `begin_send`; without effect on a lease that is gone."""
        lease = self._leases.get(key)
        if lease is None or not lease.sends:
            return
        lease.sends -= 1
        if not lease.sends and lease.state is LeaseState.SENDING:
            lease.move(LeaseState.HELD)

    def renew(self, key: LeaseKey, *, expires_s: float, now: float) -> None:
        """Let it live until `expires_s`; LeaseGoneError."""
        self._alive(key, now).expires_s = expires_s

    def release(self, key: LeaseKey) -> None:
        """The peer needs it no longer. Idempotent; unknown keys are leases that are over."""
        lease = self._leases.get(key)
        if lease is not None and lease.state is not LeaseState.RELEASED:
            lease.move(LeaseState.RELEASED)

    def collect(self, now: float) -> list[LeaseKey]:
        """Forget the leases that are over and return their keys; their blocks may be freed."""
        over = [
            lease
            for lease in self._leases.values()
            if not lease.sends and (lease.state is LeaseState.RELEASED or lease.expires_s <= now)
        ]
        for lease in over:
            self.expired += lease.state is not LeaseState.RELEASED
            lease.move(LeaseState.FREED)
            del self._leases[lease.key]
        return [lease.key for lease in over]

    def _alive(self, key: LeaseKey, now: float) -> Lease:
        lease = self._leases.get(key)
        if lease is None:
            raise LeaseGoneError(f"no lease {key}: it ended, or this engine started since")
        if lease.state is LeaseState.RELEASED:
            raise LeaseGoneError(f"lease {key} was released")
        if lease.expires_s <= now:
            raise LeaseGoneError(f"lease {key} expired {now - lease.expires_s:.1f} s ago")
        return lease
