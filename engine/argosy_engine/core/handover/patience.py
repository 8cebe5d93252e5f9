"""How long a decode engine waits for a prefill engine, and both for bytes.

A prompt takes as long as prompts took lately, so the wait before READY follows the measured pace.
Bytes have a minimum rate, so that a long prompt has more time than a short one.

`Suspects` are prefill engines that failed lately. A failure that cost time suspends its engine for
2 s, the next one in a row for twice as long, up to a minute: 2, 4, 8, 16, 32, 60, 60 … A refusal
comes at once and suspends for one second. When the time is over, one request asks again, and the
others wait for its result.
"""

from dataclasses import dataclass
from math import inf

FLOOR_S = 5.0
"""The least patience: an idle engine's heartbeats come each second."""
GRACE_S = 2.0
"""On top of the time of the minimum rate, for a busy machine."""
_FACTOR = 3.0
_WEIGHT = 0.2


class Pace:
    """Seconds per token from admission to READY, an average in which the latest prompts count."""

    def __init__(self) -> None:
        self._s_per_token: float | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        """A prompt of `tokens` was computed `seconds` after its admission."""
        measured = seconds / max(1, tokens)
        if self._s_per_token is None:
            self._s_per_token = measured
        else:
            self._s_per_token += _WEIGHT * (measured - self._s_per_token)

    def patience_s(self, tokens: int) -> float:
        """How long a candidate may show no progress: three times what such a prompt takes.

        Infinite as long as no prompt was measured: the pull's own time-out decides then.
        """
        if self._s_per_token is None:
            return inf
        return max(FLOOR_S, _FACTOR * self._s_per_token * tokens)


def transfer_s(size: int, min_bytes_per_s: float) -> float:
    """The most seconds that `size` bytes may take."""
    return size / min_bytes_per_s + GRACE_S


_FIRST_S, _LONGEST_S, _REFUSED_S = 2.0, 60.0, 1.0
_MANY = 1024
"""Addresses to remember; beyond it, those that are no longer suspended are forgotten."""


@dataclass(slots=True)
class _Suspicion:
    since_s: float
    until_s: float
    wait_s: float


class Suspects:
    """Addresses and their back-off. `now` and `asked_s` are seconds on the same clock."""

    def __init__(self) -> None:
        self._of: dict[str, _Suspicion] = {}

    def trusts(self, address: str, now: float) -> bool:
        """Whether it is not suspended."""
        suspicion = self._of.get(address)
        return suspicion is None or suspicion.until_s <= now

    def may_ask(self, address: str, now: float) -> bool:
        """Like `trusts`, but after a failure True for one caller; the others wait once more."""
        if not self.trusts(address, now):
            return False
        if address in self._of:
            self._of[address].until_s = now + self._of[address].wait_s
        return True

    def failed(self, address: str, *, asked_s: float, now: float) -> None:
        """It was unreachable, silent or broke off; its request lost time."""
        known = self._of.get(address)
        if known is not None and asked_s < known.since_s:
            return  # the failure that is known already, seen by a request from before it
        self._suspend(address, now, _FIRST_S if known is None else max(_FIRST_S, 2 * known.wait_s))

    def refused(self, address: str, *, now: float) -> None:
        """It answered that it takes no work now."""
        self._suspend(address, now, _REFUSED_S)

    def answered(self, address: str) -> None:
        """It computed a prompt: its failures are forgotten."""
        self._of.pop(address, None)

    def _suspend(self, address: str, now: float, wait_s: float) -> None:
        if len(self._of) >= _MANY:
            self._of = {a: s for a, s in self._of.items() if s.until_s > now}
        wait_s = min(wait_s, _LONGEST_S)
        self._of[address] = _Suspicion(now, now + wait_s, wait_s)
