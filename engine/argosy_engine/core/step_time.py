"""How long a step takes on this machine, and how many prompt tokens fit into one. Pure.

`Scheduler.update` reports each step. A step takes

    fixed + token · prompt tokens + sequence · decodes

and the three are fitted to the newest steps with prompts and to the newest without. Of each kind as
many are kept, so that a long time without prompts does not wipe out what one costs.

`--max-num-batched-tokens auto` asks for the prompt tokens of the next step. With a limit on TPOT
these are as many as keep the step within most of it. Without one they are the saturation length:
the prompt tokens from which on a longer step computes hardly more of them a second.
"""

from collections import deque
from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

STEP_SHARE = 0.8
"""Of a TPOT limit: a step with prompts may take as long. The rest is for what steps vary by."""
FIRST_TOKENS = 256
"""Prompt tokens of a step while nothing is known, and at least without a limit: each chunk reads
the KV of those before it again."""
_SATURATED = 9
"""At the saturation length the prompt tokens take so many times as long as what is fixed: nine
tenths of the highest rate."""
_STOP_S = 0.5
"""A reader sees that a stream stops for so long."""
_FAR_ABOVE = 4
"""So many times the saturation length."""
_SHORTEST_S = 1e-6
"""Steps that took less were not computed."""
_MEMORY = 64
"""Steps of each kind that the terms are fitted to."""
_ENOUGH = 4
"""Steps with prompts before the terms count as known."""
_EVERY = 8
"""Steps between two fits; one costs a tenth of a millisecond."""
_STALL = 2.0
"""A step that took so many times as long as the others say was stopped by something else."""

_Step = tuple[int, int, float]
"""Prompt tokens, decodes, seconds."""


class Terms(NamedTuple):
    """Of a step's time, in seconds; none is negative."""

    fixed_s: float
    token_s: float
    """One prompt token more."""
    sequence_s: float
    """One decode more."""

    def step_s(self, tokens: int, decodes: int) -> float:
        return self.fixed_s + self.token_s * tokens + self.sequence_s * decodes

    @property
    def saturation_tokens(self) -> int:
        """Prompt tokens at which a step without decodes computes 0.9 of the highest rate."""
        return max(1, ceil(_SATURATED * self.fixed_s / self.token_s))


def prompt_tokens(
    terms: Terms | None, *, decodes: int, limit_s: float, least: int, most: int
) -> int:
    """Prompt tokens of the next step beside so many decodes, from `least` to `most`.

    `limit_s` is on TPOT, 0 for none. It does not bound a step without decodes: nobody waits for a
    token there.
    """
    if terms is None:
        wanted = FIRST_TOKENS
    elif decodes and limit_s:
        wanted = int((STEP_SHARE * limit_s - terms.step_s(0, decodes)) / terms.token_s)
    else:
        wanted = max(FIRST_TOKENS, terms.saturation_tokens)
    return max(least, min(wanted, most))


def shorter_step(terms: Terms | None, tokens: int) -> int | None:
    """Prompt tokens that a step should have instead of so many; None if so many are fine.

    They are too many if such a step stops every stream for long, and computes hardly more prompt
    tokens a second than one of a quarter.
    """
    if terms is None:
        return None
    enough = max(FIRST_TOKENS, terms.saturation_tokens)
    stops = terms.step_s(tokens, 0) >= _STOP_S
    return enough if stops and tokens >= _FAR_ABOVE * enough else None


def longer_step(terms: Terms, tokens: int, limit_s: float) -> int | None:
    """Prompt tokens that a step should have instead of so many; None if so many are fine.

    They are too few below the saturation length, unless the limit on TPOT (0 for none) affords no
    more.
    """
    enough = terms.saturation_tokens
    if limit_s:
        enough = min(enough, int((STEP_SHARE * limit_s - terms.fixed_s) / terms.token_s))
    return enough if tokens < enough else None


class StepTime:
    """The terms of one engine, while it runs."""

    def __init__(self) -> None:
        self.terms: Terms | None = None
        """None while they are not known."""
        self._with_prompts: deque[_Step] = deque(maxlen=_MEMORY)
        self._without: deque[_Step] = deque(maxlen=_MEMORY)
        self._since_fit = 0

    @property
    def peak_rate(self) -> float:
        """Prompt tokens per second of the fastest of the newest steps with prompts; 0 if none."""
        steps = list(self._with_prompts)
        return max((tokens / s for tokens, _, s in steps if s > _SHORTEST_S), default=0.0)

    def observe(self, *, prompt_tokens: int, decodes: int, seconds: float) -> None:
        """A step took so long."""
        kept = self._with_prompts if prompt_tokens else self._without
        kept.append((prompt_tokens, decodes, seconds))
        self._since_fit += 1
        if self._since_fit < _EVERY and (self.terms is not None or not prompt_tokens):
            return
        if len(self._with_prompts) >= _ENOUGH:
            self._since_fit = 0
            self.terms = _fit([*self._with_prompts, *self._without]) or self.terms


def _fit(steps: list[_Step]) -> Terms | None:
    """The terms that explain these steps best, without those that were stopped; None if the
    steps do not tell."""
    first = _least_squares(steps)
    if first is None:
        return None
    smooth = [step for step in steps if step[2] <= _STALL * first.step_s(step[0], step[1])]
    return _least_squares(smooth) or first


def _least_squares(steps: Iterable[_Step]) -> Terms | None:
    """Each step's error counts in relation to its length, so that short ones count, too."""
    rows = [
        (1 / seconds, tokens / seconds, decodes / seconds)
        for tokens, decodes, seconds in steps
        if seconds > _SHORTEST_S
    ]
    for used in ((0, 1, 2), (0, 1), (1,)):
        solved = _solve(rows, used)
        if solved is not None and min(solved) >= 0 and solved[used.index(1)] > 0:
            terms = dict(zip(used, solved, strict=True))
            return Terms(terms.get(0, 0.0), terms[1], terms.get(2, 0.0))
    return None


def _solve(rows: list[tuple[float, float, float]], used: tuple[int, ...]) -> list[float] | None:
    """Coefficients of these columns whose sum comes closest to 1 in each row; None if ambiguous."""
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in used] + [sum(row[i] for row in rows)]
        for i in used
    ]
    size = len(used)
    for column in range(size):
        pivot = matrix[column][column]
        if pivot <= 1e-9 * sum(row[used[column]] ** 2 for row in rows):
            return None
        for below in range(column + 1, size):
            factor = matrix[below][column] / pivot
            for at in range(column, size + 1):
                matrix[below][at] -= factor * matrix[column][at]
    solved = [0.0] * size
    for column in reversed(range(size)):
        known = sum(matrix[column][at] * solved[at] for at in range(column + 1, size))
        solved[column] = (matrix[column][size] - known) / matrix[column][column]
    return solved
