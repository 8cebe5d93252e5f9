"""Arrivals: how many requests per second to provide for.

Bins of one scrape interval come from `signals.samples`; the `Demand` goes to `decide`. The mean is
taken over the newest bins that do not differ significantly from those before them, so a step is
seen in a few bins and a steady night is averaged over all of them. The margin is the 0.6-quantile
of arrived/forecast over past forecasts (conformal prediction).
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, sqrt

from argosy_operator.core.scaling.goals import Windows
from argosy_operator.core.scaling.observe import Bin

REMEMBERED_BINS = 160
"""40 minutes at a scrape interval of 15 s."""
RECENT = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96)
"""Numbers of newest bins that are compared with the rest, shortest first."""
SIGNIFICANT = 3.3
"""Standard deviations; about a dozen correlated tests per bin, one false alarm in ~1000 bins."""
DISPERSION_RANGE = (1.0, 12.0)
"""Variance over mean of the counts: 1 is Poisson; above 12 a burst is load and not noise."""
ENOUGH_BINS_DISPERSION, ENOUGH_BINS_TREND = 8, 6
TREND_SIGNIFICANT = 6.0
"""Standard errors of the slope: a trend is extrapolated, so a false one costs more than a step."""
TREND_LARGEST = 0.6
"""A rise is extrapolated by at most this share of the present rate."""
ERRORS_ADDED = 0.6
"""Standard errors of the mean that are added to the forecast."""
PENDING = 64
"""Forecasts that are kept for scoring per horizon."""
RESIDUALS = 180
ENOUGH_RESIDUALS = 60
"""Scored forecasts after which the margin is the measured one alone."""
QUANTILE = 0.6
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

    @property
    def planned(self) -> float:
        """Requests per second to provide for."""
        return self.forecast * self.margin


NO_DEMAND = Demand(0.0, 0.0, 0.0, 1.0, 0, 1.0)


def append_bins(state: DemandState, bins: tuple[Bin, ...], scrape_s: float) -> DemandState:
    """Add the bins that are new. After a gap the older ones go: the rate across it is unknown."""
    end, counts = state.end, list(state.counts)
    for new in bins:
        if end is not None and new.end <= end + scrape_s / 2:
            continue
        if end is not None and new.end > end + 1.5 * scrape_s:
            counts = []
        counts.append(new.count)
        end = new.end
    return DemandState(end, tuple(counts[-REMEMBERED_BINS:]), state.pending, state.residuals)


def dispersion(counts: tuple[float, ...]) -> float:
    """Variance over mean of the counts, from successive differences, which a trend barely moves."""
    low, high = DISPERSION_RANGE
    if len(counts) < ENOUGH_BINS_DISPERSION:
        return low
    mean = sum(counts) / len(counts)
    if mean <= 0:
        return low
    squares = sum((a - b) ** 2 for a, b in pairwise(counts))
    measured = squares / (2 * (len(counts) - 1)) / mean
    # Only what is significantly above Poisson's 1 counts: its own noise would hide real steps.
    return min(max(measured - 2 * sqrt(2 / len(counts)), low), high)


def recent_bins(counts: tuple[float, ...], spread: float) -> tuple[float, ...]:
    """The newest bins, back to the last significant change of the rate.

    Compared on the square-root scale, where a Poisson count has a standard deviation of ½ at any
    mean. Small counts are skewed: a plain z-test would take three arrivals together for a burst.
    """
    for size in RECENT:
        rest = len(counts) - size
        if rest < size:
            break
        newest = sum(counts[-size:])
        expected = sum(counts[:-size]) * size / rest
        distance = 2 * (sqrt(newest + 0.375) - sqrt(expected + 0.375))
        if abs(distance) > SIGNIFICANT * sqrt(spread * (1 + size / rest)):
            return counts[-size:]
    return counts


def trend(counts: tuple[float, ...], spread: float) -> float:
    """Growth of the count from one bin to the next, by least squares; 0 unless significant."""
    size = len(counts)
    if size < ENOUGH_BINS_TREND:
        return 0.0
    middle, mean = (size - 1) / 2, sum(counts) / size
    squares = size * (size * size - 1) / 12
    slope = sum((i - middle) * (count - mean) for i, count in enumerate(counts)) / squares
    error = sqrt(spread * max(mean, 1e-9) / squares)
    return slope if abs(slope) > TREND_SIGNIFICANT * error else 0.0


def margin(state: DemandState, rate: float, spread: float, windows: Windows) -> float:
    """Factor on the forecast, from over-dispersion at first and from past forecasts later.

    The queueing formula covers Poisson noise already, so only what goes beyond it counts here.
    """
    excess = (spread - 1) / max(rate * windows.rate_s, 1.0)
    prior = 1 + MARGIN_PER_EXCESS * sqrt(max(excess, 0.0))
    total = sum(weight for _, weight in state.residuals)
    measured = 1.0
    if total > 0:
        below = 0.0
        for ratio, weight in sorted(state.residuals):
            below += weight
            if below >= QUANTILE * total:
                measured = ratio
                break
    trust = min(len(state.residuals) / ENOUGH_RESIDUALS, 1.0)
    low, high = MARGIN_RANGE
    return min(max(trust * measured + (1 - trust) * prior, low), high)


def estimate_demand(
    state: DemandState, windows: Windows, horizon_s: float, now: float
) -> tuple[DemandState, Demand]:
    """Demand at `now` + `horizon_s`, and the state with due forecasts scored and this one added."""
    if not state.counts:
        return state, NO_DEMAND
    scrape_s = windows.scrape_s
    spread = dispersion(state.counts)
    recent = recent_bins(state.counts, spread)
    mean = sum(recent) / len(recent)
    rate, error = mean / scrape_s, sqrt(spread * max(mean, 0.25) / len(recent)) / scrape_s
    slope = trend(recent, spread) / scrape_s
    newest = rate + slope * (len(recent) - 1) / 2
    ahead = slope * horizon_s / scrape_s
    # A falling trend is followed down to now and not beyond; a rising one for a bounded way.
    forecast = newest + (min(max(ahead, 0.0), TREND_LARGEST * rate) if slope > 0 else 0.0)
    forecast = max(forecast, 0.0) + ERRORS_ADDED * error
    scored = score(state, windows)
    pending = _appended(scored.pending, Forecast(now + horizon_s, forecast), horizon_s)
    after = DemandState(scored.end, scored.counts, pending, scored.residuals)
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
    size = max(1, ceil(windows.rate_s / windows.scrape_s - 1e-9))
    pending, residuals = [], list(state.residuals)
    for forecast in state.pending:
        late = round((state.end - forecast.due) / windows.scrape_s)
        if late < 0:
            pending.append(forecast)
            continue
        begin = len(state.counts) - late - size
        counts = state.counts[begin : begin + size]
        if begin >= 0 and forecast.rate > 0:
            arrived = sum(counts) / (size * windows.scrape_s)
            residuals.append((arrived / forecast.rate, forecast.rate * size * windows.scrape_s))
    return DemandState(state.end, state.counts, tuple(pending), tuple(residuals[-RESIDUALS:]))
