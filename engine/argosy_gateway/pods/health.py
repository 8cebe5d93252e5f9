"""What this gateway's own requests have shown about each pod. Pure: the clock is passed in.

`relay.attempt` reports what happened; `routing.roster` asks for ranks. The kubelet's readiness is
known besides, in `endpoints`. A pod without a record is healthy; the others are

- *suspended* after two failures in a row (5xx, a broken connection, silence). The time doubles with
  each further failure. A suspended pod is chosen last, but it is chosen: if all pods have failed,
  the one with the fewest failures serves. After its time a pod is on probation: it gets one request
  per such time until one succeeds.
- *absent* if it took no connection, drains, answers no probe (`probes`), or another program answers
  at its address. An absent pod is not chosen; requests wait for its return.
- *busy* if it answered 429. It is chosen after the healthy ones.

A single failure suspends no pod, because one request that breaks any engine would otherwise suspend
healthy pods. If the request fails on a second pod as well, both are pardoned.

`routing.roster` caps the suspended share of the pods. Failed handovers of KV are in `pairs`.
"""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["HEALTHY", "SUSPENDED", "Health"]

HEALTHY = 0
"""Best rank. Pods of a higher rank are chosen later."""
_BUSY = 1
SUSPENDED = 2
"""A suspended pod's rank is this and its failures."""

_FAILURES_ALLOWED = 1
_FIRST_SUSPENSION_S, _LONGEST_SUSPENSION_S = 0.25, 30.0
_MOST_FAILURES = 9
"""Reaches the longest suspension: 0.25 s · 2⁷ = 32 s. More would only make recovery longer."""
_FIRST_ABSENCE_S, _LONGEST_ABSENCE_S = 0.25, 5.0
_TRIAL_S = 2.5
"""Longer than `Limits.connect_s`, so that one request at a time tries to connect."""
_WRONG_POD_S = 30.0
"""Longer than the watch takes to report the pod's new address or its end."""
_SILENT_S = 15.0
"""Longer than a turn of `probes`, which repeats the report, and than `_LONGEST_ABSENCE_S`: that its
kernel takes a connection does not end this absence."""
_DRAINING_S = 1.0
"""The watch reports a drain within about a second."""
_BUSY_S = 0.25
"""An engine's queue moves within a few steps."""


@dataclass(slots=True)
class _Record:
    """Times are the clock's, in seconds."""

    failures: int = 0
    """A failure adds one, a success halves it."""
    suspended_at: float = 0.0
    suspended_until: float = 0.0
    absence_s: float = 0.0
    """Length of the last absence; 0 if the pod was reached since."""
    absent_since: float = 0.0
    absent_until: float = 0.0
    busy_until: float = 0.0

    def suspension_s(self) -> float:
        """Seconds for which the present failures suspend the pod; 0 if they do not."""
        beyond = self.failures - _FAILURES_ALLOWED
        if beyond < 1:
            return 0.0
        return min(_FIRST_SUSPENSION_S * 2.0 ** (beyond - 1), _LONGEST_SUSPENSION_S)


