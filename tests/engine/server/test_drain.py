"""When an engine that was told to end may do so."""

from types import SimpleNamespace

import pytest

from argosy_engine.server.drain import Drain


def drain_of(running, leases, timeout_s=60.0):
    """Both as they are seen look by look; the last value stays."""
    looks = {"running": list(running), "leases": list(leases)}

    def look(name):
        return lambda: looks[name].pop(0) if len(looks[name]) > 1 else looks[name][0]

    switched = []
    drain = Drain(
        running=look("running"), leases=look("leases"), switch=switched.append, timeout_s=timeout_s
    )
    drain.terminate()
    assert switched == [True]
    return drain, looks


async def test_an_idle_engine_ends_and_a_busy_one_when_its_time_is_over():
    assert await drain_of([0], [0])[0].quiet()
    assert not await drain_of([1], [0], timeout_s=0.01)[0].quiet()
    assert not await drain_of([0], [1], timeout_s=0.01)[0].quiet()


class Timers:
    """Time that the test lets pass, for `call_later`."""

    def __init__(self):
        self.now, self.due = 0.0, []

    def later(self, seconds, call):
        timer = [self.now + seconds, call]
        self.due.append(timer)
        return SimpleNamespace(cancel=lambda: self.due.remove(timer))

    def pass_time(self, seconds):
        self.now += seconds
        for timer in [timer for timer in self.due if timer[0] <= self.now]:
            self.due.remove(timer)
            timer[1]()


@pytest.fixture
def told():
    """A drain, its timers, and what the engine's loop was told."""
    timers, switched = Timers(), []
    drain = Drain(
        running=lambda: 0, leases=lambda: 0, switch=switched.append, timeout_s=60,
        later=timers.later, clock=lambda: timers.now,
    )  # fmt: skip
    return drain, timers, switched


def test_a_drain_order_lasts_from_the_last_time_it_was_given(told):
    drain, timers, switched = told
    drain.begin(60)
    timers.pass_time(50)
    drain.begin(60)
    timers.pass_time(59)
    assert drain.draining
    assert drain.report()["expires_in_s"] == 1
    timers.pass_time(1)
    assert (drain.draining, switched[-1]) == (False, False)
    assert timers.due == []


@pytest.mark.parametrize(("running", "leases"), [(1, 0), (0, 1)])
def test_an_engine_with_requests_or_leases_is_busy(running, leases):
    drain = Drain(
        running=lambda: running, leases=lambda: leases, switch=lambda on: None, timeout_s=60
    )
    assert drain.busy()


def test_sigterm_does_not_expire(told):
    drain, timers, switched = told
    drain.begin(60)
    drain.terminate()
    timers.pass_time(3600)
    drain.begin(60)
    timers.pass_time(3600)
    assert (drain.draining, switched[-1]) == (True, True)
    assert drain.report()["expires_in_s"] is None
    assert not drain.recall()
