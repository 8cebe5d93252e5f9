"""What the queue learns: the pace of pods, and how much of the limit it may plan with."""

import pytest

from argosy_gateway.routing.estimates import MOST_SHARE, Margin, PodPace


def behind(pace: PodPace, uid: str, seconds: float, times: int = 4) -> None:
    for _ in range(times):
        pace.observe(uid, ahead=150, own=100, seconds=seconds)


def test_a_pace_is_known_after_four_prompts():
    pace = PodPace()
    behind(pace, "a", 0.5, times=3)
    assert pace.tokens_per_s("a") is None
    assert pace.seconds("a", 1000) == 0.0
    behind(pace, "a", 0.5, times=1)
    assert pace.tokens_per_s("a") == pytest.approx(300)
    assert pace.seconds("a", 600) == pytest.approx(2.0)


def test_a_new_pod_has_the_pace_of_all_pods():
    pace = PodPace()
    behind(pace, "a", 0.5)
    assert pace.tokens_per_s("b") == pytest.approx(300)
    behind(pace, "b", 1.5)
    assert pace.tokens_per_s("b") == pytest.approx(100)
    assert pace.tokens_per_s("a") == pytest.approx(300)
    assert 100 < pace.tokens_per_s("") < 300


def test_one_stall_counts_as_four_times_the_expected_time_at_most():
    pace = PodPace()
    behind(pace, "a", 0.5)
    pace.observe("a", ahead=150, own=100, seconds=300.0)
    other = PodPace()
    behind(other, "a", 0.5)
    other.observe("a", ahead=150, own=100, seconds=2.0)
    assert pace.tokens_per_s("a") == pytest.approx(other.tokens_per_s("a"))
    pace.observe("a", ahead=150, own=100, seconds=0.0)
    assert pace.tokens_per_s("a") < 300


def miss(margin: Margin, ttft_s: float, *, sent_at: float = 0.0, now: float = 10.0, plan=0.9):
    margin.observe(predicted_s=plan, ttft_s=ttft_s, limit_s=1.0, sent_at=sent_at, now=now)


def test_a_miss_of_what_was_planned_cuts_the_share_and_time_gives_it_back():
    margin = Margin()
    miss(margin, 1.25)
    assert margin.share(10.0) == pytest.approx(0.72)  # 1 / 1.25, and a tenth less
    assert margin.share(20.0) == pytest.approx(0.75)
    assert margin.share(1000.0) == MOST_SHARE
