"""Arrivals: how many requests per second to provide for.

Bins of one scrape interval come from `signals.samples`; the `Demand` goes to `decide`. The mean is
taken over the newest bins, back to the last significant change, so a step is seen in a few bins and
a steady night is averaged over all of them. A significant rise is followed until a new replica
would serve (`find_rise`). The margin comes from arrived/forecast over past forecasts (conformal
prediction): see `_measure_margin`.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import ceil, exp, inf, sqrt
from statistics import median
from typing import TypeVar

from argosy_law.goals import Windows
from argosy_law.observe import Answered, Bin, RoleName

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
MEDIAN_ERROR = 2.33
"""Standard error of a variance that is measured by that median, relative, times the square root of
how many squares there are: 1/(2·f(m)·m) with the density f = 0.471 at the median m."""
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
    bins, total = len(counts), sum(counts)
    most, found = SIGNIFICANT * sqrt(spread), None
    for size, newest in enumerate(accumulate(reversed(counts[FEWEST:])), 1):
        # `_distance`, written out: a decision asks for it more than a thousand times.
        older = bins - size
        expected = max(total - newest, 0.0) * size / older
        distance = abs(sqrt(newest + 0.375) - sqrt(expected + 0.375)) * 2 * sqrt(older / bins)
        if distance > most and size >= FEWEST:
            most, found = distance, size
    return found


def wander(counts: tuple[float, ...], spread: float) -> float:
    """Variance over mean at the time scale of a rise; at least `spread`.

    Bursts that last for minutes make slopes that single bins do not explain. The median of squared
    differences is taken, so that a ramp or step in a part of the memory does not count as noise.
    """
    size = WANDER_BINS
    if len(counts) < size * ENOUGH_SUMS:
        return spread
    sums = [sum(counts[end - size : end]) for end in range(size, len(counts) + 1)]
    pairs = zip(sums[size:], sums, strict=False)  # neighbours that share no bin
    squares = [(a - b) ** 2 / max(a + b, 1.0) for a, b in pairs]
    return max(spread, median(squares) / CHI_SQUARED_MEDIAN)


def noise(counts: tuple[float, ...], spread: float) -> float:
    """Variance over mean that a change of the level must stand out from; at least `spread`.

    That of minutes counts where it is significantly more than that of single bins: a minute that is
    over before a replica serves is noise. Above `DISPERSION_RANGE` it is load.
    """
    differences = max(len(counts) / WANDER_BINS - 1, 1.0)
    by_chance = 2 * MEDIAN_ERROR / sqrt(differences) * spread
    return min(max(wander(counts, spread) - by_chance, spread), DISPERSION_RANGE[1])


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


def find_rise(counts: tuple[float, ...]) -> Rise | None:
    """The rise that the newest bins are in; None if there is none that is significant.

    Least squares over the fewest bins that show it. The line must fit as well as its noise allows,
    and about as well as a step to the newest segment; and no line over fewer bins may say that the
    rise is over.
    """
    spread, shorter = dispersion(counts), list[tuple[float, float]]()
    of_minutes = wander(counts, spread)
    for size in RISE_BINS:
        if size > len(counts):
            return None
        slope, error, missed, misfit = _line(counts[-size:], of_minutes)
        if slope > RISE_SIGNIFICANT * error:
            mean = sum(counts[-size:]) / size
            if slope > RISE_STEEPEST * mean:
                return None
            since = len(segment(counts, noise(counts, spread)))
            step = _misses(counts[-size:-since]) + _misses(counts[-min(since, size) :])
            fits = misfit <= size - 2 + RISE_FITS * sqrt(2 * (size - 2))
            goes_on = all(slope - one <= RISE_AGREES * of for one, of in shorter)
            if fits and goes_on and missed <= STEP_FITS * step:
                return Rise(mean + slope * (size - 1) / 2, slope / mean)
        shorter.append((slope, error))
    return None


def extrapolate_rise(counts: tuple[float, ...], bins: float, most: float) -> float:
    """The count that a rise reaches so many bins after the newest; 0 while there is none.

    The rise must have been there a bin before, and the lower of both counts: of false alarms most
    last for a single bin, and a replica that one has added stays for a whole hold.
    """
    now = find_rise(counts)
    if now is None:
        return 0.0
    before = find_rise(counts[:-1])
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


REMEMBERED_BINS = 160
"""40 minutes at a scrape interval of 15 s."""
RISE_LARGEST = 1.6
"""A rise is extrapolated to at most this many times the newest rate."""
ERRORS_ADDED = 0.6
"""Standard errors of the mean that are added to the forecast."""
ERRORS_OF_LEAP = -1.0
"""The same for one bin that leaps up: it was chosen because it is high."""
PENDING = 64
"""Forecasts that are kept for scoring per horizon."""
RESIDUALS = 180
ENOUGH_RESIDUALS = 60
"""Scored forecasts after which the margin is the measured one alone."""
QUANTILE = 0.6
LOWER_QUANTILE = 0.4
"""Where most errors of forecasts are bursts that end before a replica serves."""
UNEVEN = 0.05
"""Least difference of these two quantiles that is more than the noise of a steady load."""
SHORT = 0.25
"""Share of the requests that may come beyond the plan where the lower quantile is used. Replicas
that are held serve most of them."""
MARGIN_PER_EXCESS = 1.3
"""Prior margin per relative standard deviation beyond Poisson's.

