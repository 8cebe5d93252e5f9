"""What this gateway's own requests have shown about each pod. Pure: the clock is passed.

Readiness is the kubelet's word about a pod; this is the experience with it. Three states:

- *suspended*: two failures in a row (5xx, a broken connection, silence), and then for a time that
  doubles with each further failure. A suspended pod is chosen after all others, but it is chosen:
  where all have failed, the least bad one serves. When its time is over it gets one request per
  such time until it succeeds.
- *away*: it took no connection, drains, or another program answers at its address. An away pod is
  not chosen at all; requests wait for its return.
- *busy*: it answered 429. It is chosen after those that were not busy.

One failure in a row suspends nothing: a request that breaks any engine would otherwise suspend
healthy pods.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass

__all__ = ["HEALTHY", "Health"]

HEALTHY = 0
"""Rank of a pod that nothing speaks against."""
_BUSY, _SUSPENDED = 1, 2

_FAILURES_ALLOWED = 1
_FIRST_SUSPENSION_S, _LONGEST_SUSPENSION_S = 0.25, 30.0
_MOST_FAILURES = 9  # in the longest suspension: more would only make the way back longer
_FIRST_ABSENCE_S, _LONGEST_ABSENCE_S = 0.25, 5.0
_TRIAL_S = 2.5  # longer than `Limits.connect_s`: one request at a time tries to connect
_WRONG_POD_S = 30.0
_DRAINING_S = 1.0
_BUSY_S = 0.25


@dataclass(slots=True)
class _Record:
    """Times are the clock's, in seconds."""

    failures: int = 0
    """Rises by one with a failure, is halved by a success."""
    suspended_at: float = 0.0
    suspended_until: float = 0.0
    absence_s: float = 0.0
    """Length of the last absence; 0 when the pod was reached since."""
    absent_since: float = 0.0
    absent_until: float = 0.0
    busy_until: float = 0.0

    def suspension_s(self) -> float:
        """0 while a failure more is allowed."""
        beyond = self.failures - _FAILURES_ALLOWED
        if beyond < 1:
            return 0.0
        return min(_FIRST_SUSPENSION_S * 2.0 ** (beyond - 1), _LONGEST_SUSPENSION_S)


class Health:
    """Records by pod uid; a pod without a record is fine.

    `knows` says whether a pod is still there: a request may fail after its pod is gone, and no
    record may stay then.
    """

    def __init__(
        self, clock: Callable[[], float], knows: Callable[[str], bool] = lambda _uid: True
    ) -> None:
        self._clock, self._knows = clock, knows
        self._records: dict[str, _Record] = {}

    # What the choice asks.

    def rank(self, uid: str) -> int | None:
        """`HEALTHY`, or how much speaks against a pod; None while it is away."""
        record, now = self._records.get(uid), self._clock()
        if record is None:
            return HEALTHY
        if record.absent_until > now:
            return None
        if record.suspended_until > now:
            return _SUSPENDED + record.failures
        return _BUSY if record.busy_until > now else HEALTHY

    def failed_recently(self, uid: str) -> bool:
        """Whether its last request failed: a request that failed elsewhere goes there last."""
        record = self._records.get(uid)
        return record is not None and record.failures > 0

    def next_return_s(self) -> float | None:
        """Seconds until an absence ends; None when no pod is away."""
        now = self._clock()
        left = [r.absent_until - now for r in self._records.values() if r.absent_until > now]
        return min(left, default=None)

    # What the requests tell.

    def begins(self, uid: str) -> None:
        """A request is sent: a pod on probation gets the next one only after the same time."""
        if (record := self._records.get(uid)) is not None:
            now = self._clock()
            record.suspended_until = now + record.suspension_s()
            if record.absence_s:
                record.absent_until = now + max(record.absence_s, _TRIAL_S)

    def unreachable(self, uid: str, began_at: float) -> float:
        """It took no connection. Returns the absence in seconds; 0.0 when it was known."""
        record, now = self._of(uid), self._clock()
        if began_at < record.absent_since:
            return 0.0  # sent before the pod was known to be away: says nothing new
        record.absence_s = min(record.absence_s * 2 or _FIRST_ABSENCE_S, _LONGEST_ABSENCE_S)
        record.absent_since, record.absent_until = now, now + record.absence_s
        return record.absence_s

    def reached(self, uid: str) -> bool:
        """It took a connection. True when it was away for taking none, and is back."""
        record = self._records.get(uid)
        if record is None or not 0 < record.absence_s <= _LONGEST_ABSENCE_S:
            return False
        record.absence_s = record.absent_until = 0.0
        return True

    def wrong_pod(self, uid: str) -> None:
        """Another program answers at its address; the watch will tell of a new one."""
        record, now = self._of(uid), self._clock()
        record.absence_s = _WRONG_POD_S
        record.absent_since, record.absent_until = now, now + _WRONG_POD_S

    def identified(self, uid: str) -> bool:
        """It answered under its own name. True when it was away, and is back."""
        record = self._records.get(uid)
        if record is None or not record.absence_s:
            return False
        record.absence_s = record.absent_until = 0.0
        return True

    def draining(self, uid: str) -> None:
        """It takes no new work for now."""
        self._of(uid).absent_until = self._clock() + _DRAINING_S

    def busy(self, uid: str) -> None:
        """Its queue is full."""
        self._of(uid).busy_until = self._clock() + _BUSY_S

    def failed(self, uid: str, began_at: float) -> float:
        """A request that began then failed there. Returns the suspension in seconds, or 0.0."""
        record, now = self._of(uid), self._clock()
        if began_at < record.suspended_at and record.suspended_until > now:
            return 0.0  # one death of an engine fails many requests at once: it counts once
        record.failures = min(record.failures + 1, _MOST_FAILURES)
        suspension_s = record.suspension_s()
        if suspension_s:
            record.suspended_at, record.suspended_until = now, now + suspension_s
        return suspension_s

    def succeeded(self, uid: str, began_at: float) -> None:
        """A request that began then was served to its end."""
        record = self._records.get(uid)
        if record is None or began_at < record.suspended_at:
            return  # what was sent before the suspension says nothing about the pod of now
        record.failures //= 2
        end = self._clock() + record.suspension_s()
        record.suspended_until = min(record.suspended_until, end)

    # What the directory tells.

    def forget(self, uid: str) -> None:
        """The pod changed or is gone."""
        self._records.pop(uid, None)

    def keep(self, uids: Container[str]) -> None:
        """Forget all others."""
        self._records = {u: r for u, r in self._records.items() if u in uids}

    def _of(self, uid: str) -> _Record:
        return self._records.setdefault(uid, _Record()) if self._knows(uid) else _Record()
