"""A first token that is held leaves when its sequence joins a batch, or before its TTFT limit."""

import json
from dataclasses import replace
from math import inf, isnan
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_gateway.relay import attempt
from argosy_law.sim import cli, figures
from argosy_law.sim.world.machine import HELD_SHARE
from tests.sim.fleets import MACHINE, ROUND, played, setup, started, trace
from tests.sim.test_simulate import arguments

ROWS = st.lists(
    st.tuples(st.floats(0, 20), st.integers(1, 3000), st.integers(1, 300)), min_size=1, max_size=60
)


def test_it_leaves_when_the_kv_is_there_and_a_step_begins() -> None:
    of = setup(machine=MACHINE, held=True)
    world = played(of, trace([(1.0, 100, 2)]))
    assert world.first == [pytest.approx(1.2 + 0.1)]  # the prompt, then its KV
    assert world.last == [pytest.approx(1.3 + 0.01201)]


def test_it_leaves_at_the_edge_of_the_step_that_its_sequence_waits_for() -> None:
    rows = [(0.0, 100, 100), (0.105, 1, 2)]
    at_once, held = (
        played(setup(held=held_back), trace(rows), prefill=2) for held_back in (False, True)
    )
    assert at_once.last == held.last
    edge = 0.2 + 0.01201
    assert at_once.first == [pytest.approx(0.2), pytest.approx(0.206)]
    assert held.first == [pytest.approx(0.2), pytest.approx(edge)]


def test_it_is_held_for_no_longer_than_nine_tenths_of_the_limit() -> None:
    rows = [(0.0, 10, 60), (0.0, 10, 2)]  # a batch of one: the second waits for all of the first
    for ttft_s, first in ((0.5, 0.45), (0.1, 0.22), (10.0, 0.11 + 59 * 0.0114)):
        of = setup(sequences=1, ttft_s=ttft_s, held=True)
        world = played(of, trace(rows))
        assert world.first[1] == pytest.approx(first, rel=0.01)


def test_an_answer_of_one_token_is_not_held() -> None:
    world = played(setup(machine=MACHINE, held=True), trace([(0.0, 100, 1)]))
    assert world.first == world.last == [pytest.approx(0.2)]


def test_short_answers_keep_a_tpot_limit_that_they_miss_at_once() -> None:
    even = replace(ROUND, per_context_token_s=0.0)  # steps of 11 and 12 ms
    rows = [(0.0, 100, 2000), *[(1.0 + n / 7, 50, 2) for n in range(100)]]
    met = [
        figures.attainment(played(setup(even, tpot_s=0.014, held=held_back), trace(rows)), 1.0)
        for held_back in (False, True)
    ]
    assert met[0]["attainment_tpot"] < 0.5
    assert met[1]["attainment"] == met[1]["attainment_tpot"] == 1.0


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from(("fifo", "deadline")), st.sampled_from((0.3, 1.0, 30.0)))
def test_held_tokens_change_no_answers_end_and_no_ttft_verdict(
    rows: list[tuple[float, int, int]], order: str, ttft_s: float
) -> None:
    requests = trace(sorted(rows))
    at_once, held = (
        played(setup(machine=MACHINE, order=order, ttft_s=ttft_s, held=held_back), requests)
        for held_back in (False, True)
    )
    assert at_once.last == held.last
    for arrival, early, late, last in zip(
        requests.arrival, at_once.first, held.first, held.last, strict=True
    ):
        assert early <= late <= last
        assert late == early or late - arrival <= 0.9 * ttft_s + 1e-9
    met = [figures.attainment(world, 0.0) for world in (at_once, held)]
    assert met[0]["attainment_ttft"] == met[1]["attainment_ttft"]
    assert met[0]["attainment_tpot"] <= met[1]["attainment_tpot"]


def test_a_held_request_that_is_killed_counts_as_a_miss() -> None:
    rows = [(0.0, 10, 3000), (0.0, 10, 2)]
    of = setup(sequences=1, drain_s=2.0, ttft_s=100.0, held=True)
    world = started(of, trace(rows))
    world.advance(1.0)
    world.scale("decode", 0)
    world.advance(inf)
    assert world.killed == 2
    assert all(isnan(last) for last in world.last)
    assert world.sums.verdicts[False, False] == 2


def test_the_hindsight_figure_stays_that_of_tokens_at_once(tmp_path: Path) -> None:
    costs = []
    for when in ("at-once", "in-batch"):
        out = tmp_path / f"{when}.json"
        assert cli.main(arguments(out, first_token=when, order="fifo", scale="2")) == 0
        costs.append(json.loads(out.read_text()))
    assert costs[0]["gpu_hours_static"] == costs[1]["gpu_hours_static"]
    assert costs[0]["gpu_hours_static"] == costs[0]["gpu_hours_static_same_engine"]
    assert costs[1]["gpu_hours_static_same_engine"] <= costs[1]["gpu_hours_static"]
    assert costs[1]["attainment_tpot"] >= costs[0]["attainment_tpot"]


def test_it_is_held_for_as_long_as_the_gateway_lets_engines_hold_it():
    assert HELD_SHARE == attempt._HELD_SHARE
