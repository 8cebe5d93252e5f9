"""When a stream goes on at another engine, what that engine is asked, and what the client sees."""

import asyncio
import contextlib
import json

import httpx
import pytest

from argosy_gateway.config import Limits
from argosy_gateway.pods.endpoints import State
from tests.gateway.engines import Call, Engine, Front, drain, fail, front

PATH = "/v1/chat/completions"
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
IDS = "x-argosy-token-ids: 1"
USAGE = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}'


def sent(call: Call) -> dict | None:
    return call.body.get("argosy_resume")


async def rest(call: Call) -> None:
    """All of `one two three` that the client does not have."""
    have = sent(call)
    resumed = [] if have is None else [f"x-argosy-resumed: {len(have['token_ids'])}"]
    await call.begin_stream(IDS, *resumed)
    ids = have["token_ids"] if have else []
    for number, text in enumerate(("one", " two", " three"), 1):
        if number not in ids:
            await call.token(text, number)
    if not (have and have["closed"]):
        await close(call)
    await call.event(USAGE)
    await call.event(b"[DONE]")
    await call.write(b"0\r\n\r\n")


async def close(call: Call) -> None:
    end = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
    await call.raw(b": argosy 2 end\ndata: " + end + b"\n\n")


def breaks_after(count: int, *, error: bytes = b"", closing: bool = False, usage: bool = False):
    """An engine that is lost after so many tokens of the stream."""

    async def behaviour(call: Call) -> None:
        have = sent(call)
        resumed = [] if have is None else [f"x-argosy-resumed: {len(have['token_ids'])}"]
        await call.begin_stream(IDS, *resumed)
        done = have["token_ids"] if have else []
        for number, text in enumerate(("one", " two", " three"), 1):
            if number not in done and number <= count:
                await call.token(text, number)
        if closing:
            await close(call)
        if usage:
            await call.event(USAGE)
        if error:
            await call.event(error)
        await call.raw(b": argosy 99\ndata: {")  # half an event
        call.writer.transport.abort()

    return behaviour


async def read(f: Front, **more) -> tuple[str, list[str]]:
    """(text, the events' data) of one stream."""
    async with httpx.AsyncClient(base_url=f.url, verify=False, timeout=30) as client:
        response = await client.post(PATH, json={**ASK, **more})
    lines = [line for line in response.text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines), lines
    events = [line.removeprefix("data: ") for line in lines]
    assert not {"x-argosy-token-ids", "x-argosy-resumed"} & response.headers.keys()
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    deltas = [c["choices"][0]["delta"] for c in chunks if c.get("choices")]
    return "".join(delta.get("content", "") for delta in deltas), events


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_stream_goes_on_behind_its_last_whole_event(count):
    broken, healthy = Engine("a", breaks_after(count)), Engine("b", rest)
    async with front(broken) as f:
        await healthy.start()
        broken.behaviour = with_successor(f, broken, healthy, breaks_after(count))
        text, events = await read(f)
        await f.settled()
        assert text == "one two three"
        assert events.count("[DONE]") == 1
        (call,) = healthy.calls
        ids = list(range(1, count + 1))
        assert sent(call) == {"token_ids": ids, "closed": False, "created": 9}
        assert call.headers["x-argosy-resume"] == "1"
        assert call.body["seed"] == broken.calls[0].body["seed"]
        assert call.headers["x-argosy-attempt"] == "2"
        assert f.count("argosy_gateway_resumed_total", reason="closed") == 1
        assert f.count("argosy_gateway_retries_total", reason="closed") == 0
        assert f.count("argosy_requests_completed_total", result="ok") == 1
        assert f.count("argosy_gateway_output_tokens_sum") == 3
        assert f.state.id_budget.held == 0
    await healthy.stop()


def with_successor(f: Front, broken: Engine, successor: Engine, behaviour):
    """The second engine is known only when the first was called."""

    async def both(call: Call) -> None:
        f.state.directory.replace([broken.endpoint(), successor.endpoint()])
        await behaviour(call)

    return both


@contextlib.asynccontextmanager
async def pair(first, second, **settings):
    """A gateway whose first call goes to `first`, and the others to `second`."""
    a, b = Engine("a", first), Engine("b", second)
    async with front(a, **settings) as f:
        await b.start()
        a.behaviour = with_successor(f, a, b, first)
        yield f, a, b
    await b.stop()


async def test_a_client_with_the_finish_reason_gets_usage_only():
    async with pair(breaks_after(3, closing=True), rest) as (f, _, b):
        text, events = await read(f, stream_options={"include_usage": True})
        assert text == "one two three"
        assert sent(b.calls[0]) == {"token_ids": [1, 2, 3, 2], "closed": True, "created": 9}
        assert [event for event in events if '"stop"' in event] == [events[-3]]
        assert events[-2:] == [USAGE.decode(), "[DONE]"]


