"""A law sees of the simulated fleet what Prometheus would have of a real one, and no more."""

from dataclasses import replace
from itertools import pairwise

import pytest

from argosy_law.goals import Windows
from argosy_law.observe import Value
from argosy_law.signals import samples
from argosy_law.signals.samples import assemble
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import Asks
from argosy_law.sim.world.scrape import Scraper
from argosy_operator.adapters.prometheus import queries
from tests.sim.fleets import MACHINE, poisson, setup, started

WINDOWS = Windows()
START = 1000.0


def scraped(until: float, *, seed: int = 0) -> tuple[Scraper, World]:
    """Two pods of each role under 2 requests per second."""
    of = setup(machine=MACHINE, seed=seed, ttft_s=0.5)
    world = started(of, poisson(2.0, 5000, 100, 20), prefill=2, decode=2)
    scraper = Scraper(world, WINDOWS, START)
    while world.now < until:
        scraper.advance(world.now + WINDOWS.interval_s)
    return scraper, world


def test_the_series_are_those_that_the_operator_asks_for() -> None:
    scraper, _ = scraped(60.0)
    asked = {*queries.GATEWAY_SERIES, *queries.ENGINE_LONG_SERIES, *queries.ENGINE_SERIES}
    asked -= {samples.MISSES}  # causes are for status: no law reads them
    assert {one.name for one in scraper.round().series} == asked


def test_every_target_is_scraped_at_moments_of_its_own() -> None:
    scraper, _ = scraped(300.0)
    moments = {}
    for one in scraper.round().series:
        times = [at for at, _ in one.samples]
        assert all(b - a == pytest.approx(15.0) for a, b in pairwise(times))
        moments[one.labels["pod"]] = round(times[-1] % 15.0, 6)
    assert len(set(moments.values())) == len(moments) == 5
    again, other = scraped(300.0)[0], scraped(300.0, seed=1)[0]
    assert again.round() == scraper.round() != other.round()


def test_the_assembled_signals_are_those_of_the_traffic() -> None:
    scraper, world = scraped(600.0)
    metrics = assemble(scraper.round(), WINDOWS)

    def value(signal: object) -> float:
        assert isinstance(signal, Value)
        return signal.value

    assert value(metrics.arrivals) == pytest.approx(2.0, rel=0.25)  # over a minute of Poisson
    assert value(metrics.prompt_tokens) == pytest.approx(100)
    assert value(metrics.prompt_tokens_squared) == pytest.approx(10_000)
    assert value(metrics.output_tokens) == pytest.approx(20)
    assert 0.1 <= value(metrics.kv_transfer_s) < 0.13
    assert value(metrics.role("decode").kv_capacity_tokens) == 10_000
    assert metrics.role("prefill").pods_reporting == metrics.role("decode").pods_reporting == 2
    assert value(metrics.attainment) == pytest.approx(
        world.sums.verdicts[True, True] / world.ended, abs=0.05
    )
    steps = metrics.role("decode").steps
    assert all(row.prefill_tokens == row.prefill_requests == 0 for row in steps)
    prompts = metrics.role("prefill").steps
    assert all(row.decode_sequences == row.context_tokens == 0 for row in prompts)
    assert all(row.prefill_tokens == 100 * row.prefill_requests for row in prompts)
    seconds = sum(row.seconds for row in steps)
    profile = world.setup.replica.profile
    assert seconds == pytest.approx(
        profile.decode_base_s * sum(row.steps for row in steps)
        + profile.per_sequence_s * sum(row.decode_sequences for row in steps)
        + profile.per_context_token_s * sum(row.context_tokens for row in steps)
    )


def test_so_many_scrapes_are_lost_and_no_counter_is_wrong_by_it() -> None:
    of = setup(machine=MACHINE, scrape_loss=0.3)
    world = started(of, poisson(2.0, 5000, 100, 20), prefill=2, decode=2)
    scraper, down = Scraper(world, WINDOWS, START), 0
    while world.now < 1500.0:
        scraper.advance(world.now + WINDOWS.interval_s)
        down += scraper.round().gateways_up == 0
    taken = [len(one.samples) for one in scraper.round().series if one.name == samples.RECEIVED]
    span = scraper.long_s / WINDOWS.scrape_s
    assert sum(taken) == pytest.approx(0.7 * span, rel=0.25)
    assert down == pytest.approx(0.3 * 100, rel=0.4)  # as `up` says after a failed scrape
    metrics = assemble(scraper.round(), WINDOWS)
    assert isinstance(metrics.prompt_tokens, Value)
    assert metrics.prompt_tokens.value == pytest.approx(100)


def test_a_gateway_that_is_asked_shows_what_arrived_until_now() -> None:
    of = setup(machine=MACHINE)
    taken: dict[str, list[tuple[float, float]]] = {}
    asked: tuple[Asks, ...] = ("no", "outage", "yes")
    for asks in asked:
        world = started(replace(of, ask_gateways=asks), poisson(5.0, 2000, 100, 20), 2, 2)
        scraper = Scraper(world, WINDOWS, START)
        scraper.advance(307.0)
        (received,) = (one for one in scraper.round().series if one.name == samples.RECEIVED)
        taken[asks] = list(received.samples)
        arrived = world.arrived
    assert taken["yes"] == [*taken["no"], (START + 307.0, arrived)]
    assert taken["no"][-1][0] < START + 307.0
    assert taken["outage"] == taken["no"]


def test_nothing_is_scraped_or_answered_in_an_outage() -> None:
    of = setup(machine=MACHINE, outage=(100.0, 220.0))
    world = started(of, poisson(2.0, 5000, 100, 20), prefill=2, decode=2)
    scraper = Scraper(world, WINDOWS, START)
    answers = {}
    while world.now < 400.0:
        scraper.advance(world.now + WINDOWS.interval_s)
        answers[world.now] = scraper.answers
    assert [at for at, there in answers.items() if not there] == [
        105.0, 120.0, 135.0, 150.0, 165.0, 180.0, 195.0, 210.0
    ]  # fmt: skip
    times = [at - START for one in scraper.round().series for at, _ in one.samples]
    assert not any(100.0 <= at < 220.0 for at in times)
    assert any(85.0 < at < 100.0 for at in times)
    assert any(220.0 <= at < 235.0 for at in times)


def test_a_pod_is_scraped_from_its_first_ready_moment_until_it_is_gone() -> None:
    world = started(setup(cold_s=40.0), poisson(1.0, 500, 100, 2))
    scraper = Scraper(world, WINDOWS, START)
    scraper.advance(15.0)
    world.scale("decode", 2)  # ready at 55
    while world.now < 120.0:
        scraper.advance(world.now + 15.0)
    world.scale("decode", 1)
    scraper.advance(150.0)
    leaving = world.pods["decode"][1]
    times = [
        at - START
        for one in scraper.round().series
        if one.labels["pod"] == leaving.name and one.name == f"{samples.TRANSFERS}_count"
        for at, _ in one.samples
    ]
    assert 55.0 <= times[0] < 70.0
    assert times[-1] < leaving.gone_at < 150.0
