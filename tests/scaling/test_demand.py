"""Counts of requests become a forecast and its margin: exact values, and where limits are."""

from math import exp, sqrt
from random import Random

import pytest

from argosy_law.estimate import demand
from argosy_law.estimate.demand import Demand, DemandState, Forecast
from argosy_law.goals import Windows
from argosy_law.observe import Bin

WINDOWS = Windows(scrape_s=2.0, rate_s=10.0)
"""Five bins of two seconds in a rate window."""


def counted(counts: list[float]) -> DemandState:
    """So many requests in each bin; the first bin ends after two seconds."""
    bins = tuple(Bin(2.0 * (i + 1), count) for i, count in enumerate(counts))
    return demand.append_bins(DemandState(), bins, 2.0)


@pytest.mark.parametrize(
    ("later_s", "counts"),
    [(1.0, (5.0, 5.0)), (1.01, (5.0, 5.0, 1.0)), (3.0, (5.0, 5.0, 1.0)), (3.01, (1.0,))],
)
def test_a_bin_is_new_after_half_a_scrape_and_a_gap_is_one_and_a_half(
    later_s: float, counts: tuple[float, ...]
) -> None:
    before = counted([5.0, 5.0])
    after = demand.append_bins(before, (Bin(4.0 + later_s, 1.0),), 2.0)
    assert after.counts == counts
    assert after.end == (4.0 if len(counts) == 2 else 4.0 + later_s)


def test_without_a_bin_there_is_no_demand() -> None:
    assert demand.estimate_demand(DemandState(), WINDOWS, 9.0, 0.0) == (
        DemandState(),
        Demand(0.0, 0.0, 0.0, 1.0, 0, 1.0),
    )


@pytest.mark.parametrize(("count", "rate", "variance"), [(8.0, 4.0, 8.0), (0.0, 0.0, 0.25)])
def test_the_error_of_a_steady_rate_is_that_of_its_mean(
    count: float, rate: float, variance: float
) -> None:
    """A mean of fifty Poisson counts; of no request a quarter of one is taken for the variance."""
    state = counted([count] * 50)
    after, found = demand.estimate_demand(state, WINDOWS, 20.0, 101.0)
    assert (found.rate, found.bins, found.dispersion, found.season) == (rate, 50, 1.0, None)
    assert found.error == pytest.approx(sqrt(variance / 50) / 2)
    assert found.forecast == pytest.approx(rate + 0.6 * found.error)
    assert found.planned == found.forecast * found.margin
    assert after.pending == (Forecast(121.0, found.forecast),)


def test_a_ramp_is_followed_to_when_a_replica_would_serve() -> None:
    """The newest count is that of the middle of its bin, half a bin before `end`."""
    ramp = [100.0] * 40 + [100.0 + 8.0 * k for k in range(1, 13)]
    state = counted(ramp)
    _, found = demand.estimate_demand(state, WINDOWS, 10.0, 106.0)
    ahead = (106.0 + 10.0 - 104.0) / 2.0 + 0.5
    risen = demand.extrapolate_rise(tuple(ramp), ahead, 1.6)
    assert risen > ramp[-1]
    assert found.forecast == risen / 2.0
    assert demand.estimate_demand(state, WINDOWS, 10.0, 106.0)[0].rose_at == 104.0
    _, sooner = demand.estimate_demand(state, WINDOWS, 6.0, 106.0)
    assert sooner.forecast < found.forecast


def wavering(seed: int, minutes: int) -> list[float]:
    """Ten requests a second, whose rate is another one in each minute: by a quarter, as a standard
    deviation of its logarithm. Four bins of 15 s to a minute, and Poisson's noise in each."""
    rng = Random(seed)
    rates = [150 * exp(rng.gauss(-0.03, 0.25)) for _ in range(minutes) for _ in range(4)]
    return [float(max(round(rng.gauss(rate, sqrt(rate))), 0)) for rate in rates]


def level(counts: list[float]) -> float:
    """Requests in a bin that the newest ones are taken for."""
    bins = tuple(counts)
    recent = demand.segment(bins, demand.noise(bins, demand.dispersion(bins)))
    return sum(recent) / len(recent)


def test_a_minute_is_noise_where_every_minute_has_another_rate() -> None:
    """Over 40 loads the level is within an eighth of the true one for three in four."""
    errors = sorted(abs(level(wavering(seed, 40)) / 150 - 1) for seed in range(40))
    assert errors[30] < 0.125


@pytest.mark.parametrize("seed", range(20))
def test_among_such_minutes_twice_the_load_is_known_in_the_second_of_them(seed: int) -> None:
    counts = wavering(seed, 40)
    assert level(counts[:-8] + [2 * count for count in counts[-8:]]) > 1.5 * level(counts[:-8])


