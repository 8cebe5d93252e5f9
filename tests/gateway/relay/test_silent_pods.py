"""A pod that breaks no connection and says nothing any more is left within seconds; a slow one is
not.

`stopped` engines take connections and answer none, as the kernel of a stopped process does. That of
a real process is in tests/gateway/test_streams_survive.py.
"""

import asyncio
import contextlib

import pytest

from argosy_gateway.config import Limits
from tests.gateway.engines import Call, Engine, Front, front
from tests.gateway.relay.test_streams_go_on import one_and_wait, read, rest

QUICK = Limits(wait_s=0.05, silent_s=0.12)
"""Real seconds, as probes go over sockets. What must not happen is tried for many times as long."""


async def silent(call: Call) -> None:
    await call.gone()


@contextlib.asynccontextmanager
async def pair(behaviour, *, limits: Limits = QUICK, **settings):
    """A front whose first request goes to engine a; b has the rest."""
    a, b = Engine("a", behaviour), Engine("b", rest)
    async with front(a, **settings, limits=limits) as f:
        await b.start()
        yield f, a, b
        await b.stop()


async def swept(f: Front, *until: asyncio.Future) -> None:
    """Sweep as the gateway does, but more often, until all this is done."""
    async with asyncio.timeout(10):
        while not all(one.done() for one in until):
            f.state.sweep()
            await asyncio.sleep(0.01)


async def sweep_for(f: Front, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                f.state.sweep()
                await asyncio.sleep(0.01)


def knows(f: Front, *engines: Engine) -> None:
    f.state.directory.replace([engine.endpoint() for engine in engines])


async def test_a_stream_leaves_a_pod_that_is_stopped():
    async with pair(one_and_wait) as (f, a, b):
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: f.state.id_budget.held)
        a.stopped = True
        knows(f, a, b)
        await swept(f, reading)
        text, events = reading.result()
        assert (text, events[-1]) == ("one two three", "[DONE]")
        assert f.count("argosy_gateway_resumed_total", reason="silent") == 1
        assert f.state.directory.health.rank("a") is None


async def test_a_request_without_a_byte_leaves_it_too_and_begins_elsewhere():
    async with pair(silent) as (f, a, b):
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: a.calls)
        a.stopped = True
        knows(f, a, b)
        await swept(f, reading)
        assert reading.result()[0] == "one two three"
        assert f.count("argosy_gateway_retries_total", reason="silent") == 1


@pytest.mark.parametrize("behaviour", [silent, one_and_wait])
async def test_a_pod_that_computes_for_long_and_answers_its_probe_is_not_left(behaviour):
    async with pair(behaviour) as (f, a, b):
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: a.calls)
        knows(f, a, b)
        await sweep_for(f, 1.5)
        assert (b.calls, reading.done()) == ([], False)
        assert 2 <= a.probes <= 1.5 / QUICK.wait_s + 1, "it is asked again, and not at each sweep"
        assert f.state.directory.health.rank("a") == 0
        reading.cancel()


async def test_no_request_goes_to_a_silent_pod_until_it_answers():
    async with pair(one_and_wait) as (f, a, b):
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: f.state.id_budget.held)
        a.stopped = True
        knows(f, a, b)
        await swept(f, reading)
        for _ in range(4):
            await read(f)
        assert len(a.calls) == 1
        a.stopped, a.behaviour = False, rest
        await f.until(lambda: f.state.directory.health.rank("a") is not None)
        assert not f.state.probes.is_silent("a")


async def test_a_gateway_that_stood_still_finds_the_answers_and_leaves_nobody():
    """Lifeguard: whoever was starved must not trust its own clock."""
    async with pair(one_and_wait) as (f, a, b):
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: f.state.id_budget.held)
        knows(f, a, b)
        f.advance(100)  # of the 120 s after which an engine is left in any case
        await sweep_for(f, 1.0)
        assert (b.calls, reading.done()) == ([], False)
        reading.cancel()
