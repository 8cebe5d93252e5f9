"""A first token that is held leaves when its sequence joins a batch, or before its TTFT limit."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law import explain
from argosy_law.decision import Decision
from argosy_law.goals import FirstToken, Goals, Serving
from argosy_law.observe import Observations
from argosy_law.sim import figures
from argosy_law.sim.replay import EPOCH, replay
from tests.scaling import known
from tests.sim.fleets import MACHINE, ROUND, played, setup, trace

ROWS = st.lists(
    st.tuples(st.floats(0, 20), st.integers(1, 3000), st.integers(1, 300)), min_size=1, max_size=60
)


def test_it_leaves_when_the_kv_is_there_and_a_step_begins() -> None:
    of = setup(machine=MACHINE, held=True)
    world = played(of, trace([(1.0, 100, 2)]))
    assert world.first == [pytest.approx(1.2 + 0.1)]  # the prompt, then its KV
    assert world.last == [pytest.approx(1.3 + 0.01201)]


def test_it_is_held_for_no_longer_than_nine_tenths_of_the_limit() -> None:
    rows = [(0.0, 10, 60), (0.0, 10, 2)]  # a batch of one: the second waits for all of the first
    for ttft_s, first in ((0.5, 0.45), (0.1, 0.22), (10.0, 0.11 + 59 * 0.0114)):
        of = setup(sequences=1, ttft_s=ttft_s, held=True)
        world = played(of, trace(rows))
        assert world.first[1] == pytest.approx(first, rel=0.01)


def test_short_answers_keep_a_tpot_limit_that_they_miss_at_once() -> None:
    even = replace(ROUND, per_context_token_s=0.0)  # steps of 11 and 12 ms
    rows = [(0.0, 100, 2000), *[(1.0 + n / 7, 50, 2) for n in range(100)]]
    met = [
        figures.attainment(played(setup(even, tpot_s=0.014, held=held_back), trace(rows)), 1.0)
        for held_back in (False, True)
    ]
    assert met[0]["attainment_tpot"] < 0.5
    assert met[1]["attainment"] == met[1]["attainment_tpot"] == 1.0


class Chooses:
    """A law that holds first tokens from 10 s on, and changes no replicas."""

    start = None

    def decide(
        self, state: None, seen: Observations, goals: Goals, now: float
    ) -> tuple[None, Decision]:
        decision = explain.held(seen, goals, now, "not asked")
        return None, replace(decision, holds_first_tokens=now - EPOCH >= 10.0 or None)


@pytest.mark.parametrize("way", ["Auto", "AtOnce"])
def test_the_choice_of_the_law_holds_from_then_on(way: FirstToken) -> None:
    goals = replace(known.goals(), serving=Serving(first_token=way))
    rows = [(4.0, 100, 2), (24.0, 100, 2)]
    world = replay(
        setup(machine=MACHINE), trace(rows), Chooses(), goals, {"prefill": 1, "decode": 1}
    ).world
    waited = [first - arrival for first, arrival in zip(world.first, (4.0, 24.0), strict=True)]
    assert waited == [pytest.approx(0.2), pytest.approx(0.3 if way == "Auto" else 0.2)]


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
