"""Season: what past days say about the next minutes, and when the law listens to it."""

import json
from dataclasses import replace
from math import nan, pi, sin

import pytest

from argosy_law.estimate import season
from argosy_law.estimate.demand import DemandState, append_bins, estimate_demand
from argosy_law.estimate.season import (
    DAY_S,
    QUARTER_S,
    SeasonState,
    Tried,
)
from argosy_law.goals import Windows
from argosy_law.observe import Bin
from argosy_law.record import from_json, to_json
from argosy_law.signals.learning import sound
from argosy_law.state import ScalingState, restarted

MIDNIGHT = 20_000 * DAY_S
WINDOWS = Windows()


def days_of(*rates: float | None) -> SeasonState:
    """These quarters have just ended, at midnight."""
    return SeasonState(rates=rates, end=MIDNIGHT, counted_to=MIDNIGHT)


def repeated(day: list[float], days: int) -> SeasonState:
    return days_of(*(day * days))


def test_arrivals_are_counted_into_quarters_of_an_hour() -> None:
    state = SeasonState()
    for k in range(121):  # half an hour and one bin
        rate = 4.0 if k < 60 else 10.0
        state = season.counted(state, (Bin(MIDNIGHT + 15.0 * (k + 1), 15 * rate),), 15.0)
    assert state.rates == (4.0, 10.0)
    assert state.end == MIDNIGHT + 2 * QUARTER_S
    assert (state.arrived, state.counted_s) == (150.0, 15.0)


def test_four_days_are_kept_however_long_the_gap() -> None:
    state = repeated([1.0] * 96, 4)
    state = season.counted(state, (Bin(MIDNIGHT + 15, 15.0),), 15.0)
    state = season.counted(state, (Bin(MIDNIGHT + 1000 * DAY_S, 15.0),), 15.0)
    assert state.rates == (None,) * 384


def test_where_the_clock_went_back_all_begins_anew() -> None:
    state = repeated([1.0] * 96, 4)
    kept = season.counted(state, (Bin(MIDNIGHT - QUARTER_S, 15.0),), 15.0)
    assert kept == state
    begun = season.counted(state, (Bin(MIDNIGHT - QUARTER_S - 1, 15.0),), 15.0)
    assert begun.rates == ()


def test_the_growth_is_the_median_of_past_days() -> None:
    one, two, three = ([1.0] * 48 + [factor] * 48 for factor in (1.2, 1.5, 1.1))
    state = days_of(*one, *two, *three)
    before = MIDNIGHT + 48 * QUARTER_S - QUARTER_S / 2  # the middle of the last quarter at 1.0
    assert season.growth(state, before, QUARTER_S) == pytest.approx(1.2)
    assert season.growth(state, before, QUARTER_S / 2) == pytest.approx(1.1)
    assert season.growth(state, before - QUARTER_S, QUARTER_S) == 1.0


def test_one_day_says_nothing_and_a_season_more_than_doubles_nothing() -> None:
    day = [1.0] * 48 + [9.0] * 48
    before = MIDNIGHT + 48 * QUARTER_S - QUARTER_S / 2
    assert season.growth(repeated(day, 1), before, QUARTER_S) is None
    assert season.growth(repeated(day, 2), before, QUARTER_S) == season.LARGEST
    assert season.growth(days_of(*day[:-1], None, *day), MIDNIGHT - 1, 1.0) is None
    assert season.growth(repeated([0.0] * 96, 3), before, QUARTER_S) is None


def scored(came: float, trend: float, raised: float, tests: int) -> SeasonState:
    counts = DemandState(end=MIDNIGHT, counts=(came * 15,) * 8)
    state = SeasonState(tested_at=MIDNIGHT)
    for _ in range(tests):
        state = replace(state, pending=(Tried(MIDNIGHT, trend, raised),))
        state = season.scored(state, counts, WINDOWS)
    return state


@pytest.mark.parametrize(
    ("came", "trend", "raised", "tests", "trusted"),
    [
        (12.0, 10.0, 12.0, 144, True),
        (12.0, 10.0, 12.0, 143, False),  # not for long enough
        (10.0, 10.0, 12.0, 144, False),
        (11.0, 10.0, 12.0, 144, False),  # equally wrong
    ],
)
def test_a_season_is_trusted_when_it_was_closer_for_half_a_day(
    came: float, trend: float, raised: float, tests: int, trusted: bool
) -> None:
    assert scored(came, trend, raised, tests).trusted is trusted


def lived(rate_at, days: float, horizon_s: float) -> tuple[SeasonState, int, int]:
    """(the season, rounds in which it raised the forecast, rounds) of a life without noise."""
    counts, state, raised, rounds = DemandState(), SeasonState(), 0, 0
    for k in range(int(days * DAY_S / 60)):
        now = MIDNIGHT + 60.0 * (k + 1)
        bins = (Bin(now, 60.0 * rate_at(now - 30.0)),)
        slow = Windows(scrape_s=60.0, rate_s=120.0, interval_s=60.0)
        counts, demand = estimate_demand(append_bins(counts, bins, 60.0), slow, horizon_s, now)
        state = season.scored(season.counted(state, bins, 60.0), counts, slow)
        found = season.foretold(state, demand, 60.0, now, now + horizon_s)
        state = season.noted(state, demand, found, now + horizon_s)
        raised += found is not None and state.trusted and found > demand.forecast
        rounds += 1
    return state, raised, rounds


@pytest.mark.long
@pytest.mark.slow
def test_days_that_repeat_are_foretold_where_replicas_start_slowly() -> None:
    state, raised, rounds = lived(lambda at: 50 + 40 * sin(2 * pi * at / DAY_S), 3.5, 1800.0)
    assert state.trusted
    assert raised > rounds / 20


@pytest.mark.long
@pytest.mark.slow
def test_days_that_do_not_repeat_are_not() -> None:
    """The load grows at another time on each day."""
    state, raised, _ = lived(lambda at: 50 + 40 * sin(2 * pi * at / (0.73 * DAY_S)), 3.5, 1800.0)
    assert not state.trusted
    assert raised == 0


def test_a_season_outlives_a_restart_in_few_bytes_and_a_corrupt_one_is_refused() -> None:
    pending = tuple(Tried(MIDNIGHT + k, 123.456, 234.567) for k in range(season.MOST_PENDING))
    full = replace(repeated([1234.0] * 95 + [None], 4), pending=pending)
    state = ScalingState(season=full)
    text = json.dumps(to_json(state), separators=(",", ":"))
    assert len(text) < 6 * 1024
    assert from_json(ScalingState, json.loads(text)) == state
    assert restarted(state).season.rates == full.rates
    assert sound(state)
    for bad in (nan, -1.0, 1e300):
        assert not sound(ScalingState(season=replace(full, rates=(bad,))))
        assert not sound(ScalingState(season=replace(full, season_error=bad)))


# --- exact values at the limits -------------------------------------------------------------------


def test_every_number_of_a_season_is_checked() -> None:
    full = replace(days_of(1.0, None), pending=(Tried(MIDNIGHT, 1.0, 2.0),))
    assert sound(ScalingState(season=full))
    for name in ("end", "counted_to", "arrived", "counted_s", "trend_error", "season_error",
                 "tests", "tested_at", "noted_at"):  # fmt: skip
        assert not sound(ScalingState(season=replace(full, **{name: nan}))), name
    for name in ("due", "trend", "season"):
        tried = (replace(full.pending[0], **{name: nan}),)
        assert not sound(ScalingState(season=replace(full, pending=tried))), name
