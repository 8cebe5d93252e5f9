"""How many sequences a decode pod may have, so that they keep the TPOT limit. Pure.

`Queue` reports about once a second how long the streams of each pod took for a token.
A step of n sequences takes a + b·n. So after n sequences were too slow,

    n · limit / TPOT(n)

is still at least what the pod can run within the limit, and the next times come closer to it. In
the same way a pod whose sequences are quicker than the limit gets more. A pod that never was too
slow has no bound. Several gateways bound each its own sequences, all by the same measure.

Sequences may not be the cause: long contexts, or a slow network. If a step would take longer than
the limit even with none, fewer of them serve nobody, and the bound is lifted for a while.
"""

from dataclasses import dataclass

__all__ = ["Places"]

_PLANNED = 0.9
"""Of the limit: the TPOT of an answer varies with those beside it."""
_LEAST_CUT = 0.5
"""At most so much is left of a bound, or of the sequences, after one report: it may be a stall."""
_ENOUGH_CUT = 0.5
"""Share of the sequences at which it was slowest that shows what fewer of them change."""
_LIFTED_S = 60.0
_MOST_PODS = 4096
"""Bound on memory: pods that are gone are not reported."""


@dataclass(slots=True)
class _Bound:
    places: float
    sequences: int
    """How many it had when it was slowest since the bound began."""
    slowest_s: float
    """TPOT at that time."""
    lifted_until: float = 0.0


class Places:
    """Bounds by pod uid, for the sequences of this gateway."""

    def __init__(self, limit_s: float | None) -> None:
        """`limit_s` is the TPOT limit; None sets no bound."""
        self._limit_s = limit_s
        self._bounds: dict[str, _Bound] = {}

    def observe(self, uid: str, *, sequences: int, tpot_s: float, now: float) -> None:
        """A pod had so many sequences of this gateway; their streams took so long for a token."""
        if self._limit_s is None or not sequences or tpot_s <= 0:
            return
        bound, slow = self._bounds.get(uid), tpot_s > self._limit_s
        fit = sequences * _PLANNED * self._limit_s / tpot_s
        if bound is None or 0 < bound.lifted_until <= now:
            if not slow:
                self._bounds.pop(uid, None)
                return
            if len(self._bounds) >= _MOST_PODS:
                self._bounds.clear()
            bound = self._bounds[uid] = _Bound(float(sequences), sequences, tpot_s)
        if bound.lifted_until:
            return
        if tpot_s > bound.slowest_s:
            bound.sequences, bound.slowest_s = sequences, tpot_s
        if slow and self._is_in_vain(bound, sequences, tpot_s):
            bound.lifted_until = now + _LIFTED_S
        elif fit > bound.places:
            bound.places = fit
        elif tpot_s > _PLANNED * self._limit_s:
            bound.places = max(1.0, fit, _LEAST_CUT * bound.places)

    def has_room(self, uid: str, sequences: int) -> bool:
        """Whether a pod with so many sequences of this gateway may have one more."""
        bound = self._bounds.get(uid)
        return bound is None or bound.lifted_until > 0 or sequences + 1 <= bound.places

    def _is_in_vain(self, bound: _Bound, sequences: int, tpot_s: float) -> bool:
        """Whether it would be too slow without any sequence, by a line through two reports."""
        assert self._limit_s is not None
        if sequences > _ENOUGH_CUT * bound.sequences:
            return False
        each_s = (bound.slowest_s - tpot_s) / (bound.sequences - sequences)
        return tpot_s - each_s * sequences >= self._limit_s
