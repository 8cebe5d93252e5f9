"""What a series of counts tells about a rate: its noise, its last change, and whether it rises.

`demand` calls these with requests per scrape interval, oldest first. Everything is measured in
bins, so that no duration is fixed here.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import exp, sqrt
from statistics import median

DISPERSION_RANGE = (1.0, 12.0)
"""Variance over mean of the counts: 1 is Poisson; above 12 a burst is load and not noise."""
ENOUGH_BINS = 8
"""Bins from which a dispersion is measured."""
FEWEST = 2
"""Bins of the shortest segment, unless one bin alone is far above those before it."""
LEAP = 5.0
"""Standard deviations by which one bin is that: a step of the load is known a scrape earlier."""
SIGNIFICANT = 3.5
"""Standard deviations of a change of level. Of a steady Poisson rate, the largest of all splits of
160 bins is above 3.2 in about one of twenty series."""
WANDER_BINS = 4
"""Bins of one sum when slow noise is measured: the shortest rise spans as many."""
ENOUGH_SUMS = 4
CHI_SQUARED_MEDIAN = 0.4549
"""Median of the square of a standard normal number."""
RISE_BINS = (4, 5, 6, 8, 10, 12, 16)
"""Numbers of newest bins in which a rise is looked for, shortest first."""
RISE_SIGNIFICANT = 4.0
"""Standard errors of the slope: a rise is extrapolated, so a false one costs more than a step."""
RISE_FITS = 2.5
"""Standard deviations of χ² by which a line may miss the counts: a step is no line."""
RISE_AGREES = 2.0
"""Standard errors by which a rise over more bins may be steeper than one over fewer: it is over
if the newest bins do not go on."""

RISE_STEEPEST = 0.12
"""Largest growth from one bin to the next. More is a step, and nothing says that it goes on: with
bins of 15 s this is a rise by half in a minute."""

STEP_FITS = 1.25
"""By what share the line may miss the counts by more than a step does. A short ramp in noise looks
like both, and to overlook it costs more than to follow a step too far."""


def dispersion(counts: tuple[float, ...]) -> float:
    """Variance over mean of the counts, from successive differences, which a trend barely moves."""
    low, high = DISPERSION_RANGE
    if len(counts) < ENOUGH_BINS:
        return low
    mean = sum(counts) / len(counts)
    if mean <= 0:
        return low
    squares = sum((a - b) ** 2 for a, b in pairwise(counts))
    measured = squares / (2 * (len(counts) - 1)) / mean
    # Only what is significantly above Poisson's 1 counts: its own noise would hide real steps.
    return min(max(measured - 2 * sqrt(2 / len(counts)), low), high)


def segment(counts: tuple[float, ...], spread: float) -> tuple[float, ...]:
    """The newest bins, back to the last significant change of the rate.

    Binary segmentation: the split where both sides differ most is a change if it is significant;
    then the newer side is searched. The newest bin alone counts if it leaps up. Compared on the
    square-root scale, where a Poisson count has a standard deviation of ½ at any mean: a plain
    z-test would take three arrivals together for a burst.
    """
    before = _homogeneous(counts[:-1], spread)
    if len(before) >= FEWEST:
        leap = _distance(counts[-1], sum(before), 1 / len(before))
        if leap > LEAP * sqrt(spread):
            return counts[-1:]
    return _homogeneous(counts, spread)


def _homogeneous(counts: tuple[float, ...], spread: float) -> tuple[float, ...]:
    """The newest bins in which no split is significant."""
    while (size := _split(counts, spread)) is not None:
        counts = counts[-size:]
    return counts


def _distance(newest: float, older: float, ratio: float) -> float:
    """Newest less older counts in standard deviations; `ratio` is that of their bins."""
    expected = max(older, 0.0) * ratio
    return 2 * (sqrt(newest + 0.375) - sqrt(expected + 0.375)) / sqrt(1 + ratio)


def _split(counts: tuple[float, ...], spread: float) -> int | None:
    """Bins of the newer side of the most significant split; None if no split is significant."""
    total, newest = sum(counts), 0.0
    most, found = SIGNIFICANT * sqrt(spread), None
    for size in range(1, len(counts) - FEWEST + 1):
        newest += counts[-size]
        if size >= FEWEST:
            distance = abs(_distance(newest, total - newest, size / (len(counts) - size)))
            if distance > most:
                most, found = distance, size
    return found


def wander(counts: tuple[float, ...], spread: float) -> float:
    """Variance over mean at the time scale of a rise; at least `spread`.

    Bursts that last for minutes make slopes that single bins do not explain. The median of squared
    differences is taken, so that a ramp or step in a part of the memory does not count as noise.
    """
    size = WANDER_BINS
    sums = [
        sum(counts[end - size : end]) for end in range(len(counts), size - 1, -size)
    ]  # newest first
    if len(sums) < ENOUGH_SUMS:
        return spread
    squares = [(a - b) ** 2 / max(a + b, 1.0) for a, b in pairwise(sums)]
    return max(spread, median(squares) / CHI_SQUARED_MEDIAN)


@dataclass(frozen=True, slots=True)
class Rise:
    """A line through the newest bins that goes up."""

    newest: float
    """Count of the newest bin on the line."""
    growth: float
    """Share by which the count grows from one bin to the next."""

    def ahead(self, bins: float, most: float) -> float:
        """The count so many bins later, at most `most` times the newest."""
        return self.newest * min(exp(min(self.growth * bins, 100.0)), most)


def rise(counts: tuple[float, ...], noise: float, since: int) -> Rise | None:
    """The rise that the newest bins are in; None if there is none that is significant.

    Least squares over the fewest bins that show it. The line must fit as well as its noise allows,
    and about as well as a step to the newest `since` bins; and no line over fewer bins may say that
    the rise is over.
    """
    shorter: list[tuple[float, float]] = []
    for size in RISE_BINS:
        if size > len(counts):
            return None
        slope, error, missed, misfit = _line(counts[-size:], noise)
        step = _misses(counts[-size:-since]) + _misses(counts[-min(since, size) :])
        fits = misfit <= size - 2 + RISE_FITS * sqrt(2 * (size - 2)) and missed <= STEP_FITS * step
        goes_on = all(slope - one <= RISE_AGREES * of for one, of in shorter)
        significant, mean = slope > RISE_SIGNIFICANT * error, sum(counts[-size:]) / size
        if significant and slope > RISE_STEEPEST * mean:
            return None
        if significant and fits and goes_on:
            return Rise(mean + slope * (size - 1) / 2, slope / mean)
        shorter.append((slope, error))
    return None


def risen(counts: tuple[float, ...], since: int, bins: float, most: float) -> float:
    """The count that a rise reaches so many bins after the newest; 0 while there is none.

    `since`: bins in the newest segment.
    The rise must have been there a bin before, and the lower of both counts: of false alarms most
    last for a single bin, and a replica that one has added stays for a whole hold.
    """
    now = rise(counts, wander(counts, dispersion(counts)), since)
    if now is None:
        return 0.0
    older = counts[:-1]
    spread = dispersion(older)
    before = rise(older, wander(older, spread), len(segment(older, spread)))
    return min(now.ahead(bins, most), before.ahead(bins + 1, most)) if before else 0.0


def _misses(counts: tuple[float, ...]) -> float:
    """Squared misses of the mean."""
    mean = sum(counts) / max(len(counts), 1)
    return sum((count - mean) ** 2 for count in counts)


def _line(counts: tuple[float, ...], noise: float) -> tuple[float, float, float, float]:
    """(slope, its standard error, squared misses, and those in units of their variance)."""
    size = len(counts)
    middle, mean = (size - 1) / 2, sum(counts) / size
    squares = size * (size * size - 1) / 12
    slope = sum((i - middle) * (count - mean) for i, count in enumerate(counts)) / squares
    variance = noise * max(mean, 0.25)
    missed = sum((c - mean - slope * (i - middle)) ** 2 for i, c in enumerate(counts))
    return slope, sqrt(variance / squares), missed, missed / variance
