"""Season: how the rate of this time of day went on, on past days.

`decide` counts the arrivals into quarters of an hour and keeps four days of them. The growth from
now to the time that is forecast is the median of what it was on past days; the present rate times
that growth is the seasonal forecast. It only ever raises a forecast, and only while doing so was
closer to what then arrived than the trend alone, over about a day. Times are seconds since the
epoch, rates requests per second.
"""

from dataclasses import dataclass, replace
from math import exp
from statistics import median

from argosy_law.estimate.demand import Demand, DemandState, arrived
from argosy_law.goals import Windows
from argosy_law.observe import Bin

DAY_S = 86_400.0
QUARTER_S = 900.0
DAYS = 4
"""Days that are kept: 384 numbers, about 3 kB."""
FEWEST_DAYS = 2
"""One day alone may have been a holiday."""
COUNTED = 0.5
"""Share of a quarter that must have been counted."""
LARGEST = 1.6
"""A season raises the rate at most by this factor, like a rise."""
TEST_EVERY_S = 300.0
ENOUGH_TESTS = 144
"""Half a day of tests, of the 288 of a day: fewer would try it on the quiet hours alone."""
MOST_PENDING = 32


@dataclass(frozen=True, slots=True)
class Tried:
    """Two forecasts for the same time, one without and one with the season."""

    due: float
    trend: float
    season: float


@dataclass(frozen=True, slots=True)
class SeasonState:
    """Arrivals of the last days, and how well they foretold the present ones."""

    rates: tuple[float | None, ...] = ()
    """Mean rate of each whole quarter of an hour, oldest first; None where it was not counted."""
    end: float = 0.0
    """End of the newest of them."""
    counted_to: float = 0.0
    """End of the newest bin that was counted."""
    arrived: float = 0.0
    """Requests in the quarter that is not over."""
    counted_s: float = 0.0
    """Seconds of it that were counted."""
    pending: tuple[Tried, ...] = ()
    trend_error: float = 0.0
    """Absolute errors of the trend's forecasts, forgotten over a day."""
    season_error: float = 0.0
    """The same of the forecasts that the season has raised."""
    tests: float = 0.0
    """Tests behind both errors, likewise forgotten."""
    tested_at: float = 0.0
    """When the newest of them was due."""
    noted_at: float = 0.0
    """What the newest forecast that was noted is about."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """All that must be finite and not negative."""
        errors = (self.trend_error, self.season_error, self.tests)
        times = (self.end, self.counted_to, self.counted_s, self.tested_at, self.noted_at)
        known = (rate for rate in self.rates if rate is not None)
        tried = (n for one in self.pending for n in (one.due, one.trend, one.season))
        return (*known, *tried, *errors, *times, self.arrived)

    @property
    def trusted(self) -> bool:
        """Whether the season has been closer than the trend for about a day."""
        return self.tests >= ENOUGH_TESTS and self.season_error < self.trend_error


def counted(state: SeasonState, bins: tuple[Bin, ...], scrape_s: float) -> SeasonState:
    """Add the bins that are new, each to the quarter that holds its middle.

    Where the clock of the samples went back, all begins anew: the times of the day are others.
    """
    if bins and bins[-1].end < state.end - QUARTER_S:
        state = SeasonState()
    for new in bins:
        if new.end <= state.counted_to + scrape_s / 2:
            continue
        state = _close_quarters(state, new.end - scrape_s / 2)
        state = replace(
            state,
            counted_to=new.end,
            arrived=state.arrived + new.count,
            counted_s=state.counted_s + scrape_s,
        )
    return state


def _close_quarters(state: SeasonState, at: float) -> SeasonState:
    """Close the quarters that are over at `at`; of a gap nothing is known."""
    begin = at // QUARTER_S * QUARTER_S
    if not state.rates and state.counted_s == 0.0:
        return replace(state, end=begin)
    over = round((begin - state.end) / QUARTER_S)
    if over <= 0:
        return state
    enough = state.counted_s >= COUNTED * QUARTER_S
    rate = float(f"{state.arrived / state.counted_s:.4g}") if enough else None
    most = round(DAYS * DAY_S / QUARTER_S)
    gap = (None,) * min(over - 1, most)
    rates = (*state.rates, rate, *gap)[-most:]
    return replace(state, rates=rates, end=begin, arrived=0.0, counted_s=0.0)


def growth(state: SeasonState, now: float, horizon_s: float) -> float | None:
    """How many times the present rate comes in `horizon_s` seconds, by past days; None: unknown."""
    ratios = []
    for day in range(1, DAYS + 1):
        before = _rate(state, now - day * DAY_S)
        after = _rate(state, now + horizon_s - day * DAY_S)
        if before is not None and after is not None and before > 0:
            ratios.append(after / before)
    return min(median(ratios), LARGEST) if len(ratios) >= FEWEST_DAYS else None


def _rate(state: SeasonState, at: float) -> float | None:
    """The rate at a time, linear between the middles of quarters; None where it is not known."""
    place = (at - state.end) / QUARTER_S - 0.5 + len(state.rates)
    index = int(place // 1)
    if not 0 <= index < len(state.rates) - 1:
        return None
    low, high = state.rates[index], state.rates[index + 1]
    if low is None or high is None:
        return None
    return low + (high - low) * (place - index)


def foretold(
    state: SeasonState, demand: Demand, scrape_s: float, now: float, due: float
) -> float | None:
    """Requests per second at `due`: the present rate, grown as on past days; None: unknown.

    The present rate is a mean, so it is that of the middle of its bins.
    """
    middle = now - demand.bins * scrape_s / 2
    grown = growth(state, middle, due - middle)
    return None if grown is None else demand.rate * grown


def noted(state: SeasonState, demand: Demand, season: float | None, due: float) -> SeasonState:
    """Remember both forecasts for `due`, to be compared with what will have arrived."""
    if season is None or due - state.noted_at < TEST_EVERY_S:
        return state
    one = Tried(due, demand.forecast, max(demand.forecast, season))
    return replace(state, pending=(*state.pending, one)[-MOST_PENDING:], noted_at=due)


def scored(state: SeasonState, counts: DemandState, windows: Windows) -> SeasonState:
    """Compare with what arrived those forecasts whose time has come."""
    pending = []
    for tried in state.pending:
        if counts.end is None or counts.end < tried.due:
            pending.append(tried)
            continue
        came = arrived(counts, tried.due, windows)
        if came is None:
            continue
        kept = exp(-max(tried.due - state.tested_at, 0.0) / DAY_S)
        state = replace(
            state,
            trend_error=state.trend_error * kept + abs(came - tried.trend),
            season_error=state.season_error * kept + abs(came - tried.season),
            tests=state.tests * kept + 1,
            tested_at=tried.due,
        )
    return replace(state, pending=tuple(pending))
