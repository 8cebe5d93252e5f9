"""When an engine that was told to end may do so."""

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


async def test_a_look_between_a_prompts_end_and_its_lease_ends_nothing():
    drain, looks = drain_of(running=[1, 0, 0], leases=[0, 1, 1, 0])
    assert await drain.quiet()
    assert looks == {"running": [0], "leases": [0]}


async def test_an_idle_engine_ends_and_a_busy_one_when_its_time_is_over():
    assert await drain_of([0], [0])[0].quiet()
    assert not await drain_of([1], [0], timeout_s=0.01)[0].quiet()
    assert not await drain_of([0], [1], timeout_s=0.01)[0].quiet()
