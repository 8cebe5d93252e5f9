"""Whether a request is admitted. Pure: times are passed in.

`server.app` sheds a request (1) if `max_queue` requests are in flight, or (2) if `shed_ttft_factor`
is set and the predicted TTFT exceeds that multiple of the SLO's limit: the request would miss its
SLO anyway, and queueing it would make others miss. The predicted TTFT is

    (prompt tokens ahead on the least loaded pod + its own) / prompt tokens per busy second

Both numbers come from this gateway's own requests; of several gateways each sees its share of both.
`relay` feeds the two estimators below with what answers show.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from operator import itemgetter

from argosy_gateway.routing.groups import Group
from argosy_gateway.routing.load import Load

__all__ = ["PrefillPace", "TokensPerChar", "predicted_ttft_s"]

_MEMORY_S = 20.0
"""Busy seconds after which an observation of the pace counts 1/e."""
_ENOUGH_SAMPLES = 20
"""Prompts before the pace counts as known."""
_MOST_PODS, _MOST_SPANS = 1000, 64
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


class PrefillPace:
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

    def prompt(self, uid: str, tokens: int, *, began: float, first: float) -> None:
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
        if uid not in self._spans and len(self._spans) >= _MOST_PODS:
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


def predicted_ttft_s(
    groups: Sequence[Group], loads: Mapping[str, Load], *, tokens: int, pace: PrefillPace
) -> float | None:
    """Seconds to the first token of a prompt of so many tokens; None (do not shed) if unknown."""
    rate = pace.tokens_per_s()
    pods = [pod for g in groups for pod in (g.prefills or g.heads)]
    if not rate or not pods:
        return None
    ahead = min(load.prompt_tokens if (load := loads.get(p.uid)) else 0 for p in pods)
    return (ahead + tokens) / rate
