"""Arrivals: how many requests per second to provide for.

Bins of one scrape interval come from `signals.samples`; the `Demand` goes to `decide`. The mean is
taken over the newest bins, back to the last significant change, so a step is seen in a few bins and
a steady night is averaged over all of them. A significant rise is followed until a new replica
would serve (`changes`). The margin comes from arrived/forecast over past forecasts (conformal
prediction): see `_measured`.
"""

from dataclasses import dataclass, replace
from math import ceil, inf, sqrt

from argosy_law.estimate import changes
from argosy_law.goals import Windows
from argosy_law.observe import Bin

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
    return replace(state, end=end, counts=tuple(counts[-REMEMBERED_BINS:]))


def margin(state: DemandState, rate: float, spread: float, windows: Windows) -> float:
    """Factor on the forecast, from over-dispersion at first and from past forecasts later.

    The queueing formula covers Poisson noise already, so only what goes beyond it counts here.
    """
    excess = (spread - 1) / max(rate * windows.rate_s, 1.0)
    prior = 1 + MARGIN_PER_EXCESS * sqrt(max(excess, 0.0))
    measured = _measured(state.residuals) if state.residuals else 1.0
    trust = min(len(state.residuals) / ENOUGH_RESIDUALS, 1.0)
    low, high = MARGIN_RANGE
    return min(max(trust * measured + (1 - trust) * prior, low), high)


def _measured(residuals: tuple[tuple[float, float], ...]) -> float:
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
    spread = changes.dispersion(counts)
    recent = changes.segment(counts, spread)
    mean = sum(recent) / len(recent)
    rate, error = mean / scrape_s, sqrt(spread * max(mean, 0.25) / len(recent)) / scrape_s
    errors = ERRORS_ADDED if len(recent) > 1 or len(counts) == 1 else ERRORS_OF_LEAP
    forecast, rose_at = rate + errors * error, state.rose_at
    if len(recent) < len(counts) and mean > counts[-len(recent) - 1]:
        rose_at = max(state.end - len(recent) * scrape_s, -inf if rose_at is None else rose_at)
    # The newest count is that of the middle of its bin.
    ahead = (now + horizon_s - state.end) / scrape_s + 0.5
    risen = changes.risen(counts, len(recent), ahead, RISE_LARGEST)
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
