"""What the gateway learns from its own answers, and what it predicts by that. Pure.

- `PodPace`: how long a pod takes for the prompt tokens ahead of a request and its own.
- `Margin`: how much of the TTFT limit a prediction may use.
- `Places`: how many sequences a decode pod may have, so that they keep the TPOT limit.
- `Transfers`: which prompts are quicker to compute than to move.
- `FleetPace` and `predict_ttft_s`: whether a request is shed because it would miss its limit.
- `TokensPerChar`: how many tokens a prompt has.

`queue` and `relay` report what answers show; `dispatch` and `server` ask for predictions.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from argosy_gateway.routing.load import PodLoad
from argosy_gateway.routing.roster import Group

__all__ = [
    "FleetPace",
    "Margin",
    "Places",
    "PodPace",
    "TokensPerChar",
    "Transfers",
    "predict_ttft_s",
]

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


class PodPace:
    """Prompt tokens per second of each pod as this gateway's requests meet it.

    The pace of a pod is

        prompt tokens outstanding at dispatch, own ones included / seconds to the first token

    as a ratio of sums over its newest prompts. A prompt that met an idle pod tells little about a
    backlog: its own fixed costs would look like a slow pod. So prompts that had others ahead of
    them count first, and the pace of those that had none is the least that is believed. The tokens
    are those of this gateway: if other gateways use the pod, what is learnt is this gateway's share
    of its pace.
    """

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
        """Return the pace of a pod, or of all pods while that of this one is unknown.

        The uid "" asks for the pace of all pods. None: nothing is known yet.
        """
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


MOST_SHARE, LEAST_SHARE = 1.0, 0.5
"""Above 1 at first: where nothing misses, predictions that are too long must not hold requests."""
_CUT = 0.9
_GROWTH_PER_S = 0.003
"""Slow: each time the share reaches the edge, what is dispatched within one TTFT misses."""
_TIGHT = 0.5
"""Predictions below this share of the limit were not near it: a miss has another cause."""


class Margin:
    """The share of the TTFT limit that a prediction may use.

    Under overload every dispatched request is predicted to meet its limit just so, and an error of
    the prediction makes all of them miss. So the share that may be planned follows what became of
    such requests: one that misses cuts it, time without a miss lets it grow again.
    """

    def __init__(self) -> None:
        self._share = MOST_SHARE
        self._cut_at = float("-inf")

    def share(self, now: float) -> float:
        """Return the share at this time, from LEAST_SHARE to MOST_SHARE."""
        if self._share == MOST_SHARE:
            return MOST_SHARE
        return min(MOST_SHARE, self._share + _GROWTH_PER_S * (now - self._cut_at))

    def observe(
        self, *, predicted_s: float, ttft_s: float, limit_s: float, sent_at: float, now: float
    ) -> None:
        """A request that was dispatched to meet its limit had its first token."""
        share = self.share(now)
        planned = _TIGHT * limit_s <= predicted_s <= share * limit_s
        if not planned or ttft_s <= limit_s or sent_at <= self._cut_at:
            return  # what was sent before the last cut shows nothing about the share since
        self._share = max(LEAST_SHARE, min(share, share * limit_s / ttft_s) * _CUT)
        self._cut_at = now


_PLANNED = 0.95
"""Of the limit: the TPOT of an answer varies with those beside it."""
_LEAST_CUT = 0.5
"""At most so much is left of a bound, or of the sequences, after one report: it may be a stall."""
_ENOUGH_CUT = 0.5
"""Share of the sequences at which it was slowest that shows what fewer of them change."""
_LIFTED_S = 60.0
_MOST_BOUNDS = 4096
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
    """How many sequences of this gateway each decode pod may have within the TPOT limit.

    `Queue` reports about once a second how long the streams of each pod took for a token.
    A step of n sequences takes a + b·n. So after n sequences were too slow,

        n · limit / TPOT(n)

    is still at least what the pod can run within the limit, and the next times come closer to it.
    In the same way a pod whose sequences are quicker than the limit gets more. A pod that never was
    too slow has no bound. Several gateways bound each its own sequences, all by the same measure.

    Sequences may not be the cause: long contexts, or a slow network. If a step would take longer
    than the limit even with none, fewer of them serve nobody, and the bound is lifted for a while.
    """

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
            if len(self._bounds) >= _MOST_BOUNDS:
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


_MOVES = 32
"""Newest transfers that count."""
_MOVES_KNOWN_S = 60.0
"""How long a transfer counts: where all prompts are short, one is moved again after this time."""


class Transfers:
    """How long the decode pods of engines that this gateway leads take to get a prompt's KV.

    A prompt that a decode pod computes in less time is not worth a handover: the bound is the
    shortest transfer times the pace of prompts. The time is from the decode pod's request to its
    first token, so it has a decode step in it, and what the request waited there: a prompt that is
    computed waits as long, so the others say less about a transfer than the shortest.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds: deque[tuple[float, float]] = deque(maxlen=_MOVES)
        """When, and how long."""
        self._served: dict[str, deque[tuple[float, float]]] = {}
        """Pod uid → when its newest requests that got their KV were asked, and answered."""

    def observe(self, seconds: float) -> None:
        """A decode pod had its first token so long after it was asked."""
        self._seconds.append((self._clock(), seconds))

    def mark_served(self, uid: str, *, asked_at: float) -> None:
        """The pod begins to answer, with the KV that it was told of at that time."""
        if uid not in self._served and len(self._served) >= _MOST_PODS:
            self._served.clear()
        served = self._served.setdefault(uid, deque(maxlen=_MOVES))
        served.append((asked_at, self._clock()))

    def turn_of(self, uid: str, *, asked_at: float) -> float:
        """Return since when a request may be the pod's next one.

        vLLM serves those first that were asked first: while these begin, one that came later has
        not hung, it waits.
        """
        ahead = (at for asked, at in self._served.get(uid, ()) if asked <= asked_at)
        return max(ahead, default=asked_at)

    def least_tokens(self, tokens_per_s: float | None) -> float:
        """Return the tokens of a prompt from which on its KV is moved; 0 while little is known."""
        since = self._clock() - _MOVES_KNOWN_S
        known = [seconds for at, seconds in self._seconds if at >= since]
        if tokens_per_s is None or len(known) < _ENOUGH:
            return 0.0
        return min(known) * tokens_per_s


