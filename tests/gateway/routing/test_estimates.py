"""What the queue learns: the pace of pods, and how much of the limit it may plan with."""

import pytest

from argosy_gateway.routing.estimates import LEAST_SHARE, MOST_SHARE, Margin, PodPace


def behind(pace: PodPace, uid: str, seconds: float, times: int = 4) -> None:
    for _ in range(times):
        pace.observe(uid, ahead=150, own=100, seconds=seconds)


def alone(pace: PodPace, uid: str, seconds: float, times: int = 4) -> None:
    for _ in range(times):
        pace.observe(uid, ahead=149, own=100, seconds=seconds)


def test_a_pace_is_known_after_four_prompts():
    pace = PodPace()
    behind(pace, "a", 0.5, times=3)
    assert pace.tokens_per_s("a") is None
    assert pace.seconds("a", 1000) == 0.0
    behind(pace, "a", 0.5, times=1)
    assert pace.tokens_per_s("a") == pytest.approx(300)
    assert pace.seconds("a", 600) == pytest.approx(2.0)


def test_prompts_behind_others_count_before_those_that_met_an_idle_pod():
    pace = PodPace()
    alone(pace, "a", 1.49)
    assert pace.tokens_per_s("a") == pytest.approx(120)  # 100 a second, and a fifth more
    behind(pace, "a", 0.5)
    assert pace.tokens_per_s("a") == pytest.approx(300)


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


def test_a_pace_follows_a_pod_that_becomes_slower():
    pace = PodPace()
    behind(pace, "a", 0.5, times=40)
    behind(pace, "a", 1.0, times=40)
    assert pace.tokens_per_s("a") == pytest.approx(150, rel=0.1)


def miss(margin: Margin, ttft_s: float, *, sent_at: float = 0.0, now: float = 10.0, plan=0.9):
    margin.observe(predicted_s=plan, ttft_s=ttft_s, limit_s=1.0, sent_at=sent_at, now=now)


def test_without_a_miss_the_whole_limit_is_used():
    margin = Margin()
    miss(margin, 1.0)
    assert margin.share(10.0) == MOST_SHARE == 1.0


def test_a_miss_of_what_was_planned_cuts_the_share_and_time_gives_it_back():
    margin = Margin()
    miss(margin, 1.25)
    assert margin.share(10.0) == pytest.approx(0.72)  # 1 / 1.25, and a tenth less
    assert margin.share(20.0) == pytest.approx(0.75)
    assert margin.share(1000.0) == MOST_SHARE


def test_what_was_sent_before_the_last_cut_cuts_no_further():
    margin = Margin()
    miss(margin, 1.25, plan=0.7)
    miss(margin, 1.25, sent_at=10.0, now=10.0, plan=0.7)
    assert margin.share(10.0) == pytest.approx(0.72)
    miss(margin, 1.25, sent_at=10.1, now=10.1, plan=0.7)
    assert margin.share(10.1) == pytest.approx((0.72 + 0.0003) / 1.25 * 0.9)


@pytest.mark.parametrize(("plan", "cut"), [(0.49, False), (0.5, True), (1.0, True), (1.01, False)])
def test_only_a_request_planned_near_its_limit_shows_anything(plan, cut):
    margin = Margin()
    miss(margin, 1.1, plan=plan)
    assert (margin.share(10.0) < MOST_SHARE) is cut


def test_the_share_never_falls_below_its_least():
    margin = Margin()
    for at in range(1, 20):
        miss(margin, 10.0, sent_at=at, now=at + 0.5, plan=0.5)
    assert margin.share(19.5) == LEAST_SHARE


@pytest.mark.parametrize(("alone", "known"), [(3000.0, 3000.0), (500.0, 1000.0)])
def test_a_pace_from_behind_others_is_no_slower_than_that_of_prompts_that_met_an_idle_pod(
    alone, known
):
    pace = PodPace()
    for _ in range(8):  # when others crowded the pod
        pace.observe("a", ahead=2000, own=1000, seconds=2.0)
    for _ in range(8):
        pace.observe("a", ahead=1000, own=1000, seconds=1000 / alone)
    assert pace.tokens_per_s("a") == pytest.approx(known)
    assert pace.tokens_per_s("") == pytest.approx(known)
