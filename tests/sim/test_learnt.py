"""What the simulated gateway learns of its pods is what the product's gateway would learn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.routing import estimates
from argosy_law.sim.world.ended import Ended
from argosy_law.sim.world.learnt import Margin, Pace, Places
from argosy_law.size.work import EDGES
from tests.sim.fleets import setup, trace

PROMPTS = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 9000), st.floats(0.0, 60.0)), max_size=40
)


@given(PROMPTS)
def test_a_pods_pace_is_the_products(prompts: list[tuple[int, int, float]]) -> None:
    """After each first token: `own` tokens, so many ahead of them, and the time they took."""
    ours, product = Pace(), estimates.PodPace()
    for own, others, seconds in prompts:
        ours.observe(own + others, own, seconds)
        product.observe("pod", ahead=own + others, own=own, seconds=seconds)
        assert ours.tokens_per_s == pytest.approx(product.tokens_per_s("pod") or 0.0)
        assert ours.seconds(700) == pytest.approx(product.seconds("pod", 700))


def test_four_prompts_make_a_pace_and_those_behind_others_count_first() -> None:
    found = Pace()
    for _ in range(3):
        found.observe(100, 100, 0.1)
    assert (found.tokens_per_s, found.seconds(500)) == (0.0, 0.0)
    found.observe(100, 100, 0.1)
    assert found.tokens_per_s == pytest.approx(1.2 * 1000.0)
    assert found.seconds(600) == pytest.approx(0.5)
    for _ in range(4):
        found.observe(150, 100, 0.3)
    assert found.tokens_per_s == pytest.approx(1000.0), "never below that of prompts alone"
    for _ in range(200):
        found.observe(150, 100, 0.05)
    assert found.tokens_per_s == pytest.approx(3000.0, rel=1e-4)


MISSES = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),  # predicted
        st.floats(1.0, 9.0, exclude_min=True),  # measured, above the limit of 1 s
        st.floats(0.0, 60.0),  # since the last one
        st.floats(0.0, 90.0),  # since it was sent
    ),
    max_size=30,
)


@given(MISSES)
def test_the_share_of_the_limit_is_the_products(
    misses: list[tuple[float, float, float, float]],
) -> None:
    ours, product, now = Margin(), estimates.Margin(), 100.0
    for predicted_s, ttft_s, later_s, ago_s in misses:
        now += later_s
        assert ours.share(now) == pytest.approx(product.share(now))
        seen = {"predicted_s": predicted_s, "ttft_s": ttft_s, "limit_s": 1.0}
        ours.missed(**seen, sent_at=now - ago_s, now=now)
        product.observe(**seen, sent_at=now - ago_s, now=now)
        assert ours.share(now) == pytest.approx(product.share(now))
    assert ours.share(now + 1000.0) == 1.0


def test_a_miss_near_the_limit_cuts_and_time_gives_back() -> None:
    found = Margin()
    found.missed(predicted_s=0.49, ttft_s=2.0, limit_s=1.0, sent_at=0.0, now=1.0)
    found.missed(predicted_s=1.01, ttft_s=2.0, limit_s=1.0, sent_at=0.0, now=1.0)
    assert found.share(1.0) == 1.0
    found.missed(predicted_s=0.5, ttft_s=1.25, limit_s=1.0, sent_at=0.0, now=1.0)
    assert found.share(1.0) == pytest.approx(0.72)
    found.missed(predicted_s=0.6, ttft_s=9.0, limit_s=1.0, sent_at=1.0, now=2.0)
    assert found.share(11.0) == pytest.approx(0.75), "what was sent before the cut shows nothing"
    found.missed(predicted_s=0.6, ttft_s=9.0, limit_s=1.0, sent_at=1.1, now=11.0)
    assert found.share(11.0) == 0.5


REPORTS = st.lists(
    st.tuples(st.integers(0, 60), st.floats(0.001, 0.4), st.floats(0.0, 70.0)), max_size=40
)


@given(REPORTS)
def test_the_places_of_a_pod_are_the_products(reports: list[tuple[int, float, float]]) -> None:
    ours, product, now = Places(0.05), estimates.Places(0.05), 0.0
    for sequences, tpot_s, later_s in reports:
        now += later_s
        ours.observe("pod", sequences=sequences, tpot_s=tpot_s, now=now)
        product.observe("pod", sequences=sequences, tpot_s=tpot_s, now=now)
        room = [n for n in range(80) if ours.has_room("pod", n)]
        assert room == [n for n in range(80) if product.has_room("pod", n)]
        assert bool(ours.bounds) == bool(product._bounds)


def test_a_report_is_due_when_a_pod_is_too_slow_or_a_second_after_its_last() -> None:
    found = Places(0.05)
    assert not found.due("pod", 0.05, 9.0)
    assert found.due("pod", 0.0501, 9.0)
    found.observe("pod", sequences=20, tpot_s=0.09, now=9.0)
    assert found.bounds["pod"].places == 10.0
    assert not found.due("pod", 0.9, 9.99)
    assert found.due("pod", 0.001, 10.0)
    assert not found.due("other", 0.05, 10.0)
    assert (found.has_room("pod", 9), found.has_room("pod", 10)) == (True, False)
    assert found.has_room("other", 1000)


def test_a_bound_that_serves_nobody_is_lifted_for_a_minute() -> None:
    """Ten sequences take 60 ms, and five of them 58: none would take 56, more than the 50."""
    found = Places(0.05)
    found.observe("pod", sequences=10, tpot_s=0.06, now=0.0)
    assert not found.has_room("pod", 9)
    found.observe("pod", sequences=5, tpot_s=0.058, now=1.0)
    assert found.has_room("pod", 1000)
    assert found.bounds["pod"].lifted_until == 61.0
    found.observe("pod", sequences=5, tpot_s=0.01, now=60.9)
    assert found.bounds
    found.observe("pod", sequences=5, tpot_s=0.05, now=61.0)
    assert not found.bounds


def test_a_bound_under_which_fewer_sequences_are_quick_enough_stays() -> None:
    """Ten sequences take 80 ms, and five of them 58: none would take 36, less than the 50."""
    found = Places(0.05)
    found.observe("pod", sequences=10, tpot_s=0.08, now=0.0)
    found.observe("pod", sequences=5, tpot_s=0.058, now=1.0)
    assert found.bounds["pod"].lifted_until == 0.0
    assert not found.has_room("pod", 5)


def test_ended_requests_are_summed_by_length_and_verdict() -> None:
    """Limits of 1 s and 50 ms: both are met to the last moment."""
    rows = [(0.0, 1, 1), (10.0, 2, 3), (20.0, 100, 3), (30.0, 101, 2)]
    sums = Ended(setup(ttft_s=1.0, tpot_s=0.0625), trace(rows))
    answered = [0, 1, 2, 3]
    sums.add(answered, [1.0, 11.0, 21.5, 30.5], [1.0, 11.125, 21.5, 30.75])
    assert answered == []
    assert sums.verdicts == {
        (True, True): 2, (False, True): 1, (True, False): 1, (False, False): 0,
    }  # fmt: skip
    assert (sums.prompt, sums.prompt_squared, sums.output) == (204, 1 + 4 + 10_000 + 10_201, 9)
    edges = {EDGES[i]: n for i, n in enumerate(sums.prompts[:-1]) if n}
    assert edges == {1.0: 1, 2.0: 1, 100.0: 1, 200.0: 1}
    assert sums.outputs[0] == sums.outputs[1] == 1
    assert sum(sums.outputs) == 4
    sums.without_answer(3)
    assert sums.verdicts[False, False] == 3
