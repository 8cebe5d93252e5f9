"""Which prefill and decode pods hand over to each other without success. Pure: the clock is passed.

A decode engine names the prefill candidates that failed it, and the pod that served it, in headers
of its answer; `relay.attempt` reports both here. Strategies then name other prefill pods first.

- A *pair* that failed is avoided for a second, doubled with each further failure up to a minute.
  After that time one request tries it; a success ends the record.
- An *end* that fails with two partners or more, and with more than any of them fails with, is the
  cause itself. As a prefill pod it is avoided by every decode pod. As a decode pod it counts as
  failing, see `pods.health`: it computes the prompts itself, which takes time from its streams.

Refusals of a healthy pod, such as a full queue, are no failures.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = [
    "FAILED_HEADER",
    "HANDOVER_HEADER",
    "NOT_HANDED_OVER",
    "SERVED_HEADER",
    "FailingPair",
    "Pairs",
]

FAILED_HEADER = b"x-argosy-failed-prefills"
"""`ip:8002=reason,…`: the candidates that failed, by KV address or by name of the pod."""
SERVED_HEADER = b"x-argosy-prefill-pod"
"""Name of the pod that computed the prompt; absent if the decode engine did."""
HANDOVER_HEADER = b"x-argosy-handover"
"""`pending` on the head of a stream: the pod that is named has computed the prompt, and its KV is
on the way. What comes of it is said in a comment of the stream."""
NOT_HANDED_OVER = "kv_transfer_failed"
"""Code of the 503 of a decode engine in good health that got no KV (`kvTransfer.onFailure`)."""

NO_FAILURES = frozenset(
    (
        "busy",
        "cancelled",
        "context_length_exceeded",
        "draining",
        "duplicate",
        "invalid",
        "queue_full",
        "queue_timeout",
    )
)
"""Reasons for which a pod in good health hands nothing over."""

_FIRST_S, _LONGEST_S = 1.0, 60.0
_MOST_FAILURES = 7
"""Reaches the longest time: 1 s · 2⁶ = 64 s."""
_ENOUGH_PARTNERS = 2
_MOST_PAIRS = 4096
"""Bound on memory. The pair that failed first is forgotten first."""
_MOST_PODS = 4096
"""Whose last whole handover is known; pods that are gone may be among them."""
_REASON_CHARS = 64


@dataclass(frozen=True, slots=True)
class FailingPair:
    """One pair whose last handover failed."""

    prefill: str
    """Uid of the pod; so is `decode`."""
    decode: str
    failures: int
    """In a row."""
    reason: str
    """Of the last failure, as the decode engine gave it."""
    since_s: float = 0.0
    """How long ago the first of these failures was."""
    last_s: float = 0.0
    """How long ago the last one was."""


@dataclass(slots=True)
class _Record:
    first_at: float
    last_at: float = 0.0
    failures: int = 0
    until: float = 0.0
    """Clock time until which the pair, or the prefill pod, is avoided."""
    reason: str = ""

    def count_failure(self, now: float) -> None:
        self.failures = min(self.failures + 1, _MOST_FAILURES)
        self.last_at = now
        self.until = now + self.time_s()

    def time_s(self) -> float:
        return min(_FIRST_S * 2.0 ** (self.failures - 1), _LONGEST_S)


class Pairs:
    """Records by (prefill uid, decode uid); a pair without a record is in order."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pairs: dict[tuple[str, str], _Record] = {}
        self._failed_with: dict[str, set[str]] = {}
        """Uid of an end → the partners that it failed with since its last success with any."""
        self._prefills: dict[str, _Record] = {}
        """Prefill pods that are the cause themselves."""
        self._whole_at: dict[str, float] = {}
        """Uid of an end → when it had its last whole handover."""

    def avoids(self, prefill: str, decode: str) -> bool:
        """Whether this prefill pod is to be named after the others for this decode pod."""
        if not self._pairs:
            return False
        now = self._clock()
        records = (self._pairs.get((prefill, decode)), self._prefills.get(prefill))
        return any(record is not None and record.until > now for record in records)

    def begin(self, prefill: str, decode: str) -> None:
        """A request names this prefill pod first. A pair whose time is over gets the next request
        only after the same time, unless this one succeeds."""
        if not self._pairs:
            return
        for record in (self._pairs.get((prefill, decode)), self._prefills.get(prefill)):
            if record is not None:
                record.until = self._clock() + record.time_s()

    def learn(
        self, decode: str, named: Mapping[str, str], *, failed: bytes | None, served: bytes | None
    ) -> dict[str, str]:
        """Take the two headers of an answer. `named` are the candidates that the request named,
        each by name and by address, with their uids; other pods are passed over.

        Returns reasons by uid of the prefill pods that failed.
        """
        found: dict[str, str] = {}
        for entry in (failed or b"").decode("latin-1").split(","):
            name, _, reason = entry.strip().partition("=")
            if (uid := named.get(name)) is not None and reason not in NO_FAILURES:
                found[uid] = reason[:_REASON_CHARS] or "unknown"
        for uid, reason in found.items():
            self.count_failure(uid, decode, reason)
        uid = named.get(served.decode("latin-1")) if served else None
        if uid is not None and uid not in found:  # else it computed the prompt, and then failed
            self.count_success(uid, decode)
        return found

    def count_failure(self, prefill: str, decode: str, reason: str) -> None:
        """A handover failed; `reason` is the decode engine's word for it."""
        now, key = self._clock(), (prefill, decode)
        if key not in self._pairs and len(self._pairs) >= _MOST_PAIRS:
            self._forget_pair(next(iter(self._pairs)))
        record = self._pairs.setdefault(key, _Record(now))
        record.count_failure(now)
        record.reason = reason
        self._failed_with.setdefault(prefill, set()).add(decode)
        self._failed_with.setdefault(decode, set()).add(prefill)
        if self.is_cause(prefill):
            self._prefills.setdefault(prefill, _Record(now)).count_failure(now)

    def count_success(self, prefill: str, decode: str) -> None:
        """A handover was whole."""
        self._whole_at[prefill] = self._whole_at[decode] = self._clock()
        if len(self._whole_at) > _MOST_PODS:
            del self._whole_at[next(iter(self._whole_at))]
        if not self._pairs:
            return
        self._pairs.pop((prefill, decode), None)
        self._prefills.pop(prefill, None)
        for uid in (prefill, decode):
            self._failed_with.pop(uid, None)

    def is_cause(self, uid: str) -> bool:
        """Whether this end fails with partners that do better without it."""
        partners = self._failed_with.get(uid, set())
        return len(partners) >= _ENOUGH_PARTNERS and all(
            len(self._failed_with.get(partner, ())) < len(partners) for partner in partners
        )

    def failing(self, most: int) -> list[FailingPair]:
        """The pairs that failed most often in a row, of these the latest; up to `most`."""
        now = self._clock()
        rows = [
            FailingPair(*key, r.failures, r.reason, now - r.first_at, now - r.last_at)
            for key, r in self._pairs.items()
        ]
        return sorted(rows, key=lambda row: (-row.failures, row.last_s))[:most]

    def handover_ages(self) -> dict[str, float]:
        """Uid of each pod that has had a whole handover → how many seconds ago the last one was."""
        now = self._clock()
        return {uid: now - at for uid, at in self._whole_at.items()}

    def forget(self, uid: str) -> None:
        """Drop what is known of a pod that changed or is gone."""
        self._whole_at.pop(uid, None)
        if not self._pairs:
            return
        for key in [key for key in self._pairs if uid in key]:
            self._forget_pair(key)
        self._prefills.pop(uid, None)
        self._failed_with.pop(uid, None)

    def _forget_pair(self, key: tuple[str, str]) -> None:
        del self._pairs[key]
        for uid, partner in (key, key[::-1]):
            partners = self._failed_with.get(uid, set())
            partners.discard(partner)
            if not partners:
                self._failed_with.pop(uid, None)
