"""Season: what past days say about the next minutes, and when the law listens to it."""

import json
from dataclasses import replace
from math import nan, pi, sin

import pytest

from argosy_law.decide import decide
from argosy_law.estimate import season
from argosy_law.estimate.demand import Demand, DemandState, append_bins, estimate_demand
from argosy_law.estimate.season import (
    DAY_S,
    QUARTER_S,
    SeasonState,
    Tried,
)
from argosy_law.goals import Windows
from argosy_law.observe import Bin, Observations
from argosy_law.record import from_json, to_json
from argosy_law.signals.learning import sound
from argosy_law.state import ScalingState, restarted
from tests.scaling import known

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


def test_a_bin_that_comes_again_is_counted_once() -> None:
    bins = tuple(Bin(MIDNIGHT + 15.0 * (k + 1), 30.0) for k in range(4))
    once = season.counted(SeasonState(), bins, 15.0)
    assert season.counted(once, bins, 15.0) == once
    assert once.arrived == 120.0


@pytest.mark.parametrize(("bins", "rate"), [(29, None), (30, 2.0)])
def test_a_quarter_counts_if_half_of_it_was_counted(bins: int, rate: float | None) -> None:
    state = SeasonState()
    for k in range(bins):
        state = season.counted(state, (Bin(MIDNIGHT + 15.0 * (k + 1), 30.0),), 15.0)
    later = season.counted(state, (Bin(MIDNIGHT + 3 * QUARTER_S + 15.0, 30.0),), 15.0)
    assert later.rates == (rate, None, None)


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


def test_the_present_rate_is_that_of_the_middle_of_its_bins() -> None:
    climbing = repeated([10.0 + k for k in range(96)], 3)
    noon = MIDNIGHT + 48 * QUARTER_S
    demand = Demand(rate=50.0, error=1.0, forecast=51.0, margin=1.0, bins=120, dispersion=1.0)
    found = season.foretold(climbing, demand, 15.0, noon, noon + QUARTER_S)
    middle = 57.5 - 1.0  # 15 minutes ago
    assert found == pytest.approx(50.0 * 58.5 / middle)


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


def test_errors_are_forgotten_over_a_day() -> None:
    state = replace(scored(12.0, 10.0, 12.0, 1), pending=(Tried(MIDNIGHT + DAY_S, 12.0, 13.0),))
    counts = DemandState(end=MIDNIGHT + DAY_S, counts=(180.0,) * 8)
    after = season.scored(state, counts, WINDOWS)
    assert after.trend_error == pytest.approx(2.0 / 2.718281828)
    assert after.season_error == pytest.approx(1.0)
    assert after.pending == ()


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


def test_days_that_repeat_are_foretold_where_replicas_start_slowly() -> None:
    state, raised, rounds = lived(lambda at: 50 + 40 * sin(2 * pi * at / DAY_S), 3.5, 1800.0)
    assert state.trusted
    assert raised > rounds / 20


def test_days_that_do_not_repeat_are_not() -> None:
    """The load grows at another time on each day."""
    state, raised, _ = lived(lambda at: 50 + 40 * sin(2 * pi * at / (0.73 * DAY_S)), 3.5, 1800.0)
    assert not state.trusted
    assert raised == 0


def test_the_law_follows_a_season_that_it_trusts_and_no_other() -> None:
    climbing = [5.0] * 48 + [8.0] * 48
    noon = MIDNIGHT + 48 * QUARTER_S
    trusted = replace(
        repeated(climbing, 3),
        end=noon,
        counted_to=noon - 60,
        rates=(*climbing * 3, *climbing[:48]),
        tests=200.0,
        trend_error=2.0,
        season_error=1.0,
    )
    have = {"prefill": 2, "decode": 2}
    answers, named = [], []
    for days in (SeasonState(), trusted, replace(trusted, season_error=2.0)):
        seen = Observations(known.metrics(noon, 5.0, have), known.supply(have))
        _, decision = decide(ScalingState(season=days), seen, known.goals(), noon)
        answers.append(decision.numbers["forecast_per_s"])
        named.append("season_per_s" in decision.numbers)
    assert answers[0] == answers[2] < answers[1]
    assert answers[1] > 5.2
    assert named == [False, True, False]


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


@pytest.mark.parametrize(("later_s", "count"), [(7.5, 30.0), (7.51, 37.0)])
def test_a_bin_is_new_after_half_a_scrape(later_s: float, count: float) -> None:
    first = season.counted(SeasonState(), (Bin(MIDNIGHT + 30.0, 30.0),), 15.0)
    after = season.counted(first, (Bin(MIDNIGHT + 30.0 + later_s, 7.0),), 15.0)
    assert after.arrived == count
    assert after.counted_to == MIDNIGHT + (30.0 if count == 30.0 else 30.0 + later_s)


def test_a_bin_belongs_to_the_quarter_that_holds_its_middle() -> None:
    start = season.counted(SeasonState(), (Bin(MIDNIGHT + QUARTER_S, 900.0),), 900.0)
    assert (start.rates, start.end, start.arrived) == ((), MIDNIGHT, 900.0)
    before = season.counted(start, (Bin(MIDNIGHT + QUARTER_S + 449.0, 9.0),), 900.0)
    assert before == start, "half of a scrape has not passed"
    turned = season.counted(start, (Bin(MIDNIGHT + QUARTER_S + 451.0, 9.0),), 900.0)
    assert (turned.rates, turned.end, turned.arrived) == ((1.0,), MIDNIGHT + QUARTER_S, 9.0)
    assert turned.counted_s == 900.0


