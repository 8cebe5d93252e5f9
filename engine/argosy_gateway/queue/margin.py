"""How much of the TTFT limit a prediction may use. Pure.

Under overload every dispatched request is predicted to meet its limit just so, and an error of the
prediction makes all of them miss. So the share of the limit that may be planned follows what became
of such requests: one that misses cuts it, time without a miss lets it grow again.
"""

__all__ = ["Margin"]

MOST, LEAST = 1.0, 0.5
"""Above 1 at first: where nothing misses, predictions that are too long must not hold requests."""
_CUT = 0.9
_GROWTH_PER_S = 0.003
"""Slow: each time the share reaches the edge, what is dispatched within one TTFT misses."""
_TIGHT = 0.5
"""Predictions below this share of the limit were not near it: a miss has another cause."""


class Margin:
    """Share of the limit; see the module."""

    def __init__(self) -> None:
        self._share = MOST
        self._cut_at = float("-inf")

    def share(self, now: float) -> float:
        """At this time, from LEAST to MOST."""
        if self._share == MOST:
            return MOST
        return min(MOST, self._share + _GROWTH_PER_S * (now - self._cut_at))

    def observe(
        self, *, predicted_s: float, ttft_s: float, limit_s: float, sent_at: float, now: float
    ) -> None:
        """A request that was dispatched to meet its limit had its first token."""
        share = self.share(now)
        planned = _TIGHT * limit_s <= predicted_s <= share * limit_s
        if not planned or ttft_s <= limit_s or sent_at <= self._cut_at:
            return  # what was sent before the last cut shows nothing about the share since
        self._share = max(LEAST, min(share, share * limit_s / ttft_s) * _CUT)
        self._cut_at = now