async def test_a_stream_that_misses_only_its_end_mark_gets_it_from_the_gateway():
    async with pair(breaks_after(3, closing=True, usage=True), rest) as (f, _, b):
        text, events = await read(f)
        await f.settled()
        assert (text, events[-1]) == ("one two three", "[DONE]")
        assert b.calls == []
        assert f.count("argosy_requests_completed_total", result="ok") == 1


async def test_usage_in_each_chunk_does_not_stand_for_that_of_the_end():
    async def closes(call: Call) -> None:
        await call.begin_stream(IDS)
        chunk = {"created": 9, "choices": [{"index": 0, "delta": {"content": "one two three"}}]}
        chunk["usage"] = {"prompt_tokens": 7, "completion_tokens": 3}
        await call.raw(b": argosy 1,2,3\ndata: " + json.dumps(chunk).encode() + b"\n\n")
        await close(call)
        call.writer.transport.abort()

    options = {"include_usage": True, "continuous_usage_stats": True}
    async with pair(closes, rest) as (f, a, b):
        text, events = await read(f, stream_options=options)
        assert a.calls[0].body["stream_options"] == b.calls[0].body["stream_options"] == options
        assert text == "one two three"
        assert events[-2:] == [USAGE.decode(), "[DONE]"]


async def test_an_error_event_is_not_shown_to_the_client_whose_stream_goes_on():
    error = b'{"error": {"message": "boom", "code": "internal_error"}}'
    async with pair(breaks_after(1, error=error), rest) as (f, _, _b):
        text, events = await read(f)
        await f.settled()
        assert text == "one two three"
        assert "boom" not in "".join(events)
        assert f.count("argosy_gateway_resumed_total", reason="error") == 1


async def test_the_engines_own_error_ends_a_stream_for_which_there_is_no_other_engine():
    error = b'{"error": {"message": "boom", "code": "internal_error"}}'
    async with front(Engine("a", breaks_after(1, error=error)), queue_timeout_s=0.2) as f:
        text, events = await read(f)
        await f.settled()
        assert text.startswith("one")
        assert "boom" in events[-1]
        assert f.count("argosy_requests_completed_total", result="failed") == 1


async def test_a_request_that_breaks_two_engines_is_sent_to_no_third_one():
    engines = [Engine(name, breaks_after(1 + i)) for i, name in enumerate("abc")]
    for engine in engines:
        engine.behaviour = lambda call: breaks_after(1 + len(sent(call)["token_ids"]) if sent(call)
                                                     else 1)(call)  # fmt: skip
    async with front(*engines) as f:
        text, events = await read(f)
        assert text == "one two"
        assert "stream_broken" in events[-1]
        assert sum(len(engine.calls) for engine in engines) == 2


async def test_a_stream_waits_for_a_pod_of_its_own_revision():
    other, own = Engine("b", rest, revision="bbbbbbbb"), Engine("c", rest)

    async def lost(call: Call) -> None:
        f.state.directory.replace([other.endpoint()])
        await breaks_after(1)(call)

    async with front(Engine("a", lost)) as f:
        await other.start()
        await own.start()
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: f.state.id_budget.held and not f.state.in_flight.loads)
        assert other.calls == []
        f.state.directory.replace([other.endpoint(), own.endpoint()])
        text, _ = await reading
        assert text == "one two three"
        assert (len(own.calls), other.calls) == (1, [])
        await other.stop()
        await own.stop()


async def from_the_start(call: Call) -> None:
    """An engine that does not know how to go on."""
    await call.begin_stream()
    await call.token("one")
    await call.finish(1)


async def wrong_count(call: Call) -> None:
    await call.begin_stream(IDS, "x-argosy-resumed: 7")
    await call.token("one", 1)


async def refuses(call: Call) -> None:
    await call.status(400, {"error": {"message": "no"}})


@pytest.mark.parametrize(
    ("successor", "why"),
    [
        (from_the_start, "no engine goes on with it"),
        (wrong_count, "no engine goes on with it"),
        (refuses, "no engine goes on with it"),
        (fail, "status 500"),
    ],
)
async def test_no_text_comes_from_an_engine_that_does_not_go_on(successor, why):
    async with pair(breaks_after(1), successor) as (f, _, _b):
        text, events = await read(f)
        assert text == "one"
        error = json.loads(events[-1])["error"]
        message = f"The engine's stream broke off: {why}."
        assert (error["code"], error["message"]) == ("stream_broken", message)


async def test_a_stream_without_ids_breaks_off():
    async def without_ids(call: Call) -> None:
        await call.begin_stream()
        await call.token("one")
        call.writer.transport.abort()

    async with pair(without_ids, rest) as (f, _, b):
        text, events = await read(f)
        assert text == "one"
        assert "stream_broken" in events[-1]
        assert b.calls == []


@pytest.mark.parametrize(
    ("limits", "goes_on"),
    [
        (Limits(resume_ids_bytes=4), True),
        (Limits(resume_ids_bytes=3), False),
        (Limits(kept_ids_bytes=4), True),
        (Limits(kept_ids_bytes=3), False),
    ],
)
async def test_a_stream_goes_on_only_if_its_ids_found_room(limits, goes_on):
    async with pair(breaks_after(2), rest, limits=limits) as (f, _, _b):
        text, events = await read(f)
        await f.settled()
        assert (text == "one two three") is goes_on
        assert ("stream_broken" in events[-1]) is not goes_on
        assert f.state.id_budget.held == 0


