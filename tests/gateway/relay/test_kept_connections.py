"""Connections to engines between requests: when they are used again, and what their end means."""

from dataclasses import replace

import httpx
import pytest

from argosy_gateway.pods.endpoints import State
from argosy_gateway.relay.metrics import RetryReason
from tests.gateway.engines import Engine, answer, front

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
BOTH = pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])


async def ask(f, body=CHAT):
    async with httpx.AsyncClient(base_url=f.url, timeout=30, verify=False) as web:
        return await web.post(PATH, json=body)


def connections(engine):
    """For each call the number of its connection."""
    writers = []
    for call in engine.calls:
        if call.writer not in writers:
            writers.append(call.writer)
    return [writers.index(call.writer) for call in engine.calls]


def retries(f):
    reasons = [reason.value for reason in RetryReason]
    return {r: n for r in reasons if (n := f.count("argosy_gateway_retries_total", reason=r))}


async def closed(f, engine):
    """Wait until the engine sees that the connection of its latest call has ended."""
    await f.until(lambda: engine.calls[-1].reader.at_eof())


async def closes(call):
    """The engine closes the connection as the request arrives, and has not read it."""
    call.writer.close()


def first(behaviour, then=answer):
    """An engine that behaves so once."""
    left = [behaviour]

    async def act(call):
        await (left.pop() if left else then)(call)

    return act


@BOTH
async def test_one_request_after_the_other_uses_one_connection(body):
    engine = Engine("a", keeps=True)
    async with front(engine) as f:
        for _ in range(3):
            assert (await ask(f, body)).status_code == 200
            await f.until(lambda: len(f.state.connections) == 1)
    assert connections(engine) == [0, 0, 0]


async def warm(f, *engines):
    """One kept connection to each engine; all are known afterwards."""
    for number, engine in enumerate(engines, 1):
        f.state.directory.replace([engine.endpoint()])
        assert (await ask(f)).status_code == 200
        await f.until(lambda number=number: len(f.state.connections) == number)
    f.state.directory.replace(e.endpoint() for e in engines)


@BOTH
async def test_a_request_that_met_a_closing_connection_is_answered_by_the_same_pod(body):
    engine = Engine("a", keeps=True)
    async with front(engine) as f:
        await warm(f, engine)
        engine.behaviour = first(closes)
        f.state.retries._left = 0  # no retry is left, and none is needed
        assert (await ask(f, body)).status_code == 200
        assert retries(f) == {}
        assert not f.state.directory.health.failed_recently("a")
    assert connections(engine) == [0, 0, 1]
    assert [call.headers["x-argosy-attempt"] for call in engine.calls] == ["1", "1", "1"]


@BOTH
async def test_a_request_whose_new_connection_closes_too_has_failed_there_once(body):
    engine, other = Engine("a", keeps=True), Engine("b")
    async with front(engine) as f:
        await other.start()
        await warm(f, engine)

        async def closes_beside_another(call):
            f.state.directory.put(other.endpoint())
            await closes(call)

        engine.behaviour = closes_beside_another
        assert (await ask(f, body)).status_code == 200
        assert retries(f) == {"closed": 1}
        assert f.state.directory.health.failed_recently("a")
        await other.stop()
    assert connections(engine) == [0, 0, 1]
    assert [call.headers["x-argosy-attempt"] for call in other.calls] == ["2"]


async def test_a_request_that_ends_its_engines_ends_no_more_than_two_of_them():
    """A kept connection of an engine that has ended looks like one that was just closed."""
    engines = [Engine(name, keeps=True) for name in "abc"]

    def ends(engine):
        async def act(_call):
            await engine.stop()

        return act

    async with front(*engines) as f:
        await warm(f, *engines)
        for engine in engines:
            engine.behaviour = ends(engine)
        answered = await ask(f)
        assert answered.status_code == 503
        assert sum(len(engine.calls) for engine in engines) == 3 + 2
        assert retries(f) == {"closed": 1}


async def test_a_pod_that_ended_between_requests_costs_no_answer():
    engine, other = Engine("a", keeps=True), Engine("b", keeps=True)
    async with front(engine, other) as f:
        await warm(f, engine, other)
        await engine.stop()
        for _ in range(4):
            assert (await ask(f)).status_code == 200


async def test_another_pod_at_the_same_address_never_gets_a_connection_of_the_one_before():
    old = Engine("a", keeps=True, uid="old")
    async with front(old) as f:
        await warm(f, old)
        new = Engine("a", keeps=True, uid="new", port=old.port)
        await old.stop()
        await new.start()
        f.state.directory.replace([new.endpoint()])
        assert (await ask(f)).status_code == 200
        assert [call.headers["x-argosy-pod-uid"] for call in new.calls] == ["new"]
        assert retries(f) == {}
        await new.stop()


@pytest.mark.parametrize(
    "becomes",
    [{"state": State.DRAINING}, {"state": State.UNREADY}, {"ip": "127.0.0.2"}, {"port": 1}],
)
async def test_connections_to_a_pod_that_leaves_or_moves_are_closed_at_the_next_sweep(becomes):
    engine = Engine("a", keeps=True)
    async with front(engine) as f:
        await warm(f, engine)
        f.state.directory.put(replace(engine.endpoint(), **becomes))
        f.state.sweep()
        assert len(f.state.connections) == 0
        await closed(f, engine)


async def stranger(call):
    call.pod = ("x-argosy-pod", "stranger")
    await answer(call)
