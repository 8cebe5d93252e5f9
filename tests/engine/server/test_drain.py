"""When an engine that was told to end may do so."""

from types import SimpleNamespace

import pytest

from argosy_engine.server.drain import Drain
from tests.kv.nodes import until


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


async def test_a_look_between_a_prompts_end_and_its_lease_ends_nothing():
    drain, looks = drain_of(running=[1, 0, 0], leases=[0, 1, 1, 0])
    assert await drain.quiet()
    assert looks == {"running": [0], "leases": [0]}


async def test_an_engine_that_is_idle_at_the_first_look_is_looked_at_again():
    drain, looks = drain_of(running=[0, 1, 0], leases=[0])
    assert await drain.quiet()
    assert looks == {"running": [0], "leases": [0]}


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


def test_the_operator_reads_what_still_runs_and_for_how_long_the_order_lasts():
    timers = Timers()
    drain = Drain(
        running=lambda: 3, leases=lambda: 2, switch=lambda on: None, timeout_s=60,
        role=lambda: "decode", later=timers.later, clock=lambda: timers.now,
    )  # fmt: skip
    report = {"role": "decode", "draining": False, "running": 3, "leases": 2}
    assert drain.report() == {**report, "expires_in_s": None}
    drain.begin(60)
    timers.now = 59.5
    assert drain.report() == {**report, "draining": True, "expires_in_s": 0.5}
    timers.now = 61.0
    assert drain.report()["expires_in_s"] == 0.0


async def test_an_order_expires_on_the_event_loops_clock():
    switched = []
    drain = Drain(
        running=lambda: 0, leases=lambda: 0, switch=switched.append, timeout_s=60
    )  # fmt: skip
    drain.begin(0.01)
    assert drain.draining
    await until(lambda: not drain.draining, within_s=20)
    assert switched == [True, False]


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


def test_a_pod_that_was_called_back_may_be_drained_again_for_the_whole_time(told):
    drain, timers, _ = told
    drain.begin(60)
    timers.pass_time(30)
    assert drain.recall()
    drain.begin(60)
    timers.pass_time(59)
    assert drain.draining
