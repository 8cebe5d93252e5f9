"""What the simulated gateway learns of its pods: pace, margin and places, by the product's rules.

`queue.Queue` reports first tokens and step times, and asks for predictions. The rules are those of
`argosy_gateway.routing.estimates` ( designs/0009-queue.md has the reasons).
"""

from dataclasses import dataclass

_MEMORY = 16
"""Prompts after which an observation counts 1/e."""
_KEEP = 1 - 1 / _MEMORY
_ENOUGH = 4
"""Observations before a ratio counts as known."""
_BEHIND = 1.5
"""A prompt had others ahead if this multiple of its own tokens was outstanding."""
_OPTIMISM = 1.2
"""On the pace of prompts that met an idle pod."""
_OUTLIER = 4.0
"""One observation counts at most as so much slower or quicker than predicted."""


class _Ratio:
    """Tokens over seconds with exponential forgetting."""

    __slots__ = ("_samples", "_seconds", "_tokens", "value")

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0
        self._samples = 0
        self.value = 0.0
        """Tokens per second; 0 while it is not known."""

    def add(self, tokens: float, seconds: float) -> None:
        if self.value:
            expected = tokens / self.value
            if seconds < expected / _OUTLIER:
                seconds = expected / _OUTLIER
            elif seconds > expected * _OUTLIER:
                seconds = expected * _OUTLIER
        self._tokens = self._tokens * _KEEP + tokens
        self._seconds = self._seconds * _KEEP + (seconds if seconds > 1e-6 else 1e-6)
        self._samples += 1
        if self._samples >= _ENOUGH:
            self.value = self._tokens / self._seconds


class Pace:
    """Prompt tokens per second of a prefill pod. All pods are alike, so one pace is theirs."""

    def __init__(self) -> None:
        self._behind, self._alone = _Ratio(), _Ratio()
        self.tokens_per_s = 0.0
        """0 while too few prompts were seen."""

    def observe(self, ahead: int, own: int, seconds: float) -> None:
        """A first token came `seconds` after the dispatch; `ahead` includes `own` tokens."""
        (self._behind if ahead >= _BEHIND * own else self._alone).add(ahead, seconds)
        behind, alone = self._behind.value, self._alone.value
        if not behind:
            self.tokens_per_s = alone * _OPTIMISM
        else:
            self.tokens_per_s = behind if behind > alone else alone

    def seconds(self, tokens: int) -> float:
        """Predicted time for so many prompt tokens; 0 while the pace is unknown."""
        return tokens / self.tokens_per_s if self.tokens_per_s else 0.0


_MOST, _LEAST = 1.0, 0.5
_CUT = 0.9
_GROWTH_PER_S = 0.003
_TIGHT = 0.5
"""Predictions below this share of the limit were not near it: a miss has another cause."""


class Margin:
    """Share of the TTFT limit that a prediction may use."""

    def __init__(self) -> None:
        self._share = _MOST
        self._cut_at = float("-inf")

    def share(self, now: float) -> float:
        """At this time, from 0.5 to 1."""
        if self._share < _MOST:
            share = self._share + _GROWTH_PER_S * (now - self._cut_at)
            if share < _MOST:
                return share
            self._share = _MOST  # it has grown back
        return _MOST

    def missed(
        self, *, predicted_s: float, ttft_s: float, limit_s: float, sent_at: float, now: float
    ) -> None:
        """A request had its first token after the limit."""
        if sent_at <= self._cut_at:
            return
        share = self.share(now)
        if _TIGHT * limit_s <= predicted_s <= share * limit_s:
            self._share = max(_LEAST, min(share, share * limit_s / ttft_s) * _CUT)
            self._cut_at = now


_PLANNED = 0.95
"""Of the TPOT limit: the TPOT of an answer varies with those beside it."""
_LEAST_CUT = 0.5
_ENOUGH_CUT = 0.5
_LIFTED_S = 60.0
_REPORT_S = 1.0


@dataclass(slots=True)
class _Bound:
    places: float
    sequences: int
    slowest_s: float
    lifted_until: float = 0.0
    seen_at: float = 0.0


class Places:
    """How many sequences decode pods may have, so that they keep the TPOT limit; by pod name."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.bounds: dict[str, _Bound] = {}
        """Empty while no pod was too slow."""

    def due(self, pod: str, tpot_s: float, now: float) -> bool:
        """Whether a report would change anything: it is too slow, or has a bound, and its last
        report is a second old."""
        bound = self.bounds.get(pod)
        return tpot_s > self._limit_s if bound is None else now >= bound.seen_at + _REPORT_S

    def observe(self, pod: str, *, sequences: int, tpot_s: float, now: float) -> None:
        """A pod has so many sequences, whose tokens took so long."""
        bound, slow = self.bounds.get(pod), tpot_s > self._limit_s
        if not sequences or (bound is None and not slow):
            return
        fit = sequences * _PLANNED * self._limit_s / tpot_s
        if bound is None or 0 < bound.lifted_until <= now:
            if not slow:
                self.bounds.pop(pod, None)
                return
            bound = self.bounds[pod] = _Bound(float(sequences), sequences, tpot_s)
        bound.seen_at = now
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

    def has_room(self, pod: str, sequences: int) -> bool:
        """Whether a pod with so many sequences may have one more."""
        bound = self.bounds.get(pod)
        return bound is None or bound.lifted_until > 0 or sequences + 1 <= bound.places

    def _is_in_vain(self, bound: _Bound, sequences: int, tpot_s: float) -> bool:
        """Whether it would be too slow without any sequence, by a line through two reports."""
        if sequences > _ENOUGH_CUT * bound.sequences:
            return False
        each_s = (bound.slowest_s - tpot_s) / (bound.sequences - sequences)
        return tpot_s - each_s * sequences >= self._limit_s
