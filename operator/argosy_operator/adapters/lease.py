"""Leadership: one Lease, and the gate that every write passes.

The Lease is taken when it was not renewed for its duration, measured on this process' monotonic
clock: clocks of machines differ, and the times in the Lease are for people. It is renewed every two
seconds. The leader's term ends `TERM_S` after the last successful renewal was sent, before another
replica may take the Lease. A write gets no more time than the term has left, so it ends before
another replica may write. A process that was suspended finds its term over when it goes on.
Election does not fence; ending the process does, and `shell/app.py` does that.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from argosy_operator.adapters.cluster import ApiCluster
from argosy_operator.adapters.protocols import ClusterError
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.objects import Object

log = logging.getLogger("argosy.lease")

DURATION_S = 15.0
"""Another replica takes a Lease that was not renewed for so long."""
TERM_S = 10.0
"""The leader stops writing so long after its last renewal: well before `DURATION_S`."""
RETRY_S = 2.0
"""Between two renewals, and between two looks of a standby."""
AGAIN_S = 0.5
"""After a renewal that failed, because the term is running out."""
TRY_S = 4.0
"""Limit of one renewal, conflicts included."""
Said = Callable[[str | None], None]
"""Is told of every try at the Lease: why it failed, or None."""
CONFLICTS = 3
"""Writes in one try that may meet another client's write."""
REFUSED_S = 120.0
"""How long a standby goes on after 401 and 403: an API server that restarts answers them until its
caches are warm."""
MARGIN_S = 0.5
"""A write ends so long before the term does."""
LEAST_S = 1.0
"""A write that would get less time is not begun."""


class Term:
    """The gate: open while the Lease was renewed less than `TERM_S` ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = float("-inf")

    @property
    def open(self) -> bool:
        return self.left_s > 0

    @property
    def left_s(self) -> float:
        return self._until - self._clock()

    def allowance_s(self, longest_s: float) -> float:
        """Return how long a write that begins now may last; see `protocols.Gate`."""
        left_s = self.left_s - MARGIN_S
        if left_s < LEAST_S:
            raise ClusterError(ErrorKind.NOT_LEADER, "write", "this replica does not lead")
        return min(longest_s, left_s)

    def extend(self, asked_at: float) -> None:
        """Begin the term anew: the Lease is ours, by a call that was sent at `asked_at`."""
        self._until = asked_at + TERM_S

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
        self._seen: tuple[object, float] | None = None
        """Holder and renewal as last seen, and since when."""
        self._ours: Object | None = None
        """The Lease as the server has it after our last write."""

    async def acquire(self, looked: Said = lambda _: None) -> None:
        """Return when this process leads. `looked` is called after every look at the Lease. Raises
        ClusterError if the API server refuses for `REFUSED_S`."""
        refused_at: float | None = None
        logged = ""
        while True:
            failed: str | None = None
            try:
                async with asyncio.timeout(TRY_S):
                    leads = await self._try()
                refused_at, logged = None, ""
                if leads:
                    looked(None)
                    return
            except (ClusterError, TimeoutError) as error:
                failed = _describe(error)
                if logged != failed:
                    logged = failed
                    log.warning("the Lease cannot be read or written; trying again: %s", logged)
                if not _is_refusal(error):
                    refused_at = None
                elif refused_at is None:
                    refused_at = self._term.now()
                elif self._term.now() - refused_at >= REFUSED_S:
                    raise
            looked(failed)
            await asyncio.sleep(RETRY_S)

    async def hold(self, renewed: Said = lambda _: None) -> str:
        """Renew until the term is over or another replica holds the Lease. Returns the reason; the
        gate is closed then. `renewed` is called after every try."""
        reason, pause_s = "the Lease could not be renewed in time", RETRY_S
        while self._term.open:
            await asyncio.sleep(pause_s)
            failed: str | None = None
            try:
                async with asyncio.timeout(TRY_S):
                    if not await self._try():
                        reason = "another replica holds the Lease"
                        break
                pause_s = RETRY_S
            except (ClusterError, TimeoutError) as error:
                pause_s, failed = AGAIN_S, _describe(error)
                reason = f"the Lease could not be renewed: {failed}"
                log.warning("%s", reason)
            renewed(failed)
        self._term.close()
        return reason

    async def release(self) -> None:
        """Let another replica take over at once. Only when no write is in progress."""
        self._term.close()
        lease = await self._get()
        if lease is not None and lease["spec"].get("holderIdentity") == self._holder:
            spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            await self._cluster.replace({**lease, "spec": spec})

    async def _try(self) -> bool:
        """Take or renew the Lease. True if it is ours, False if another replica holds it.

        Our own Lease is written without reading it first. If another client wrote it meanwhile,
        such as an administrator who annotated it, it is read again, and its holder decides.
        """
        for _ in range(CONFLICTS):
            asked_at = self._term.now()
            lease = self._ours or await self._get()
            if lease is not None and not self._is_free(lease):
                return False
            try:
                if lease is None:
                    self._ours = await self._cluster.create_ungated(self._new_lease())
                else:
                    self._ours = await self._cluster.replace(self._claim(lease))
            except ClusterError as error:
                self._ours = None
                if error.kind not in (ErrorKind.CONFLICT, ErrorKind.EXISTS, ErrorKind.NOT_FOUND):
                    raise
                continue
            self._term.extend(asked_at)
            return True
        raise ClusterError(ErrorKind.CONFLICT, "update Lease", "other clients keep writing it")

    async def _get(self) -> Object | None:
        return await self._cluster.get("Lease", self._namespace, self._name)

    def _is_free(self, lease: Object) -> bool:
        """Whether the Lease is ours, given up, or was not renewed for its duration since it was
        first seen like this."""
        spec = lease["spec"]
        if spec.get("holderIdentity") in (self._holder, "", None):
            return True
        says = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        now = self._term.now()
        if self._seen is None or self._seen[0] != says:
            self._seen = (says, now)
        return now - self._seen[1] >= float(spec.get("leaseDurationSeconds") or DURATION_S)

    def _new_lease(self) -> Object:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec(transitions=0, acquired=_now()),
        }

    def _claim(self, lease: Object) -> Object:
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


def _describe(error: Exception) -> str:
    return str(error) or f"no answer within {TRY_S:.0f} s"


def _is_refusal(error: Exception) -> bool:
    refusals = (ErrorKind.FORBIDDEN, ErrorKind.UNAUTHORIZED)
    return isinstance(error, ClusterError) and error.kind in refusals


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
