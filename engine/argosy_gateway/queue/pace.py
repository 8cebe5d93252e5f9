"""How long a pod takes for the prompt tokens ahead of a request and its own. Pure.

`room` reports every first token; `dispatch` asks for predictions. The pace of a pod is

    prompt tokens outstanding at dispatch, own ones included / seconds to the first token

as a ratio of sums over its newest prompts. A prompt that met an idle pod tells little about a
backlog: its own fixed costs would look like a slow pod. So prompts that had others ahead of them
count first, and the pace of those that had none is the least that is believed. The tokens are those
of this gateway: if other gateways use the pod, what is learnt is this gateway's share of its pace.
"""

__all__ = ["Pace"]

_MEMORY = 16
"""Prompts after which an observation counts 1/e."""
_ENOUGH = 4
"""Observations before a ratio counts as known."""
_BEHIND = 1.5
"""A prompt had others ahead if this multiple of its own tokens was outstanding."""
_OPTIMISM = 1.2
"""On the pace of prompts that met an idle pod: too high costs less than a pod that is idle."""
_OUTLIER = 4.0
"""One observation counts at most as so much slower or quicker than predicted."""
_MOST_PODS = 4096
"""Bound on memory: pods that are gone are not reported."""


class _Ratio:
    """Tokens over seconds with exponential forgetting."""

    __slots__ = ("_samples", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0
        self._samples = 0

    def add(self, tokens: float, seconds: float) -> None:
        if self._samples >= _ENOUGH:  # a stall or a lost clock tick is not the pod's pace
            expected = tokens / (self._tokens / self._seconds)
            seconds = min(max(seconds, expected / _OUTLIER), expected * _OUTLIER)
        keep = 1 - 1 / _MEMORY
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + max(seconds, 1e-6)
        self._samples += 1

    def value(self) -> float | None:
        return self._tokens / self._seconds if self._samples >= _ENOUGH else None


class Pace:
    """Prompt tokens per second of each pod as this gateway's requests meet it."""

    def __init__(self) -> None:
        self._behind: dict[str, _Ratio] = {}
        self._alone: dict[str, _Ratio] = {}
        self._all_behind, self._all_alone = _Ratio(), _Ratio()

    def observe(self, uid: str, *, ahead: int, own: int, seconds: float) -> None:
        """A first token came `seconds` after the dispatch; `ahead` includes `own` tokens."""
        behind = ahead >= _BEHIND * own
        ratios = self._behind if behind else self._alone
        if uid not in ratios and len(ratios) >= _MOST_PODS:
            ratios.clear()
        ratios.setdefault(uid, _Ratio()).add(ahead, seconds)
        (self._all_behind if behind else self._all_alone).add(ahead, seconds)

    def tokens_per_s(self, uid: str) -> float | None:
        """Of one pod; of all pods while it is not known, as "" never is; None while none is."""
        for behind, alone in (
            (self._behind.get(uid), self._alone.get(uid)),
            (self._all_behind, self._all_alone),
        ):
            least = alone.value() if alone is not None else None
            if behind is not None and (value := behind.value()) is not None:
                return max(value, least or 0.0)
        for alone in (self._alone.get(uid), self._all_alone):
            if alone is not None and (value := alone.value()) is not None:
                return value * _OPTIMISM
        return None

    def seconds(self, uid: str, tokens: float) -> float:
        """Predicted time for so many prompt tokens; 0 while the pace is unknown."""
        pace = self.tokens_per_s(uid)
        return tokens / pace if pace else 0.0
