"""A stream leaves a decode pod that drains: that pod is asked to keep its KV, the next one is told.

What engines make of it is tested with real ones (tests/kv/test_kept_streams.py,
tests/gateway/test_streams_survive.py).
"""

import asyncio
import contextlib

import httpx
import pytest

from argosy_gateway.pods.endpoints import Role, State
from argosy_gateway.relay.handover import argosy
from tests.gateway.engines import Call, Engine, front
from tests.gateway.relay.test_streams_go_on import ASK, IDS, PATH, breaks_after, busy, read, rest

KEEP, LET_GO = "/argosy/keep", "/argosy/let-go"


async def one_and_wait(call: Call) -> None:
    await call.begin_stream(IDS)
    await call.token("one", 1)
    await call.gone()


def asks(engine: Engine) -> list[Call]:
    return [call for call in engine.calls if call.path == KEEP]


def let_go(engine: Engine) -> list[Call]:
    return [call for call in engine.calls if call.path == LET_GO]


def streams(engine: Engine) -> list[Call]:
    return [call for call in engine.calls if call.path == PATH]


def keeping(answer, stream=one_and_wait):
    """An engine that is asked to keep KV answers so."""

    async def behaviour(call: Call) -> None:
        await {KEEP: answer, LET_GO: yes}.get(call.path, stream)(call)

    return behaviour


async def yes(call: Call) -> None:
    await call.status(200, {})


async def unknown(call: Call) -> None:
    await call.status(404, {"error": {"message": "no such path"}})


async def close(call: Call) -> None:
    call.writer.transport.abort()


async def hang(call: Call) -> None:
    await call.gone()


async def stranger(call: Call) -> None:
    call.pod = (call.pod[0], "another-pod")
    await call.status(200, {})


@contextlib.asynccontextmanager
async def moving(leaving, *others, role=Role.DECODE, prefill=False):
    """A stream of the first engine, which drains, so that it goes on at one of the others."""
    first = Engine("a", leaving, role)
    rest_of = [Engine(f"b{i}", behaviour, role) for i, behaviour in enumerate(others)]
    computing = [Engine("p", rest, Role.PREFILL)] if prefill else []
    async with front(first, drain_mode="migrate") as f, contextlib.AsyncExitStack() as stack:
        for engine in (*rest_of, *computing):
            await engine.start()
            stack.push_async_callback(engine.stop)
        f.state.directory.replace(e.endpoint() for e in (first, *computing))
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: f.state.id_budget.held)
        drains = [first.endpoint(State.DRAINING)]
        f.state.directory.replace([*drains, *(e.endpoint() for e in (*rest_of, *computing))])
        f.state.sweep()
        yield f, reading, first, *rest_of
        reading.cancel()


def kept_at(call: Call) -> str | None:
    return call.headers.get("x-argosy-kept-at")


@pytest.mark.parametrize("prefill", [False, True])
async def test_the_next_pod_is_told_where_the_kv_is(prefill):
    async with moving(keeping(yes), rest, prefill=prefill) as (f, reading, a, b):
        text, events = await reading
        await f.settled()
        assert (text, events[-1]) == ("one two three", "[DONE]")
        (asked,), (stream,), (call,) = asks(a), streams(a), b.calls
        assert asked.headers["x-request-id"] == stream.headers["x-request-id"]
        assert asked.headers["x-argosy-pod-uid"] == "a"
        assert kept_at(call) == "127.0.0.1:8002/a"
        assert ("x-argosy-prefill" in call.headers) is prefill
        assert f.count("argosy_gateway_resumed_total", reason="draining") == 1
        assert f.state.directory.health.failed_recently("a") is False


@pytest.mark.parametrize("answer", [unknown, close, hang, stranger])
async def test_a_pod_that_keeps_nothing_is_left_all_the_same(answer, monkeypatch):
    monkeypatch.setattr(argosy, "_TELL_S", 0.1)
    async with moving(keeping(answer), rest) as (_f, reading, a, b):
        text, _ = await reading
        assert text == "one two three"
        assert kept_at(b.calls[0]) is None
        assert let_go(a) == []


