"""How long a decode engine waits for a prefill engine, and both for bytes.

A prompt takes as long as prompts took lately, so the wait before READY follows the measured pace.
Bytes have a minimum rate, so that a long prompt has more time than a short one.
"""

from math import inf

__all__ = ["FLOOR_S", "GRACE_S", "Pace", "transfer_s"]

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
