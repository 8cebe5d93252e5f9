"""What a gateway knows of its pods, and when requests that wait for one are woken."""

import asyncio

import pytest

from argosy_gateway.pods.endpoints import Directory, Endpoint, Role, State
from argosy_gateway.pods.health import HEALTHY
from tests.support import virtual


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def pod(name, state=State.SERVING, ip="10.0.0.1"):
    return Endpoint(name, name, ip, Role.COLOCATED, "r", state)


def test_a_full_list_replaces_what_was_known_and_events_change_single_pods():
    directory = Directory(Clock())
    assert not directory.listed
    directory.put(pod("a"))
    assert not directory.listed
    directory.replace([pod("b"), pod("c", State.DRAINING), pod("d", State.UNREADY)])
    assert directory.listed
    assert sorted(e.name for e in directory.all()) == ["b", "c", "d"]
    assert [e.name for e in directory.serving()] == ["b"]
    directory.put(pod("d"))
    directory.remove("b")
    directory.remove("unknown")
    assert [e.name for e in directory.serving()] == ["d"]
    assert sorted(e.name for e in directory.all()) == ["c", "d"]


def fail_twice(directory, *uids):
    for uid in uids:
        for _ in range(2):
            directory.health.count_failure(uid, 100.0)


def test_what_is_known_of_a_pods_health_ends_when_the_pod_changes_or_is_gone():
    directory = Directory(Clock())
    directory.replace([pod(name) for name in "abcde"])
    fail_twice(directory, *"abcde")
    directory.put(pod("a"))  # an event without a change
    directory.put(pod("b", ip="10.0.0.2"))
    directory.remove("c")
    directory.put(pod("c"))
    directory.replace([pod("a"), pod("b", ip="10.0.0.2"), pod("c"), pod("d", ip="10.0.0.3")])
    directory.put(pod("e"))
    ranks = {uid: directory.health.rank(uid) for uid in "abcde"}
    assert ranks.pop("a") > HEALTHY
    assert set(ranks.values()) == {HEALTHY}


def test_a_denial_lasts_from_the_first_one_to_the_last_since_access():
    clock = Clock()
    directory = Directory(clock)
    seen = []
    for seconds, happens in (
        (0, directory.deny_access),
        (10, directory.deny_access),
        (15, directory.deny_access),
        (20, lambda: None),  # an API server that is away denies nothing
        (5, directory.grant_access),
        (10, directory.deny_access),
        (2, directory.deny_access),
    ):
        clock.now += seconds
        happens()
        seen.append(directory.denied_for_s())
    assert seen == [0, 10, 25, 25, 0, 0, 2]


@pytest.mark.parametrize(
    ("after_3_s", "waited_s"),
    [
        (lambda d: None, 20),
        (lambda d: d.put(pod("b")), 3),
        (lambda d: d.put(pod("a", State.DRAINING)), 3),
        (lambda d: d.put(pod("a")), 20),
        (lambda d: d.remove("a"), 3),
        (lambda d: d.remove("b"), 20),
        (lambda d: d.replace([pod("a")]), 3),
        (lambda d: d.notify(), 3),
    ],
    ids=["nothing", "new", "changed", "same", "gone", "unknown gone", "listed", "notified"],
)
def test_a_request_waits_for_a_change_and_no_longer_than_it_may(after_3_s, waited_s):
    async def wait():
        loop = asyncio.get_running_loop()
        directory = Directory(loop.time)
        directory.replace([pod("a")])
        began = loop.time()
        loop.call_later(3, after_3_s, directory)
        await directory.wait_for_change(20)
        return loop.time() - began

    assert virtual.run(wait()) == pytest.approx(waited_s)