def test_a_few_bins_show_no_noise_of_minutes() -> None:
    assert demand.noise((150.0,) * 12, 1.0) == 1.0


# --- the margin -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "spread", "factor"),
    [
        (2.0, 1.8, 1 + 1.3 * 0.2),  # √(0.8/20)
        (0.05, 1.04, 1 + 1.3 * 0.2),  # fewer than one request in the window count as one
        (2.0, 1.0, 1.0),
        (2.0, 0.5, 1.0),
        (2.0, 12.0, 1.5),
    ],
)
def test_before_a_forecast_was_scored_the_margin_is_what_exceeds_poisson(
    rate: float, spread: float, factor: float
) -> None:
    assert demand.margin(DemandState(), rate, spread, WINDOWS) == pytest.approx(factor)


def scored(*residuals: tuple[float, float]) -> float:
    return demand.margin(DemandState(residuals=residuals), 2.0, 1.0, WINDOWS)


def test_the_margin_is_the_quantile_of_what_arrived_by_the_weight_of_the_forecasts() -> None:
    """Of sixty, three fifths of the weight are reached with the 36th."""
    alike = [(0.8 + 0.001 * n, 1.0) for n in range(60)]
    assert scored(*alike[::-1]) == pytest.approx(0.835)
    heavy = [(1.2, 1.0)] * 30 + [(0.9, 2.0)] * 30
    assert scored(*heavy) == pytest.approx(0.9)
    assert scored(*[(1.2, 4.0)] * 30, *[(0.9, 2.0)] * 30) == pytest.approx(1.2)


def test_where_forecasts_err_unevenly_the_lower_quantile_is_enough() -> None:
    """Two fifths are reached with the 24th."""
    wide = [(0.8 + 0.01 * n, 1.0) for n in range(60)]
    assert scored(*wide) == pytest.approx(1.03)
    just = [(0.9, 1.0)] * 30 + [(0.951, 1.0)] * 30
    assert scored(*just) == pytest.approx(0.9)
    less = [(0.9, 1.0)] * 30 + [(0.949, 1.0)] * 30
    assert scored(*less) == pytest.approx(0.949)


def test_the_margin_has_ends_and_forecasts_without_requests_say_nothing() -> None:
    assert scored(*[(9.0, 1.0)] * 60) == 1.5
    assert scored(*[(0.1, 1.0)] * 60) == 0.8
    assert scored(*[(0.5, 0.0)] * 60) == 1.0


# --- scores ---------------------------------------------------------------------------------------


def test_a_forecast_is_scored_by_the_rate_window_that_ended_when_it_was_due() -> None:
    """Five bins of two seconds: 1 + 2 + 3 + 4 + 5 requests in ten seconds."""
    state = counted([1.0, 2.0, 3.0, 4.0, 5.0, 60.0])
    due = DemandState(state.end, state.counts, pending=(Forecast(10.0, 3.0),))
    after = demand.score(due, WINDOWS)
    assert after.pending == ()
    assert after.residuals == ((0.5, 30.0),)
    assert demand.arrived(state, 12.0, WINDOWS) == 74.0 / 10.0
    assert demand.arrived(state, 8.0, WINDOWS) is None


@pytest.mark.parametrize(
    ("due", "rate", "waits", "scored"),
    [
        (12.9, 3.0, False, 1),  # less than half a bin ahead
        (13.1, 3.0, True, 0),
        (8.0, 3.0, False, 0),  # its window is forgotten
        (12.0, 0.0, False, 0),
    ],
)
def test_a_forecast_waits_until_its_window_is_over_and_is_forgotten_with_it(
    due: float, rate: float, waits: bool, scored: int
) -> None:
    state = counted([1.0, 2.0, 3.0, 4.0, 5.0, 60.0])
    forecast = Forecast(due, rate)
    after = demand.score(DemandState(state.end, state.counts, pending=(forecast,)), WINDOWS)
    assert after.pending == ((forecast,) if waits else ())
    assert len(after.residuals) == scored


@pytest.mark.parametrize(("due", "kept"), [(100.99, False), (101.0, True), (99.0, True)])
def test_of_a_horizon_at_most_64_forecasts_are_kept(due: float, kept: bool) -> None:
    """With a horizon of 64 s one a second; one that is due earlier follows a clock set back."""
    before = (Forecast(100.0, 1.0),)
    after = demand._appended(before, Forecast(due, 2.0), 64.0)
    assert after == ((*before, Forecast(due, 2.0)) if kept else before)


# --- lines ----------------------------------------------------------------------------------------