Dispersion 3 at 10 requests/s over 60 s: √((3 − 1)/600) = 0.058, so the margin is 1 + 1.3 · 0.058 =
1.075. At 0.5 requests/s it is √(2/30) = 0.258, so 1.34.
"""
MARGIN_RANGE = (0.8, 1.5)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast that was made before."""

    due: float
    """End of the rate window that it is about, seconds since the epoch."""
    rate: float
    """Requests per second."""


@dataclass(frozen=True, slots=True)
class DemandState:
    """Past arrivals and forecasts."""

    end: float | None = None
    """End of the newest bin, seconds since the epoch; None: no bin yet."""
    counts: tuple[float, ...] = ()
    """Requests per scrape interval, oldest first."""
    pending: tuple[Forecast, ...] = ()
    """Forecasts whose window is not over yet."""
    residuals: tuple[tuple[float, float], ...] = ()
    """(arrived / forecast, weight = forecast requests), oldest first."""
    rose_at: float | None = None
    """When the rate last rose, seconds since the epoch; None: not since the start."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What arrives and what to provide for, in requests per second."""

    rate: float
    """Measured mean."""
    error: float
    """Standard error of `rate`."""
    forecast: float
    """Expected when a new replica would serve, without the margin."""
    margin: float
    """Factor on the forecast."""
    bins: int
    """Bins that the mean is taken over."""
    dispersion: float
    """Variance over mean of the counts."""
    season: float | None = None
    """The forecast by past days, where it counts instead of a lower one."""
    longer_prompts: float = 1.0
    """By what factor prompts will be longer then than in the sizes (`estimate.longer`)."""
    longer_answers: float = 1.0
    """The same of answers."""

    def longer(self, role: RoleName) -> float:
        """By what factor a request will be more work for the role."""
        own = {"prefill": self.longer_prompts, "decode": self.longer_answers}
        return own.get(role, max(own.values()))

    @property
    def planned(self) -> float:
        """Requests per second to provide for."""
        return self.forecast * self.margin


NO_DEMAND = Demand(0.0, 0.0, 0.0, 1.0, 0, 1.0)


def append_bins(state: DemandState, bins: tuple[Bin, ...], scrape_s: float) -> DemandState:
    """Add the bins that are new. After a gap the older ones go: the rate across it is unknown."""
    new, gap = newer(state.end, bins, scrape_s)
    if not new:
        return state
    before = () if gap else state.counts
    counts = (*before, *(one.count for one in new))[-REMEMBERED_BINS:]
    return replace(state, end=new[-1].end, counts=counts)


Interval = TypeVar("Interval", Bin, Answered)


def newer(
    end: float | None, intervals: tuple[Interval, ...], scrape_s: float
) -> tuple[tuple[Interval, ...], bool]:
    """Return the intervals that follow `end` without a gap between them, and whether there is a gap
    before them: what is older is not to be used then."""
    new, gap = list[Interval](), False
    for one in intervals:
        if end is not None and one.end <= end + scrape_s / 2:
            continue
        if end is not None and one.end > end + 1.5 * scrape_s:
            new, gap = [], True
        new.append(one)
        end = one.end
    return tuple(new), gap


def margin(state: DemandState, rate: float, spread: float, windows: Windows) -> float:
    """Factor on the forecast, from over-dispersion at first and from past forecasts later.

    The queueing formula covers Poisson noise already, so only what goes beyond it counts here.
    """
    excess = (spread - 1) / max(rate * windows.rate_s, 1.0)
    prior = 1 + MARGIN_PER_EXCESS * sqrt(max(excess, 0.0))
    measured = _measure_margin(state.residuals) if state.residuals else 1.0
    trust = min(len(state.residuals) / ENOUGH_RESIDUALS, 1.0)
    low, high = MARGIN_RANGE
    return min(max(trust * measured + (1 - trust) * prior, low), high)


def _measure_margin(residuals: tuple[tuple[float, float], ...]) -> float:
    """The margin by (arrived / forecast, weight).

    The upper quantile of forecasts was enough. Where the errors are uneven, less is: the lower
    quantile, if it leaves at most `SHORT` of the requests beyond the plan. A load whose rare bursts
    bring a large part of its requests keeps the upper one.
    """
    rows = sorted(residuals)
    upper, lower = _quantile(rows, QUANTILE), _quantile(rows, LOWER_QUANTILE)
    if upper - lower < UNEVEN:
        return upper
    return min(upper, max(lower, _least(rows, SHORT)))


