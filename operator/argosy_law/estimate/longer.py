"""Requests that become longer: by how much, until a replica that is added now would serve.

Lengths are those of answered requests, and means over minutes: where prompts or answers grow, they
are behind by that and by a cold start. Work per request is therefore followed like the rate of
arrivals (`estimate.demand.find_rise`), by its mean in each scrape interval. What a fleet that is
too small leaves unanswered does not move a mean, as it would move a sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from argosy_law.estimate.demand import (
    REMEMBERED_BINS,
    RISE_LARGEST,
    Demand,
    extrapolate_rise,
    newer,
)
from argosy_law.goals import Windows
from argosy_law.observe import Answered
from argosy_law.size.work import Work

LEAST_VARIANCE = 0.04
"""Of lengths, over E[L]²: that of lengths which differ by a fifth. More equal ones prove no more.
"""
FEWEST = 1.0
"""Requests of an interval whose mean is used; the one before stands for it otherwise."""


@dataclass(frozen=True, slots=True)
class AnsweredState:
    """What was answered in the newest scrape intervals."""

    end: float | None = None
    """End of the newest interval, seconds since the epoch; None: none yet."""
    rows: tuple[tuple[float, float, float], ...] = ()
    """(requests, tokens of their prompts, tokens of their answers), oldest first."""


def append_answered(
    state: AnsweredState, new: tuple[Answered, ...], scrape_s: float
) -> AnsweredState:
    """Add the intervals that are new. After a gap the older ones go."""
    new, gap = newer(state.end, new, scrape_s)
    if not new:
        return state
    before = () if gap else state.rows
    rows = ((round(one.requests, 1), round(one.prompts), round(one.answers)) for one in new)
    return AnsweredState(new[-1].end, (*before, *rows)[-REMEMBERED_BINS:])


def with_growth(
    demand: Demand, answered: AnsweredState, work: Work, windows: Windows, due: float
) -> Demand:
    """The demand with the growth of requests until `due`, over what `work` says of them."""
    if answered.end is None:
        return demand
    requests, prompts, answers = zip(*answered.rows, strict=True)
    squared = sum(tokens**2 * share for tokens, share in work.answer_spread)
    ahead_s = due - answered.end
    return replace(
        demand,
        longer_prompts=growth(
            prompts, requests, work.prompt, work.prompt_squared, windows, ahead_s
        ),
        longer_answers=growth(answers, requests, work.output, squared, windows, ahead_s),
    )


def growth(
    tokens: Sequence[float],
    requests: Sequence[float],
    mean: float,
    squared: float,
    windows: Windows,
    ahead_s: float,
) -> float:
    """By what factor requests will be longer than `mean` tokens, `ahead_s` after the last interval.

    1 while no rise is significant. `tokens` and `requests` are of one kind and of each interval,
    `squared` is the second moment of the lengths. With the variance V, a mean of n lengths varies
    like a Poisson count of n·E[L]²/V: so the rise is looked for in such counts.
    """
    if mean < 1 or sum(requests) < len(requests) or not requests:
        return 1.0
    variance = max(squared - mean**2, LEAST_VARIANCE * mean**2)
    typical = sum(requests) / len(requests) * mean / variance
    counts, length = list[float](), mean
    for total, number in zip(tokens, requests, strict=True):
        length = total / number if number >= FEWEST else length
        counts.append(length * typical)
    risen = extrapolate_rise(tuple(counts), ahead_s / windows.scrape_s + 0.5, RISE_LARGEST)
    return max(risen / (mean * typical), 1.0)
