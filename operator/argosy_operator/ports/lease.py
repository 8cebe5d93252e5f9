"""Leadership: one Lease, and the gate that every write passes.

The Lease is taken when nobody renewed it for its duration as seen by *our* monotonic clock (the
times in it are for people; clocks of machines differ) and renewed every two seconds. The gate
closes by itself `RENEW_S` after the last renewal, before another may take the Lease: a process that
was stopped and goes on finds it closed. Election does not fence; ending the process does, and that
is the caller's part.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from argosy_operator.core.actions import Trouble
from argosy_operator.ports.cluster import ApiCluster
from argosy_operator.ports.protocols import ClusterError, Object

DURATION_S = 15.0
RENEW_S = 10.0
RETRY_S = 2.0


class Term:
    """The gate: open while the Lease was renewed less than `RENEW_S` ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = float("-inf")

    @property
    def open(self) -> bool:
        return self._clock() < self._until

    def check(self) -> None:
        if not self.open:
            raise ClusterError(Trouble.NOT_LEADER, "write", "this replica does not lead")

    def extend(self, asked_at: float) -> None:
        """The Lease is ours, as of a call that was begun at `asked_at`."""
        self._until = asked_at + RENEW_S

    def close(self) -> None:
        self._until = float("-inf")

    def now(self) -> float:
        return self._clock()


class Lease:
    """The operator's Lease `name` in `namespace`, held by `holder` (a name of this process)."""

    def __init__(
        self, cluster: ApiCluster, term: Term, namespace: str, name: str, holder: str
    ) -> None:
        self._cluster, self._term = cluster, term
        self._namespace, self._name, self._holder = namespace, name, holder
        self._seen: tuple[object, float] | None = None  # (what the Lease said, since when)

    async def acquire(self, looked: Callable[[], None] = lambda: None) -> None:
        """Return when we lead. `looked` is called after every look at the Lease."""
        while True:
            try:
                if await self._try():
                    return
                looked()
            except ClusterError as error:
                if error.trouble in (Trouble.FORBIDDEN, Trouble.UNAUTHORIZED):
                    raise
            await asyncio.sleep(RETRY_S)

    async def hold(self, renewed: Callable[[], None] = lambda: None) -> str:
        """Renew until it fails for too long; the gate is closed when this returns the reason."""
        reason = "the Lease could not be renewed in time"
        while self._term.open:
            await asyncio.sleep(RETRY_S)
            try:
                async with asyncio.timeout(RENEW_S / 2):
                    if not await self._try():
                        reason = "another replica holds the Lease"
                        break
                renewed()
            except (ClusterError, TimeoutError) as error:
                reason = f"the Lease could not be renewed: {error}"
        self._term.close()
        return reason

    async def release(self) -> None:
        """Let the next one in at once. Only after the gate is closed and no write is under way."""
        self._term.close()
        lease = await self._get()
        if lease is not None and lease["spec"].get("holderIdentity") == self._holder:
            spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            await self._cluster.replace({**lease, "spec": spec})

    async def _try(self) -> bool:
        """Take or renew the Lease; True when it is ours."""
        asked_at = self._term.now()
        lease = await self._get()
        if lease is None:
            done = await _unless_taken(self._cluster.create_ungated, self._fresh())
        elif self._free(lease):
            done = await _unless_taken(self._cluster.replace, self._taken(lease))
        else:
            return False
        if done:
            self._term.extend(asked_at)
        return done

    async def _get(self) -> Object | None:
        return await self._cluster.get("Lease", self._namespace, self._name)

    def _free(self, lease: Object) -> bool:
        """Ours, given up, or not renewed for its duration since we first saw it like this."""
        spec = lease["spec"]
        if spec.get("holderIdentity") in (self._holder, "", None):
            return True
        says = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        now = self._term.now()
        if self._seen is None or self._seen[0] != says:
            self._seen = (says, now)
        return now - self._seen[1] >= float(spec.get("leaseDurationSeconds") or DURATION_S)

    def _fresh(self) -> Object:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec(transitions=0, acquired=_now()),
        }

    def _taken(self, lease: Object) -> Object:
        old = lease["spec"]
        ours = old.get("holderIdentity") == self._holder
        transitions = int(old.get("leaseTransitions") or 0) + (not ours)
        acquired = old.get("acquireTime") if ours else _now()
        return {**lease, "spec": self._spec(transitions, acquired or _now())}

    def _spec(self, transitions: int, acquired: str) -> Object:
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": int(DURATION_S),
            "acquireTime": acquired,
            "renewTime": _now(),
            "leaseTransitions": transitions,
        }


async def _unless_taken(write: Callable[[Object], Awaitable[Object]], lease: Object) -> bool:
    try:
        await write(lease)
    except ClusterError as error:
        if error.trouble in (Trouble.CONFLICT, Trouble.EXISTS):
            return False
        raise
    return True


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
