"""What the simulated gateway learns of its pods is what the product's gateway would learn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.routing import estimates
from argosy_law.sim.world.learnt import Margin, Pace, Places

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
