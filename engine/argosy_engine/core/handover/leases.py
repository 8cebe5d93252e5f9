"""Which prompts are held for a peer, and until when.

The prefill engine promises a lease when it takes a prompt in, and grants it when the prompt is
computed; in between more and more blocks are ready. A peer that shows the lease's ticket may have
them. The KV service pins a lease while it sends. The engine loop collects the leases that are over
and frees their blocks. States and their meanings are in `states.py`.
"""

from dataclasses import dataclass
from math import inf

from argosy_engine.core.handover.messages import LeaseKey
from argosy_engine.core.handover.states import LeaseState, move_lease
from argosy_engine.errors import LeaseGoneError, LeaseTakenError


@dataclass(slots=True)
class Lease:
    """One prompt whose blocks are held."""

    key: LeaseKey
    ticket: str

    block_ids: tuple[int, ...] = ()
    """The blocks that are ready, in the order of the text."""

    computed: bool = False
    """All of them are."""

    expires_s: float = inf
    """On the clock of `now`. A prompt that is not computed yet has no end by time."""

    sends: int = 0
    """Sends under way; the lease is neither expired nor freed meanwhile."""

    state: LeaseState = LeaseState.PROMISED

    def move(self, after: LeaseState) -> None:
        self.state = move_lease(self.state, after)


class LeaseTable:
    """Leases by key. Not thread-safe: the runtime holds a lock around it."""

    def __init__(self) -> None:
        self._leases: dict[LeaseKey, Lease] = {}
        self._tickets: dict[str, LeaseKey] = {}
        self.expired = 0
        """Leases that ended by time, since the start."""

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: LeaseKey) -> bool:
        return key in self._leases

    def promise(self, key: LeaseKey, ticket: str) -> None:
        """Take a prompt in; LeaseTakenError for a key that is leased already."""
        if key in self._leases:
            raise LeaseTakenError(f"request {key.request_id} is here already")
        self._leases[key] = Lease(key, ticket)
        self._tickets[ticket] = key

    def extend(self, key: LeaseKey, block_ids: tuple[int, ...]) -> bool:
        """These blocks are ready; False if that is nothing new, or nobody wants them any more."""
        lease = self._leases.get(key)
        if lease is None or lease.state is LeaseState.RELEASED:
            return False
        more = len(block_ids) > len(lease.block_ids)
        lease.block_ids = block_ids
        return more

    def grant(self, key: LeaseKey, block_ids: tuple[int, ...], *, expires_s: float) -> None:
        """The prompt is computed: hold its blocks. LeaseGoneError if nobody wants them any more."""
        lease = self._alive(key, 0.0)
        lease.block_ids, lease.computed, lease.expires_s = block_ids, True, expires_s
        if lease.state is LeaseState.PROMISED:
            lease.move(LeaseState.HELD)

    def find(self, ticket: str) -> LeaseKey:
        """LeaseGoneError for a ticket that nobody was given, or whose lease is over."""
        key = self._tickets.get(ticket)
        if key is None:
            raise LeaseGoneError("no lease has this ticket: it ended, or was never given")
        return key

    def begin_send(self, key: LeaseKey, now: float) -> tuple[int, ...]:
        """Pin the blocks until `end_send` and return those that are ready; LeaseGoneError."""
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
            lease.move(LeaseState.HELD if lease.computed else LeaseState.PROMISED)

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
            del self._leases[lease.key], self._tickets[lease.ticket]
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
