"""Search for the limits of an engine that serve most, by measuring. The measuring is an argument.

One limit after the other is varied while the others stay at the best that is known, until a pass
changes nothing. Each repeat has the same requests under all limits, so what is compared are the
differences of repeats. Limits are better only if the interval of the difference does not hold 0.
Of limits that are as good as each other the smaller ones are chosen.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import expm1, inf, log, sqrt
from statistics import mean, stdev
from typing import Literal

PASSES = 3
CLOSE = 0.02
"""Share of the throughput below which a difference within noise does not matter."""
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Of a two-sided interval of 95 %, with 1, 2, … degrees of freedom."""
_LARGEST = 700.0
"""Logarithm that a double still holds."""
MOST_REPEATS = len(_STUDENT) + 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What is tuned."""

    max_num_seqs: int
    max_num_batched_tokens: int | Literal["auto"]
    capacity_policy: str = ""
    """Empty: the engine's own stays."""

    @property
    def size(self) -> tuple[float, float]:
        """What makes limits smaller than others; auto is as large as a step can be."""
        tokens = self.max_num_batched_tokens
        return self.max_num_seqs, inf if tokens == "auto" else tokens


@dataclass(frozen=True, slots=True)
class Sample:
    """What one repeat of the workload came to."""

    tokens_per_s: float
    """Of answers."""
    requests_per_s: float
    ttft_s: float
    itl_s: float
    """Both are medians over requests."""
    attainment: float = 1.0
    """Share of the requests with a whole answer within the limits of TTFT and TPOT."""


Outcome = tuple[Sample, ...]
"""A sample for each repeat; empty: the engine does not run with these limits."""
Measure = Callable[[Limits], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one outcome is from another, as a share, with its interval of 95 %."""

    mean: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether it is larger than noise."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to."""

    before: Limits
    after: Limits
    outcomes: Mapping[Limits, Outcome]
    """Of all limits that were measured."""


def differ(new: Sequence[float], old: Sequence[float]) -> Difference:
    """Compare the repeats of two outcomes, each with its own, by the ratios of positive values."""
    mid, half = _interval([log(a / b) for a, b in zip(new, old, strict=True)])
    return Difference(expm1(mid), expm1(mid - half), expm1(min(mid + half, _LARGEST)))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its interval; infinite for a single value."""
    if len(values) < 2:
        return mean(values), inf
    return mean(values), _STUDENT[len(values) - 2] * stdev(values) / sqrt(len(values))


def meets(outcome: Outcome, goal: float) -> bool:
    """Whether the share of requests within the limits is at least the goal."""
    return bool(outcome) and mean(one.attainment for one in outcome) >= goal


def compare(new: Outcome, old: Outcome, goal: float) -> Difference:
    """Compare what counts: throughput if both meet the goal, otherwise attainment.

    Limits with which the engine does not run are worse than others.
    """
    if not new or not old:
        share = float(bool(new)) - float(bool(old))
        return Difference(share, share, share)
    if meets(new, goal) and meets(old, goal):
        return differ([one.tokens_per_s for one in new], [one.tokens_per_s for one in old])
    pairs = zip(new, old, strict=True)
    mid, half = _interval([a.attainment - b.attainment for a, b in pairs])
    return Difference(mid, mid - half, mid + half)


async def search(
    measure: Measure, start: Limits, axes: Mapping[str, Sequence[int | str]], goal: float = 0.0
) -> Found:
    """Vary the limits named by `axes` over their values, from `start`, which is measured first.

    Several steps that noise made may add up: what is found is compared with the start once more.
    """
    known = {start: await measure(start)}
    best = start
    for _ in range(PASSES):
        before = best
        for axis, values in axes.items():
            # replace() takes the names of fields as words.
            row = [replace(best, **{axis: value}) for value in values]  # type: ignore[arg-type]
            for limits in row:
                if limits not in known:
                    known[limits] = await measure(limits)
            best = _choose(best, row, known, goal)
        if best == before:
            break
    good = _is_better(known[best], known[start], goal) or _is_as_good(best, start, known, goal)
    return Found(start, best if good else start, known)


def _choose(
    best: Limits, row: Sequence[Limits], known: Mapping[Limits, Outcome], goal: float
) -> Limits:
    """Return the best of a row, and the smallest of those that are as good as it."""
    better = [one for one in row if _is_better(known[one], known[best], goal)]
    best = max(better, key=lambda one: _value(known[one], goal), default=best)
    for limits in sorted(row, key=lambda one: one.size):
        if _is_as_good(limits, best, known, goal):
            return limits
    return best


def _is_as_good(limits: Limits, best: Limits, known: Mapping[Limits, Outcome], goal: float) -> bool:
    """Whether they are smaller, and the difference is within noise and does not matter."""
    new, old = known[limits], known[best]
    difference = compare(new, old, goal)
    close = not difference.sure and abs(difference.mean) <= CLOSE
    return limits.size < best.size and close and meets(new, goal) >= meets(old, goal)


def _is_better(new: Outcome, old: Outcome, goal: float) -> bool:
    difference = compare(new, old, goal)
    return difference.mean > 0 and difference.sure


def _value(outcome: Outcome, goal: float) -> tuple[bool, float]:
    kept = meets(outcome, goal)
    return kept, mean(one.tokens_per_s if kept else one.attainment for one in outcome)