class Health:
    """Records by pod uid; a pod without a record is healthy."""

    def __init__(
        self,
        clock: Callable[[], float],
        knows: Callable[[str], bool] = lambda _uid: True,
        changed: Callable[[str], None] = lambda _uid: None,
    ) -> None:
        """`knows` says whether a pod still exists. A request may fail after its pod is gone; no
        record is made then. `changed` is called with the uid of each pod whose record changes."""
        self._clock, self._knows, self._changed = clock, knows, changed
        self._records: dict[str, _Record] = {}

    # Read by the choice of pods.

    def rank(self, uid: str) -> int | None:
        """HEALTHY or a higher number, by which pods are chosen; None while the pod is absent."""
        record, now = self._records.get(uid), self._clock()
        if record is None:
            return HEALTHY
        if record.absent_until > now:
            return None
        if record.suspended_until > now:
            return SUSPENDED + record.failures
        return _BUSY if record.busy_until > now else HEALTHY

    def failed_recently(self, uid: str) -> bool:
        """Whether failures outweigh the successes since. Retries go to such a pod last."""
        record = self._records.get(uid)
        return record is not None and record.failures > 0

    def changes_at(self, uid: str) -> float | None:
        """Clock time at which the rank may change without a report; None if it stays."""
        record, now = self._records.get(uid), self._clock()
        if record is None:
            return None
        ends = (record.absent_until, record.suspended_until, record.busy_until)
        return min((end for end in ends if end > now), default=None)

    def next_return_s(self) -> float | None:
        """Seconds until the first absence ends; None if no pod is absent."""
        now = self._clock()
        left = [r.absent_until - now for r in self._records.values() if r.absent_until > now]
        return min(left, default=None)

    # Reported by attempts. `began_at` is the clock's time at which an attempt began.

    def begin(self, uid: str) -> None:
        """An attempt begins: a pod on probation gets the next one only after the same time."""
        if (record := self._records.get(uid)) is not None:
            self._changed(uid)
            now = self._clock()
            record.suspended_until = now + record.suspension_s()
            if record.absence_s:
                record.absent_until = now + max(record.absence_s, _TRIAL_S)

    def mark_unreachable(self, uid: str, began_at: float) -> float:
        """It took no connection. Returns the absence in seconds; 0.0 if it was absent already."""
        record, now = self._of(uid), self._clock()
        if began_at < record.absent_since:
            return 0.0  # the attempt began before the pod was known to be absent
        record.absence_s = min(record.absence_s * 2 or _FIRST_ABSENCE_S, _LONGEST_ABSENCE_S)
        record.absent_since, record.absent_until = now, now + record.absence_s
        return record.absence_s

    def mark_reached(self, uid: str) -> bool:
        """It took a connection. True if it was absent because it had taken none."""
        record = self._records.get(uid)
        if record is None or not 0 < record.absence_s <= _LONGEST_ABSENCE_S:
            return False
        record.absence_s = record.absent_until = 0.0
        self._changed(uid)
        return True

    def mark_wrong_pod(self, uid: str) -> None:
        """Another program answers at its address; the watch will report a new one."""
        record, now = self._of(uid), self._clock()
        record.absence_s = _WRONG_POD_S
        record.absent_since, record.absent_until = now, now + _WRONG_POD_S

    def mark_silent(self, uid: str) -> None:
        """It answers no probe. To be repeated while that is so; `mark_identified` ends it."""
        record, now = self._of(uid), self._clock()
        record.absence_s = _SILENT_S
        record.absent_since, record.absent_until = now, now + _SILENT_S

    def mark_identified(self, uid: str) -> bool:
        """It answered under its own name. True if it was absent until now."""
        record = self._records.get(uid)
        if record is None or not record.absence_s:
            return False
        record.absence_s = record.absent_until = 0.0
        self._changed(uid)
        return True

    def mark_draining(self, uid: str) -> None:
        """It takes no new requests for now."""
        self._of(uid).absent_until = self._clock() + _DRAINING_S

    def mark_busy(self, uid: str) -> None:
        """Its queue is full."""
        self._of(uid).busy_until = self._clock() + _BUSY_S

    def count_failure(self, uid: str, began_at: float) -> float:
        """An attempt failed there. Returns the suspension in seconds; 0.0 if there is none."""
        record, now = self._of(uid), self._clock()
        if began_at < record.suspended_at and record.suspended_until > now:
            return 0.0  # an engine that dies fails many requests at once: they count as one
        record.failures = min(record.failures + 1, _MOST_FAILURES)
        suspension_s = record.suspension_s()
        if suspension_s:
            record.suspended_at, record.suspended_until = now, now + suspension_s
        return suspension_s

    def count_success(self, uid: str, began_at: float) -> None:
        """An attempt was served to its end."""
        record = self._records.get(uid)
        if record is None or began_at < record.suspended_at:
            return  # it began before the suspension and shows nothing about the pod since
        self._changed(uid)
        record.failures //= 2
        end = self._clock() + record.suspension_s()
        record.suspended_until = min(record.suspended_until, end)

    def pardon(self, uid: str) -> None:
        """The request that failed there failed on a second pod, too: likely it is the cause. A pod
        without other failures in a row is in order again."""
        record = self._records.get(uid)
        if record is not None and record.failures == 1:
            self._changed(uid)
            record.failures = 0

    # Reported by the directory.

    def forget(self, uid: str) -> None:
        """Drop the record of a pod that changed or is gone."""
        if self._records.pop(uid, None) is not None:
            self._changed(uid)

    def _of(self, uid: str) -> _Record:
        """The record to write to."""
        if not self._knows(uid):
            return _Record()
        self._changed(uid)
        return self._records.setdefault(uid, _Record())
