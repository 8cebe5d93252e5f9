"""Suspension, absence and choice, in virtual time."""

import random

import pytest

from argosy_gateway.pods.endpoints import Directory, Endpoint, Role, State
from argosy_gateway.pods.health import HEALTHY, Health
from argosy_gateway.relay.gateway import RetryBudget
from tests.gateway.routing.rosters import candidates


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def health(clock):
    return Health(clock)


def pod(name, role=Role.COLOCATED, ip="10.0.0.1"):
    return Endpoint(name, name, ip, role, "r", State.SERVING)


def fail(health, clock, times=1, uid="a"):
    """The suspension after so many failures, each of a request sent now."""
    for _ in range(times):
        length_s = health.count_failure(uid, clock.now)
    return length_s


def test_one_failure_suspends_nothing_and_the_second_does(health, clock):
    assert fail(health, clock) == 0
    assert health.rank("a") == HEALTHY
    assert fail(health, clock) == 0.25
    assert health.rank("a") > HEALTHY


def test_suspensions_double_to_half_a_minute_and_end(health, clock):
    lengths = [fail(health, clock, 2)]
    for _ in range(9):
        clock.now += lengths[-1]
        assert health.rank("a") == HEALTHY
        lengths.append(fail(health, clock))
    assert lengths == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_pod_on_probation_gets_one_request_per_suspension(health, clock):
    fail(health, clock, 5)  # 2 s
    clock.now += 2
    asked = 0
    for _ in range(100):
        if health.rank("a") == HEALTHY:
            health.begin("a")
            asked += 1
        clock.now += 0.1
    assert asked == 5


def test_successes_on_probation_bring_a_pod_back(health, clock):
    fail(health, clock, 9)
    clock.now += 30
    waits = []
    while health.failed_recently("a"):
        began_at = clock.now
        while health.rank("a") != HEALTHY:
            clock.now += 0.05
        waits.append(clock.now - began_at)
        health.begin("a")
        health.count_success("a", clock.now)
    assert sum(waits) < 2


def test_requests_that_break_any_engine_suspend_no_healthy_pod(health, clock):
    rng, pods = random.Random(7), [pod(name) for name in "abcdef"]
    suspended = 0
    for _ in range(10_000):  # 100 a second on six pods, each tenth of them deadly
        clock.now += 0.01
        tried: set[str] = set()
        deadly = rng.random() < 0.1
        for _ in range(2 if deadly else 1):
            chosen = rng.choice(candidates(pods, health, tried=tried)).uid
            tried.add(chosen)
            health.begin(chosen)
            if deadly:
                health.count_failure(chosen, clock.now)
            else:
                health.count_success(chosen, clock.now)
        if deadly:
            for uid in tried:
                health.pardon(uid)
        suspended += sum(health.rank(p.uid) > HEALTHY for p in pods)
    assert suspended == 0


def test_the_least_bad_pod_serves_when_all_are_suspended(health, clock):
    fail(health, clock, 9, "a")
    fail(health, clock, 3, "b")
    assert candidates([pod("a"), pod("b")], health) == [pod("b")]
    assert candidates([pod("a"), pod("b")], health, tried={"b"}) == [pod("a")]


def test_a_busy_pod_is_asked_after_the_others_and_before_failing_ones(health, clock):
    health.mark_busy("a")
    fail(health, clock, 2, "b")
    pods = [pod("a"), pod("b"), pod("c")]
    assert candidates(pods, health) == [pod("c")]
    assert candidates(pods, health, tried={"c"}) == [pod("a")]
    assert candidates(pods, health, tried={"c"}, only_healthy=True) == []
    clock.now += 0.3
    assert pod("a") in candidates(pods, health)


def test_an_unreachable_pod_is_not_asked_until_its_absence_ends_which_doubles(health, clock):
    lengths = []
    for _ in range(7):
        health.begin("a")
        lengths.append(health.mark_unreachable("a", clock.now))
        assert candidates([pod("a")], health) == []
        assert health.next_return_s() == pytest.approx(lengths[-1])
        clock.now += lengths[-1]
        assert health.next_return_s() is None
    assert lengths == [0.25, 0.5, 1, 2, 4, 5, 5]
    health.begin("a")
    assert health.rank("a") is None, "one request at a time finds out"
    assert health.mark_reached("a")
    assert health.rank("a") == HEALTHY


def test_a_pod_whose_node_is_dead_costs_one_request_at_a_time_its_two_seconds(health, clock):
    connecting: list[float] = []  # when each began; it fails two seconds later
    asked = 0
    for _ in range(6000):  # a minute, a request every 10 ms
        clock.now += 0.01
        while connecting and clock.now >= connecting[0] + 2:
            health.mark_unreachable("a", connecting.pop(0))
        if health.rank("a") == HEALTHY:
            health.begin("a")
            connecting.append(clock.now)
            asked += 1
    first = 200  # until the first one has failed, nothing is known
    assert asked <= first + 60 / 5 + 3


def test_a_changed_pod_starts_without_a_record(clock):
    directory = Directory(clock)
    directory.replace([pod("a"), pod("b")])
    for uid in "ab":
        fail(directory.health, clock, 3, uid)
    directory.put(pod("a", ip="10.0.0.2"))
    assert directory.health.rank("a") == HEALTHY
    directory.replace([pod("a", ip="10.0.0.2"), pod("b", ip="10.0.0.3")])
    assert directory.health.rank("b") == HEALTHY


def test_retries_are_a_reserve_and_a_tenth_of_the_requests():
    budget, made = RetryBudget(10), 0
    for _ in range(1000):
        budget.count_request()
        made += budget.take()
    assert made == pytest.approx(10 + 100, abs=3)


def test_a_pod_that_answers_under_its_name_again_is_called_at_once(health, clock):
    assert not health.mark_identified("a"), "it was never absent"
    health.mark_wrong_pod("a")
    assert health.mark_identified("a")
    assert health.rank("a") == HEALTHY
    assert not health.mark_identified("a"), "the second time is no news"


def test_a_silent_pod_is_absent_until_it_answers_although_its_kernel_takes_connections(
    health, clock
):
    health.mark_silent("a")
    assert health.rank("a") is None
    clock.now += 14.9
    assert health.rank("a") is None
    assert not health.mark_reached("a")
    assert health.rank("a") is None
    assert health.mark_identified("a")
    assert health.rank("a") == HEALTHY