async def test_a_busy_or_draining_engine_is_passed_over_and_tried_again():
    answers = iter([drain, busy, rest])

    async def in_turn(call: Call) -> None:
        await next(answers)(call)

    async with pair(breaks_after(1), in_turn) as (f, a, b):
        a.behaviour = gone_after(f, a, b)
        text, _ = await read(f)
        assert text == "one two three"
        assert len(b.calls) == 3


def gone_after(f: Front, broken: Engine, successor: Engine):
    async def behaviour(call: Call) -> None:
        f.state.directory.replace([successor.endpoint()])
        await breaks_after(1)(call)

    return behaviour


async def busy(call: Call) -> None:
    await call.status(429, {"error": {"message": "full"}})


async def one_and_wait(call: Call) -> None:
    await call.begin_stream(IDS)
    await call.token("one", 1)
    await call.gone()


async def test_a_silent_engine_is_left():
    async with pair(one_and_wait, rest) as (f, a, _):
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: f.state.id_budget.held)
        f.advance(121)
        f.state.sweep()
        text, _ = await reading
        assert text == "one two three"
        assert f.count("argosy_gateway_resumed_total", reason="silent") == 1
        assert f.state.directory.health.failed_recently(a.name)


@pytest.mark.parametrize("mode", ["finish", "migrate"])
async def test_a_stream_leaves_a_pod_that_drains_only_in_mode_migrate(mode):
    async with pair(one_and_wait, rest, drain_mode=mode) as (f, a, b):
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: f.state.id_budget.held)
        f.state.sweep()  # it serves: nothing moves
        f.state.directory.replace([a.endpoint(State.DRAINING), b.endpoint()])
        f.state.sweep()
        if mode == "finish":
            assert b.calls == []
            reading.cancel()
            return
        text, _ = await reading
        assert text == "one two three"
        assert f.count("argosy_gateway_resumed_total", reason="draining") == 1
        assert not f.state.directory.health.failed_recently(a.name)


async def test_a_stream_stays_on_a_pod_that_drains_where_no_other_can_serve_it():
    swept = asyncio.Event()

    async def slow(call: Call) -> None:
        await call.begin_stream(IDS)
        await call.token("one", 1)
        await swept.wait()
        await call.token(" two", 2)
        await call.token(" three", 3)
        await close(call)
        await call.event(USAGE)
        await call.event(b"[DONE]")

    async with pair(slow, rest, drain_mode="migrate") as (f, a, b):
        b.revision = "bbbbbbbb"
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: f.state.id_budget.held)
        f.state.directory.replace([a.endpoint(State.DRAINING), b.endpoint()])
        f.state.sweep()
        swept.set()
        text, events = await reading
        assert (text, events[-1]) == ("one two three", "[DONE]")
        assert b.calls == []


async def test_the_streams_of_a_pod_that_drains_leave_it_a_few_at_a_time():
    """So that the pods that compute their prompts again get no burst of them."""
    count, computed = 10, asyncio.Semaphore(0)

    async def computes(call: Call) -> None:
        await computed.acquire()
        await rest(call)

    async with pair(one_and_wait, computes, drain_mode="migrate") as (f, a, b):
        f.state.directory.replace([a.endpoint()])
        reading = [asyncio.ensure_future(read(f)) for _ in range(count)]
        await f.until(lambda: f.state.id_budget.held >= 2 * count)
        f.state.directory.replace([a.endpoint(State.DRAINING), b.endpoint()])
        f.state.sweep()
        await f.until(lambda: len(b.calls) == 4)
        f.state.sweep()
        for left in range(5, count + 1):
            computed.release()  # the next one leaves without a sweep
            await f.until(lambda left=left: len(b.calls) == left)
            assert sum(not r.done() for r in reading) >= count - left + 4
        for _ in range(4):
            computed.release()
        texts = [text for text, _ in await asyncio.gather(*reading)]
        assert texts == ["one two three"] * count
        assert f.count("argosy_gateway_resumed_total", reason="draining") == count


async def test_a_request_without_a_byte_leaves_a_pod_that_drains_and_begins_elsewhere():
    async def silent(call: Call) -> None:
        await call.gone()

    async with pair(silent, rest, drain_mode="migrate") as (f, a, b):
        reading = asyncio.ensure_future(read(f))
        await f.until(lambda: a.calls)
        f.state.directory.replace([a.endpoint(State.DRAINING), b.endpoint()])
        f.state.sweep()
        text, _ = await reading
        assert text == "one two three"
        assert sent(b.calls[0]) is None
        assert f.count("argosy_gateway_retries_total", reason="draining") == 1
        assert f.count("argosy_gateway_resumed_total", reason="draining") == 0
