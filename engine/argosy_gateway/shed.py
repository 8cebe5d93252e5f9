"""Whether a request is taken in. Pure: the clock is passed.

Two rules. (1) At most `max_queue` requests in flight. (2) Where a factor is set: a request whose
predicted TTFT exceeds factor x the SLO's limit is refused; it would be a miss anyway, and waiting
it would make others miss. Prediction = prompt tokens ahead on the least loaded pod / tokens per
busy second, both as seen by this gateway alone: with several each sees its share of both.
"""

import math
from collections.abc import Mapping, Sequence

from argosy_gateway.pairs import Group
from argosy_gateway.pick import Load

__all__ = ["PrefillPace", "TokensPerChar", "predicted_ttft_s"]

_MEMORY_S = 20.0
_ENOUGH_SAMPLES = 20


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
    """Prompt tokens per second of pods that had at least one prompt of ours to work on."""

    def __init__(self) -> None:
        self._busy: dict[str, tuple[int, float]] = {}  # uid → (prompts waiting, since)
        self._tokens = 0.0
        self._seconds = 0.0
        self._samples = 0

    def begin(self, uid: str, now: float) -> None:
        """A prompt was sent to a pod."""
        waiting, since = self._busy.get(uid, (0, now))
        self._busy[uid] = (waiting + 1, since)

    def first_token(self, uid: str, tokens: int, now: float) -> None:
        """A prompt is done with; 0 tokens when it was given up."""
        waiting, since = self._busy.pop(uid, (0, now))
        if waiting > 1:
            self._busy[uid] = (waiting - 1, now)
        elapsed_s = max(0.0, now - since)
        kept = math.exp(-elapsed_s / _MEMORY_S)
        self._seconds = self._seconds * kept + elapsed_s
        self._tokens = self._tokens * kept + tokens
        self._samples += tokens > 0

    def tokens_per_s(self) -> float | None:
        """None until enough prompts were seen."""
        if self._samples < _ENOUGH_SAMPLES or self._seconds <= 0:
            return None
        return self._tokens / self._seconds


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
