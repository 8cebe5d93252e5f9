"""Arrivals: how many requests per second to provide for.

Bins of one scrape come from `samples` in `observe.FleetMetrics`; the answer goes to `decide`.
The mean is taken over as much of the past as does not differ significantly from the newest bins,
so that a step is seen in a few bins and a steady night is averaged over all of them. The margin is
the 0.6-quantile of (what came / what was forecast), as conformal prediction takes it.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, sqrt

from argosy_operator.core.scaling.goals import Windows
from argosy_operator.core.scaling.observe import Bin

MEMORY = 160
"""Bins kept: 40 minutes at a scrape of 15 s."""
KEEP = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96)
SIGNIFICANT = 3.3
"""Standard deviations; about a dozen correlated tests per bin, one false alarm in ~1000 bins."""
TREND_SIGNIFICANT = 6.0
TREND_LARGEST = 0.6
ERRORS_ADDED = 0.6
PENDING = 64
"""Forecasts noted over one horizon."""
RESIDUALS = 180
ENOUGH_RESIDUALS = 60
QUANTILE = 0.6
MARGIN_RANGE = (0.8, 1.5)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast made before: `rate` for the rate window that ends at `due`."""

    due: float
    rate: float


@dataclass(frozen=True, slots=True)
class DemandState:
    """`counts` per scrape interval, oldest first, the newest ending at `end` (None: none yet)."""

    end: float | None = None
    counts: tuple[float, ...] = ()
    pending: tuple[Forecast, ...] = ()
    residuals: tuple[tuple[float, float], ...] = ()
    """(actual / forecast, weight = forecast requests), oldest first."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests per second: measured mean, its standard error, forecast, and what to provide for."""

    rate: float
    error: float
    forecast: float
    margin: float
    bins: int
    dispersion: float

    @property
    def planned(self) -> float:
        return self.forecast * self.margin


NO_DEMAND = Demand(0.0, 0.0, 0.0, 1.0, 0, 1.0)


def remember(state: DemandState, bins: tuple[Bin, ...], scrape_s: float) -> DemandState:
    """Append the bins that are new. A gap forgets what was before it: rates over it are unknown."""
    end, counts = state.end, list(state.counts)
    for new in bins:
        if end is not None and new.end <= end + scrape_s / 2:
            continue
        if end is not None and new.end > end + 1.5 * scrape_s:
            counts = []
        counts.append(new.count)
        end = new.end
    return DemandState(end, tuple(counts[-MEMORY:]), state.pending, state.residuals)


def dispersion(counts: tuple[float, ...]) -> float:
    """Variance over mean from successive differences (blind to trend), clamped to 1..12."""
    if len(counts) < 8:
        return 1.0
    mean = sum(counts) / len(counts)
    if mean <= 0:
        return 1.0
    squares = sum((a - b) ** 2 for a, b in pairwise(counts))
    measured = squares / (2 * (len(counts) - 1)) / mean
    # Only what is significantly more than Poisson's 1: its own noise would hide real steps.
    return min(max(measured - 2 * sqrt(2 / len(counts)), 1.0), 12.0)


def kept(counts: tuple[float, ...], spread: float) -> tuple[float, ...]:
    """The newest bins up to the last significant change of the rate.

    Compared on the square-root scale, where a Poisson count has σ ½ at any mean: small counts are
    skewed, and a plain z-test would take every cluster of three arrivals for a burst.
    """
    for k in KEEP:
        rest = len(counts) - k
        if rest < k:
            break
        newest = sum(counts[-k:])
        expected = sum(counts[:-k]) * k / rest
        distance = 2 * (sqrt(newest + 0.375) - sqrt(expected + 0.375))
        if abs(distance) > SIGNIFICANT * sqrt(spread * (1 + k / rest)):
            return counts[-k:]
    return counts


def trend(counts: tuple[float, ...], spread: float) -> float:
    """Growth of the count per bin, from one bin to the next; 0 unless significant."""
    n = len(counts)
    if n < 6:
        return 0.0
    middle, mean = (n - 1) / 2, sum(counts) / n
    sxx = n * (n * n - 1) / 12
    slope = sum((i - middle) * (c - mean) for i, c in enumerate(counts)) / sxx
    error = sqrt(spread * max(mean, 1e-9) / sxx)
    return slope if abs(slope) > TREND_SIGNIFICANT * error else 0.0


def margin(state: DemandState, rate: float, spread: float, windows: Windows) -> float:
    """Factor on the forecast. The Poisson part is in the queue's formula already: only
    over-dispersion enters the prior, which fades as residuals come in."""
    excess = (spread - 1) / max(rate * windows.rate_s, 1.0)
    prior = 1 + 1.3 * sqrt(max(excess, 0.0))
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


def estimate(
    state: DemandState, windows: Windows, horizon_s: float, now: float
) -> tuple[DemandState, Demand]:
    """Demand at `now` + horizon, and the state with this forecast noted and due ones scored."""
    if not state.counts:
        return state, NO_DEMAND
    scrape = windows.scrape_s
    spread = dispersion(state.counts)
    window = kept(state.counts, spread)
    mean = sum(window) / len(window)
    rate, error = mean / scrape, sqrt(spread * max(mean, 0.25) / len(window)) / scrape
    slope = trend(window, spread) / scrape
    newest = rate + slope * (len(window) - 1) / 2
    ahead = slope * horizon_s / scrape
    # A falling trend is followed down to now, never beyond; a rising one for a bounded way.
    forecast = newest + (min(max(ahead, 0.0), TREND_LARGEST * rate) if slope > 0 else 0.0)
    forecast = max(forecast, 0.0) + ERRORS_ADDED * error
    scored = score(state, windows)
    noted = DemandState(
        scored.end,
        scored.counts,
        _noted(scored.pending, Forecast(now + horizon_s, forecast), horizon_s),
        scored.residuals,
    )
    factor = margin(noted, rate, spread, windows)
    return noted, Demand(rate, error, forecast, factor, len(window), spread)


def _noted(pending: tuple[Forecast, ...], new: Forecast, horizon_s: float) -> tuple[Forecast, ...]:
    """The forecasts that wait for their scoring, with the new one unless there are enough: the
    state goes to status, and with a slow start and quick decisions they would fill it."""
    if pending and 0 <= new.due - pending[-1].due < horizon_s / PENDING:
        return pending
    return (*pending, new)[-2 * PENDING :]


def score(state: DemandState, windows: Windows) -> DemandState:
    """Turn forecasts whose window is over into residuals."""
    if state.end is None:
        return state
    n = max(1, ceil(windows.rate_s / windows.scrape_s - 1e-9))
    pending, residuals = [], list(state.residuals)
    for forecast in state.pending:
        late = round((state.end - forecast.due) / windows.scrape_s)
        if late < 0:
            pending.append(forecast)
            continue
        begin = len(state.counts) - late - n
        counts = state.counts[begin : begin + n]
        if begin >= 0 and forecast.rate > 0:
            actual = sum(counts) / (n * windows.scrape_s)
            residuals.append((actual / forecast.rate, forecast.rate * n * windows.scrape_s))
    return DemandState(state.end, state.counts, tuple(pending), tuple(residuals[-RESIDUALS:]))
