"""Which install of the operator looks after a fleet, if several are told to.

An install is known by its Lease. `status.operator` of a fleet names the one that looks after it,
and is written before anything else, on condition of the object's resourceVersion. An install that
finds another one there looks at that one's Lease as a standby does (`ports/lease.py`): not the
time in it counts, but whether it changes. While it does, the fleet is left alone: the only write
is an entry in `status.otherOperators`, of which the other install makes the condition
InstallConflict. A Lease that is gone, given back, or not renewed gives the fleet free
(designs/0031-two-installs.md).
"""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.objects import FleetKey, Object, own_part, status_patch
from argosy_operator.ports.protocols import Cluster, ClusterError
from argosy_operator.shell.telemetry import metrics

log = logging.getLogger("argosy.installs")

LAPSE_S = 20.0
"""More than `lease.DURATION_S`: by then another replica of that install would have taken over."""
SOON_S, LATER_S = 3.0, 30.0
"""Until the next look at a Lease of which it is not known if it is renewed, and if it is. Both are
longer than the two seconds between renewals."""
FRESH_S = 1.0
"""Fleets that look at one Lease within this time share what was read."""
LEASE = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)/([a-z0-9][-a-z0-9.]{0,252})")
"""Namespace and name, as the path of a call may have them."""
HIDDEN = (
    "may not read the Lease {}, so it never takes the fleet over. Let its account get Leases of "
    "that namespace, or remove status.operator"
)


class Sight(Enum):
    """What is known of another install."""

    LIVES = auto()
    GONE = auto()
    UNSURE = auto()
    """Seen too shortly."""
    HIDDEN = auto()
    """The API server does not let us read its Lease: it may live."""


@dataclass(frozen=True, slots=True)
class _Seen:
    says: object
    """What its Lease said; None for a Lease without a holder."""
    since: float
    """Since when it says so."""
    looked_at: float
    renewed: bool = False
    """It was seen to change."""
    hidden: bool = False

    def sight(self, now: float) -> Sight:
        if self.hidden:
            return Sight.HIDDEN
        if self.says is None or now - self.since >= LAPSE_S:
            return Sight.GONE
        return Sight.LIVES if self.renewed else Sight.UNSURE


class Installs:
    """This install, and what its process has seen of the others. Times are in seconds on the
    monotonic clock."""

    def __init__(
        self, cluster: Cluster, own: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`own` is namespace/name of this install's Lease."""
        self.own = own
        self._cluster, self._monotonic = cluster, monotonic
        self._seen: dict[str, _Seen] = {}
        self._left: set[FleetKey] = set()
        self._unknown_field = False

    async def claim(self, key: FleetKey, raw: Object) -> Object | float:
        """The fleet with our claim, if this install looks after it; else the seconds until it is
        to be looked at again. Raises ClusterError if status or a Lease cannot be read or written.
        """
        holder = _holder(raw)
        if self._unknown_field or holder == self.own:
            self._ours(key)
            return raw
        sight = Sight.GONE if holder is None else await self._look(holder)
        if holder is None or sight is Sight.GONE:
            return await self._take(key, raw, holder)
        if sight is Sight.UNSURE:
            return SOON_S
        self._others(key, holder)
        await self._say(raw, HIDDEN.format(holder) if sight is Sight.HIDDEN else "")
        return LATER_S

    async def look_after_entries(self, raw: Object) -> float:
        """Remove the entries of installs that are gone from a fleet of ours. Returns the seconds
        until the next look; infinity without entries."""
        again_s = float("inf")
        for lease in (entry["lease"] for entry in _entries(raw)):
            sight = Sight.GONE if lease == self.own else await self._look(lease)
            if sight is Sight.GONE:
                await self._write(raw, lease, {})
            else:
                again_s = min(again_s, SOON_S if sight is Sight.UNSURE else LATER_S)
        return again_s

    def forget(self, key: FleetKey) -> None:
        """The fleet is gone."""
        self._ours(key)

    async def _take(self, key: FleetKey, raw: Object, holder: str | None) -> Object | float:
        status = {**(raw.get("status") or {}), "operator": {"lease": self.own}}
        obj = status_patch("ServingDeployment", raw["metadata"], own_part(status))
        if version := raw["metadata"].get("resourceVersion"):
            obj["metadata"]["resourceVersion"] = version
        try:
            taken = await self._cluster.apply(obj, raw["metadata"]["uid"], status=True)
        except ClusterError as error:
            if error.kind is ErrorKind.CONFLICT:
                return SOON_S  # another install, or a person, was quicker
            raise
        if _holder(taken) is None:
            self._unknown_field = True
            log.warning(
                "the CRD does not know status.operator: two installs would not notice each other. "
                "Apply the CRDs of this version"
            )
        elif holder is not None:
            log.warning("%s/%s: taken over from the install of Lease %s", *key, holder)
        self._ours(key)
        return {**raw, "status": taken.get("status") or {}}

    async def _say(self, raw: Object, message: str) -> None:
        """Our entry in the status of a fleet that another install looks after."""
        entry = {"lease": self.own} | ({"message": message} if message else {})
        if entry not in _entries(raw):
            await self._write(raw, self.own, {"otherOperators": [entry]})

    async def _write(self, raw: Object, lease: str, status: Object) -> None:
        """As the field manager of one install's entry: the others' entries stay as they are."""
        obj = status_patch("ServingDeployment", raw["metadata"], status)
        writer = f"argosy.{lease}"[:128]
        await self._cluster.apply(obj, raw["metadata"]["uid"], status=True, manager=writer)

    async def _look(self, lease: str) -> Sight:
        now, seen = self._monotonic(), self._seen.get(lease)
        if seen is None or now - seen.looked_at >= FRESH_S:
            seen = await self._read(lease, seen, now)
            self._seen[lease] = seen
        return seen.sight(now)

    async def _read(self, lease: str, seen: _Seen | None, now: float) -> _Seen:
        named = LEASE.fullmatch(lease)
        try:
            live = await self._cluster.get("Lease", named[1], named[3]) if named else None
        except ClusterError as error:
            if error.kind is not ErrorKind.FORBIDDEN:
                raise
            return _Seen(None, now, now, hidden=True)
        spec = (live or {}).get("spec") or {}
        holder = spec.get("holderIdentity")
        says = (holder, spec.get("renewTime")) if holder else None
        if seen is None or seen.says is None:
            return _Seen(says, now, now)
        if seen.says != says:
            return _Seen(says, now, now, renewed=True)
        return replace(seen, looked_at=now)

    def _others(self, key: FleetKey, holder: str) -> None:
        if key not in self._left:
            log.warning(
                "%s/%s: the install of Lease %s looks after this fleet, so this one leaves it "
                "alone. Give the two installs different namespaces, or remove one",
                *key,
                holder,
            )
        self._left.add(key)
        metrics.OF_OTHERS.set(len(self._left))

    def _ours(self, key: FleetKey) -> None:
        self._left.discard(key)
        metrics.OF_OTHERS.set(len(self._left))


def _holder(raw: Object) -> str | None:
    return ((raw.get("status") or {}).get("operator") or {}).get("lease") or None


def _entries(raw: Object) -> list[Object]:
    return list((raw.get("status") or {}).get("otherOperators") or ())