def _quantile(rows: list[tuple[float, float]], share: float) -> float:
    """The weighted quantile of sorted rows."""
    total, below = sum(weight for _, weight in rows), 0.0
    for ratio, weight in rows:
        below += weight
        if total > 0 and below >= share * total:
            return ratio
    return 1.0


def _least(rows: list[tuple[float, float]], short: float) -> float:
    """The least margin with which the share `short` of the requests comes beyond the plan:
    Σ weight·max(ratio − margin, 0) = short · Σ weight·ratio. Of sorted rows."""
    left = short * sum(weight * ratio for ratio, weight in rows)
    margin_, above = rows[-1][0], 0.0
    for ratio, weight in reversed(rows):
        if (margin_ - ratio) * above >= left:
            break
        left -= (margin_ - ratio) * above
        margin_, above = ratio, above + weight
    return margin_ - left / above if above > 0 else margin_


def estimate_demand(
    state: DemandState, windows: Windows, horizon_s: float, now: float
) -> tuple[DemandState, Demand]:
    """Demand at `now` + `horizon_s`, and the state with due forecasts scored and this one added."""
    if state.end is None or not state.counts:
        return state, NO_DEMAND
    scrape_s, counts = windows.scrape_s, state.counts
    spread = dispersion(counts)
    recent = segment(counts, noise(counts, spread))
    mean = sum(recent) / len(recent)
    rate, error = mean / scrape_s, sqrt(spread * max(mean, 0.25) / len(recent)) / scrape_s
    errors = ERRORS_ADDED if len(recent) > 1 or len(counts) == 1 else ERRORS_OF_LEAP
    forecast, rose_at = rate + errors * error, state.rose_at
    if len(recent) < len(counts) and mean > counts[-len(recent) - 1]:
        rose_at = max(state.end - len(recent) * scrape_s, -inf if rose_at is None else rose_at)
    # The newest count is that of the middle of its bin.
    ahead = (now + horizon_s - state.end) / scrape_s + 0.5
    risen = extrapolate_rise(counts, ahead, RISE_LARGEST)
    if risen > 0:
        forecast, rose_at = max(forecast, risen / scrape_s), state.end
    scored = score(state, windows)
    pending = _appended(scored.pending, Forecast(now + horizon_s, forecast), horizon_s)
    after = replace(scored, pending=pending, rose_at=rose_at)
    factor = margin(after, rate, spread, windows)
    return after, Demand(rate, error, forecast, factor, len(recent), spread)


def _appended(
    pending: tuple[Forecast, ...], new: Forecast, horizon_s: float
) -> tuple[Forecast, ...]:
    """Add a forecast, at most `PENDING` per horizon: a slow start and short intervals would
    otherwise fill the state."""
    if pending and 0 <= new.due - pending[-1].due < horizon_s / PENDING:
        return pending
    return (*pending, new)[-2 * PENDING :]


def score(state: DemandState, windows: Windows) -> DemandState:
    """Turn forecasts whose window is over into residuals."""
    if state.end is None:
        return state
    span_s = _bins_of_rate(windows) * windows.scrape_s
    pending, residuals = [], list(state.residuals)
    for forecast in state.pending:
        if round((state.end - forecast.due) / windows.scrape_s) < 0:
            pending.append(forecast)
            continue
        rate = arrived(state, forecast.due, windows)
        if rate is not None and forecast.rate > 0:
            residuals.append((rate / forecast.rate, forecast.rate * span_s))
    return replace(state, pending=tuple(pending), residuals=tuple(residuals[-RESIDUALS:]))


def arrived(state: DemandState, due: float, windows: Windows) -> float | None:
    """Requests per second over the rate window that ended at `due`; None if it is forgotten."""
    size = _bins_of_rate(windows)
    late = 0 if state.end is None else round((state.end - due) / windows.scrape_s)
    begin = len(state.counts) - late - size
    counts = state.counts[begin : begin + size]
    return sum(counts) / (size * windows.scrape_s) if begin >= 0 else None


def _bins_of_rate(windows: Windows) -> int:
    return max(1, ceil(windows.rate_s / windows.scrape_s - 1e-9))


def raised(state: DemandState, demand: Demand, rate: float) -> tuple[DemandState, Demand]:
    """A higher forecast in place of the one that was just made, which is scored instead of it."""
    pending = state.pending
    if pending and pending[-1].rate == demand.forecast:
        pending = (*pending[:-1], replace(pending[-1], rate=rate))
    return replace(state, pending=pending), replace(demand, forecast=rate, season=rate)