def test_a_rate_is_kept_with_four_digits() -> None:
    state = SeasonState(end=MIDNIGHT, arrived=1234.5678, counted_s=900.0)
    turned = season.counted(state, (Bin(MIDNIGHT + QUARTER_S + 15.0, 0.0),), 15.0)
    assert turned.rates == (1.372,)


def test_the_quarters_of_a_gap_are_not_known() -> None:
    state = SeasonState(end=MIDNIGHT, arrived=1800.0, counted_s=900.0)
    late = season.counted(state, (Bin(MIDNIGHT + 4 * QUARTER_S + 15.0, 0.0),), 15.0)
    assert late.rates == (2.0, None, None, None)
    assert late.end == MIDNIGHT + 4 * QUARTER_S


def test_the_rate_between_quarters_is_linear_and_ends_with_the_newest_middle() -> None:
    state = days_of(4.0, 8.0, None, 2.0, 6.0)
    first = MIDNIGHT - 4.5 * QUARTER_S
    assert season._rate(state, first) == 4.0
    assert season._rate(state, first + QUARTER_S / 4) == 5.0
    assert season._rate(state, first - 0.01) is None
    assert season._rate(state, first + QUARTER_S) is None, "the next quarter is not known"
    assert season._rate(state, first + 2 * QUARTER_S) is None
    assert season._rate(state, first + 3.5 * QUARTER_S) == 4.0
    assert season._rate(state, first + 4 * QUARTER_S) is None


def test_a_growth_from_nothing_is_none_and_the_least_of_days_is_two() -> None:
    day, middle = [2.0, 3.0] + [1.0] * 94, MIDNIGHT + QUARTER_S / 2
    assert season.growth(repeated(day, 2), middle, QUARTER_S) == 1.5
    assert season.growth(repeated([0.0, 3.0] + [1.0] * 94, 2), middle, QUARTER_S) is None


def test_without_past_days_nothing_is_foretold() -> None:
    demand = Demand(rate=50.0, error=1.0, forecast=51.0, margin=1.0, bins=4, dispersion=1.0)
    assert season.foretold(SeasonState(), demand, 15.0, MIDNIGHT, MIDNIGHT + 60) is None


def test_a_forecast_is_noted_every_five_minutes_and_never_below_the_trend() -> None:
    demand = Demand(rate=5.0, error=1.0, forecast=6.0, margin=1.0, bins=4, dispersion=1.0)
    first = season.noted(SeasonState(), demand, 9.0, MIDNIGHT)
    assert first.pending == (Tried(MIDNIGHT, 6.0, 9.0),)
    assert first.noted_at == MIDNIGHT
    assert season.noted(first, demand, 9.0, MIDNIGHT + 299.9) == first
    assert season.noted(first, demand, None, MIDNIGHT + 300.0) == first
    second = season.noted(first, demand, 4.0, MIDNIGHT + 300.0)
    assert second.pending[1:] == (Tried(MIDNIGHT + 300.0, 6.0, 6.0),)
    for k in range(2, 40):
        second = season.noted(second, demand, 9.0, MIDNIGHT + 300.0 * k)
    assert len(second.pending) == 32
    assert second.pending[-1].due == MIDNIGHT + 300.0 * 39


def test_a_forecast_waits_until_it_is_due_and_is_dropped_once_its_window_is_forgotten() -> None:
    forecasts = tuple(Tried(MIDNIGHT + late, 3.0, 4.0) for late in (-300.0, 0.0, 1.0))
    counts = DemandState(end=MIDNIGHT, counts=(60.0,) * 8)
    after = season.scored(SeasonState(pending=forecasts), counts, WINDOWS)
    assert after.pending == forecasts[2:]
    assert (after.trend_error, after.season_error, after.tests) == (1.0, 0.0, 1.0)
    assert after.tested_at == MIDNIGHT
    nothing = season.scored(SeasonState(pending=forecasts), DemandState(), WINDOWS)
    assert nothing.pending == forecasts


def test_a_test_from_before_the_newest_one_forgets_nothing() -> None:
    state = SeasonState(
        pending=(Tried(MIDNIGHT, 3.0, 5.0),),
        tested_at=MIDNIGHT + DAY_S,
        trend_error=2.0,
        season_error=3.0,
        tests=10.0,
    )
    after = season.scored(state, DemandState(end=MIDNIGHT, counts=(60.0,) * 8), WINDOWS)
    assert (after.trend_error, after.season_error, after.tests) == (3.0, 4.0, 11.0)


def test_every_number_of_a_season_is_checked() -> None:
    full = replace(days_of(1.0, None), pending=(Tried(MIDNIGHT, 1.0, 2.0),))
    assert sound(ScalingState(season=full))
    for name in ("end", "counted_to", "arrived", "counted_s", "trend_error", "season_error",
                 "tests", "tested_at", "noted_at"):  # fmt: skip
        assert not sound(ScalingState(season=replace(full, **{name: nan}))), name
    for name in ("due", "trend", "season"):
        tried = (replace(full.pending[0], **{name: nan}),)
        assert not sound(ScalingState(season=replace(full, pending=tried))), name