_MEMORY_S = 20.0
"""Busy seconds after which an observation of the pace counts 1/e."""
_ENOUGH_SAMPLES = 20
"""Prompts before the pace counts as known."""
_MOST_BUSY_PODS, _MOST_SPANS = 1000, 64
"""Bounds on memory: pods, and spans of each."""
_LEARNING_RATE = 0.1
_SHORTEST_CHARS = 64
"""Shorter prompts teach nothing about characters: they are mostly the chat template."""


class TokensPerChar:
    """Prompt tokens per character, learnt from usage; 1/4 until then, as in English text."""

    def __init__(self) -> None:
        self._ratio = 0.25

    def estimate(self, chars: int) -> int:
        """Prompt tokens of a prompt with so many characters; at least 1."""
        return max(1, round(chars * self._ratio))

    def learn(self, *, chars: int, tokens: int) -> None:
        """Move a tenth of the way to the ratio of one answered request."""
        if chars >= _SHORTEST_CHARS:
            self._ratio += _LEARNING_RATE * (tokens / chars - self._ratio)


class FleetPace:
    """Prompt tokens per busy second; a pod is busy while it computes a prompt of this gateway.

    Answers come in any order, and an unstreamed one shows its first token's time only at its end.
    So each pod's busy time is kept as spans, and overlapping prompts count their seconds once: two
    prompts of 100 tokens from 0 s to 2 s and from 1 s to 3 s are 200 tokens in 3 s.
    """

    def __init__(self) -> None:
        self._spans: dict[str, list[tuple[float, float]]] = {}
        """Pod uid → disjoint spans (began, first token), in order."""
        self._tokens = 0.0
        self._seconds = 0.0
        self._samples = 0

    def observe(self, uid: str, tokens: int, *, began: float, first: float) -> None:
        """A prompt was sent to a pod at `began` and had its first token at `first`, in seconds."""
        busy_s = self._add(uid, began, first)
        weight = math.exp(-busy_s / _MEMORY_S)
        self._seconds = self._seconds * weight + busy_s
        self._tokens = self._tokens * weight + tokens
        self._samples += 1

    def tokens_per_s(self) -> float | None:
        """The pace; None until enough prompts were observed."""
        if self._samples < _ENOUGH_SAMPLES or self._seconds <= 0:
            return None
        return self._tokens / self._seconds

    def _add(self, uid: str, began: float, first: float) -> float:
        """Seconds of the span that no earlier one covers."""
        if uid not in self._spans and len(self._spans) >= _MOST_BUSY_PODS:
            self._spans.clear()  # costs only that overlaps with forgotten spans count twice
        spans = self._spans.setdefault(uid, [])
        # They are apart and in order, so those that the new one touches are neighbours.
        low = bisect_left(spans, began, key=itemgetter(1))
        high = bisect_right(spans, first, key=itemgetter(0))
        touched = spans[low:high]
        if touched:
            began, first = min(began, touched[0][0]), max(first, touched[-1][1])
        spans[low:high] = [(began, first)]
        del spans[:-_MOST_SPANS]
        return (first - began) - sum(end - start for start, end in touched)


def predict_ttft_s(
    groups: Sequence[Group], loads: Mapping[str, PodLoad], *, tokens: int, pace: FleetPace
) -> float | None:
    """Return the seconds to the first token of a prompt of `tokens`; None if they are unknown.

    They are

        (prompt tokens ahead on the least loaded pod + its own) / prompt tokens per busy second

    Both numbers come from this gateway's own requests; of several gateways each sees its share of
    both. `server` sheds a request whose prediction exceeds `shed_ttft_factor` times the limit of
    its SLO: it would miss anyway, and queueing it would make others miss.
    """
    rate = pace.tokens_per_s()
    pods = [pod for g in groups for pod in (g.prefills or g.heads)]
    if not rate or not pods:
        return None
    ahead = min(load.prompt_tokens if (load := loads.get(p.uid)) else 0 for p in pods)
    return (ahead + tokens) / rate
