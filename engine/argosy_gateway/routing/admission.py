"""Whether a request is taken in. Pure: the clock is passed.

Two rules. (1) At most `max_queue` requests in flight. (2) Where a factor is set: a request whose
predicted TTFT exceeds factor x the SLO's limit is refused; it would be a miss anyway, and waiting
it would make others miss. Prediction = prompt tokens ahead on the least loaded pod / tokens per
busy second, both as seen by this gateway alone: with several each sees its share of both.
"""

import math
from collections.abc import Mapping, Sequence

from argosy_gateway.routing.groups import Group
from argosy_gateway.routing.load import Load

__all__ = ["PrefillPace", "TokensPerChar", "predicted_ttft_s"]

_MEMORY_S = 20.0
_ENOUGH_SAMPLES = 20
_MOST_PODS, _MOST_SPANS = 1000, 64


class TokensPerChar:
    """How many prompt tokens a character is worth, learnt from usage; 1/4 until then."""

    def __init__(self) -> None:
        self._ratio = 0.25

    def estimate(self, chars: int) -> int:
        """Prompt tokens, at least 1."""
        return max(1, round(chars * self._ratio))

    def learn(self, *, chars: int, tokens: int) -> None:
        """Move a tenth of the way to what one answer says; tiny prompts are mostly template."""
        if chars >= 64:
            self._ratio += 0.1 * (tokens / chars - self._ratio)


class PrefillPace:
    """Prompt tokens per second of pods that had at least one prompt of ours to work on.

    Answers tell of their prompts in any order: an unstreamed one does at its end. So the seconds
    that a pod worked are kept as spans, and no moment is counted twice.
    """

    def __init__(self) -> None:
        self._spans: dict[str, list[tuple[float, float]]] = {}  # uid → disjoint (began, first)
        self._tokens = 0.0
        self._seconds = 0.0
        self._samples = 0

    def prompt(self, uid: str, tokens: int, *, began: float, first: float) -> None:
        """A prompt was sent to a pod at `began`; its first token was there at `first`."""
        worked_s = self._add(uid, began, first)
        kept = math.exp(-worked_s / _MEMORY_S)
        self._seconds = self._seconds * kept + worked_s
        self._tokens = self._tokens * kept + tokens
        self._samples += 1

    def tokens_per_s(self) -> float | None:
        """None until enough prompts were seen."""
        if self._samples < _ENOUGH_SAMPLES or self._seconds <= 0:
            return None
        return self._tokens / self._seconds

    def _add(self, uid: str, began: float, first: float) -> float:
        """Seconds of the span that were not counted before."""
        if uid not in self._spans and len(self._spans) >= _MOST_PODS:
            self._spans.clear()  # pods come and go: what is forgotten is only what overlaps
        spans = self._spans.get(uid, [])
        touched = [s for s in spans if s[0] <= first and began <= s[1]]
        whole = (min([began, *(s[0] for s in touched)]), max([first, *(s[1] for s in touched)]))
        others = [s for s in spans if s not in touched]
        self._spans[uid] = sorted([*others, whole])[-_MOST_SPANS:]
        return (whole[1] - whole[0]) - sum(s[1] - s[0] for s in touched)


def predicted_ttft_s(
    groups: Sequence[Group], loads: Mapping[str, Load], *, tokens: int, pace: PrefillPace
) -> float | None:
    """Seconds to the first token of a prompt of so many tokens; None: unknown, so do not shed."""
    rate = pace.tokens_per_s()
    pods = [pod for g in groups for pod in (g.prefills or g.heads)]
    if not rate or not pods:
        return None
    ahead = min(load.prompt_tokens if (load := loads.get(p.uid)) else 0 for p in pods)
    return (ahead + tokens) / rate
