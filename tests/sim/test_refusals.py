"""Requests that wait in the gateway for too long are sent away, as the product does it."""

from dataclasses import replace
from math import inf, isnan
from typing import Literal

import pytest

from argosy_law.goals import Windows
from argosy_law.signals import samples
from argosy_law.sim import figures
from argosy_law.sim.world.scrape import Scraper
from tests.sim.fleets import played, poisson, setup, started, trace


def test_who_has_waited_for_the_timeout_is_refused_then_and_not_earlier() -> None:
    of = setup(order="deadline", cold_s=60.0, queue_timeout_s=5.0)
    world = started(of, trace([(1.0, 100, 2), (2.0, 300, 2), (59.0, 50, 2)]), prefill=0)
    world.scale("prefill", 1)
    world.advance(5.99)
    assert (world.refused, world.waiting_tokens) == (0, 400)
    world.advance(6.0)
    assert (world.refused, world.waiting_tokens) == (1, 300)
    world.advance(7.0)
    assert (world.refused, world.waiting_tokens) == (2, 0)
    world.advance(inf)
    assert world.finished
    assert [isnan(last) for last in world.last] == [True, True, False]
    assert world.first[2] == pytest.approx(60.15)
    assert world.sums.verdicts[False, False] == 2
    assert figures.attainment(world, 0.0)["attainment"] == 0.0


def test_of_a_long_overload_each_is_answered_or_refused_and_none_waits_longer() -> None:
    requests = poisson(8.0, 2000, 400, 2)
    world = played(setup(order="deadline", queue_timeout_s=4.0), requests)
    assert world.refused + sum(not isnan(last) for last in world.last) == len(requests)
    assert world.ended == len(requests)
    assert world.refused > 800
    waited = max(
        first - arrival
        for first, arrival in zip(world.first, requests.arrival, strict=True)
        if not isnan(first) and arrival > 30.0  # the pace of the pod is known by then
    )
    assert waited <= 4.0 + 2.0  # in the queue, and behind what its pod has
    assert world.waiting_tokens == 0


@pytest.mark.parametrize("order", ["fifo", "deadline"])
def test_as_many_requests_as_the_gateway_takes_are_in_flight_and_no_more(
    order: Literal["fifo", "deadline"],
) -> None:
    # each takes 0.2 s and four steps of 11 ms; the third comes while two are there
    rows = [(0.0, 100, 5), (0.1, 100, 5), (0.2, 100, 5), (0.5, 100, 5), (9.0, 100, 5)]
    world = played(replace(setup(order=order), max_in_flight=2), trace(rows))
    assert [isnan(last) for last in world.last] == [False, False, True, False, False]
    assert (world.refused, world.ended) == (1, 5)
    assert world.sums.verdicts[False, False] == 1
    assert played(replace(setup(order=order), max_in_flight=3), trace(rows)).refused == 0


def test_the_law_sees_refused_requests_as_arrivals_and_misses_without_lengths() -> None:
    of = setup(order="deadline", cold_s=60.0, queue_timeout_s=5.0)
    world = started(of, trace([(1.0, 100, 2), (2.0, 300, 2)]), prefill=0)
    scraper = Scraper(world, Windows(), 0.0)
    scraper.advance(45.0)
    newest = {
        (one.name, one.labels.get("ttft"), one.labels.get("tpot")): one.samples[-1][1]
        for one in scraper.round().series
    }
    assert newest[samples.RECEIVED, None, None] == 2
    assert newest[samples.VERDICTS, "miss", "miss"] == 2
    assert newest[f"{samples.PROMPTS}_count", None, None] == 0
    assert newest[samples.WAITING, None, None] == 0