async def test_the_pod_may_free_the_kv_as_soon_as_the_stream_goes_on():
    """The next pod has a lease of its own by then, or did not ask for the KV."""
    goes_on = asyncio.Event()

    async def slowly(call: Call) -> None:
        await call.begin_stream(IDS, "x-argosy-resumed: 1")
        await call.token(" two", 2)
        await goes_on.wait()
        await call.token(" three", 3)
        await call.finish(3)

    async with moving(keeping(yes), slowly) as (f, reading, a, _):
        await f.until(lambda: let_go(a))
        assert let_go(a)[0].headers["x-request-id"] == streams(a)[0].headers["x-request-id"]
        goes_on.set()
        text, _ = await reading
        await f.settled()
        assert text == "one two three"
        assert len(let_go(a)) == 1


async def test_the_pod_may_free_the_kv_if_the_client_leaves_before_the_stream_goes_on():
    async with moving(keeping(yes), hang) as (f, reading, a, b):
        await f.until(lambda: b.calls)
        assert let_go(a) == []
        reading.cancel()
        await f.until(lambda: let_go(a))


async def test_pods_that_compute_their_prompts_themselves_are_not_asked():
    async with moving(keeping(yes), rest, role=Role.COLOCATED) as (_f, reading, a, b):
        text, _ = await reading
        assert text == "one two three"
        assert asks(a) == []
        assert kept_at(b.calls[0]) is None


async def test_a_stream_that_ends_while_its_pod_is_asked_ends_there():
    ended = asyncio.Event()

    async def answers_late(call: Call) -> None:
        await ended.wait()
        await yes(call)

    async def ends_then(call: Call) -> None:
        await call.begin_stream(IDS)
        await call.token("one", 1)
        await f.until(lambda: asks(a))
        await call.token(" two", 2)
        await call.finish(2)

    first = Engine("a", keeping(answers_late, ends_then), Role.DECODE, keeps=True)
    other = Engine("b", rest, Role.DECODE)
    async with front(first, drain_mode="migrate") as f:
        a = first
        await other.start()
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: f.state.id_budget.held)
        f.state.directory.replace([first.endpoint(State.DRAINING), other.endpoint()])
        f.state.sweep()
        text, events = await reading
        await f.settled()
        ended.set()
        await f.until(lambda: let_go(first))
        assert (text, events[-1]) == ("one two", "[DONE]")
        assert other.calls == []
        assert f.count("argosy_requests_completed_total", result="ok") == 1
        assert f.count("argosy_gateway_resumed_total") == 0
    await other.stop()


async def test_a_client_that_hangs_up_while_its_pod_is_asked_is_gone():
    async def answers_late(call: Call) -> None:
        await f.until(lambda: not f.state.relays)
        await yes(call)

    first, other = Engine("a", keeping(answers_late), Role.DECODE), Engine("b", rest, Role.DECODE)
    async with front(first, drain_mode="migrate") as f:
        await other.start()
        async with (
            httpx.AsyncClient(base_url=f.url, timeout=30) as client,
            client.stream("POST", PATH, json=ASK),
        ):
            await f.until(lambda: f.state.id_budget.held)
            f.state.directory.replace([first.endpoint(State.DRAINING), other.endpoint()])
            f.state.sweep()
            await f.until(lambda: asks(first))
        await f.settled()
        await f.until(lambda: let_go(first))
        assert other.calls == []
        assert f.count("argosy_requests_completed_total", result="client_gone") == 1
    await other.stop()


@pytest.mark.parametrize(
    ("answer", "told"),
    [(busy, "127.0.0.1:8002/a"), (breaks_after(1), None)],
    ids=["busy", "broke off"],
)
async def test_a_pod_after_one_that_did_not_pull_is_told_too_and_one_after_a_failure_is_not(
    answer, told
):
    """What a pod has pulled, or tried to, is not kept any more."""
    first_calls: list[Call] = []

    async def one_fails(call: Call) -> None:
        first_calls.append(call)
        await (answer if len(first_calls) == 1 else rest)(call)

    async with moving(keeping(yes), one_fails, one_fails) as (_f, reading, _a, *_):
        text, _ = await reading
        assert text == "one two three"
        assert [kept_at(call) for call in first_calls] == ["127.0.0.1:8002/a", told]
