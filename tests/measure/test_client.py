"""What the client notes of streams, whole and broken ones, over real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_measure.client import (
    Answer,
    Request,
    ServerError,
    find_model,
    open_http,
    play_closed,
    play_open,
    send,
)
from tests.support.virtual import timed

TOKEN = b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@contextlib.asynccontextmanager
async def server(*pieces: bytes | None) -> AsyncIterator[str]:
    """Answers every request with these pieces, and closes. None: it waits until the client goes."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                if piece is None:
                    while await reader.read(65536):
                        pass
                    break
                writer.write(piece)
                await writer.drain()
        writer.close()

    listening = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def ask(url: str, timeout_s: float = 30) -> Answer:
    async with open_http(timeout_s) as http:
        return await send(http, url, "m", Request((1,), 3))


async def test_events_are_read_across_pieces_and_tokens_counted_by_usage():
    async with server(OK, TOKEN[:9], TOKEN[9:] + TOKEN, END, USAGE, DONE) as url:
        got = await ask(url)
    assert (len(got.events), got.tokens, got.prompt_tokens, got.error) == (2, 3, 1, None)
    assert got.status == 200
    assert got.sent <= got.events[0] <= got.events[1] <= got.ended


async def test_tokens_are_counted_by_events_where_the_server_sends_no_usage():
    async with server(OK, TOKEN, TOKEN, END, b"data: [DONE]") as url:
        got = await ask(url)
    assert (got.tokens, got.prompt_tokens, got.error) == (2, None, None)


@pytest.mark.parametrize(
    ("pieces", "status", "events", "error"),
    [
        ((b"HTTP/1.1 500 x\r\n\r\nno memory",), 500, 0, "500: no memory"),
        ((OK, TOKEN), 200, 1, "without [DONE]"),
        ((OK.replace(b"\r\n\r\n", b"\r\ncontent-length: 999\r\n\r\n"), TOKEN), 200, 1, "closed"),
        ((OK, TOKEN, b'data: {"error":{"message":"pod died"}}\n\n'), 200, 1, "pod died"),
        ((OK, b"data: <html>\n\n"), 200, 0, "<html>"),
        ((OK, b'data: {"choices":7}\n\n'), 200, 0, "choices"),
        ((OK, DONE), 200, 0, "no token"),
        ((b"SSH-2.0-OpenSSH_9\r\n",), None, 0, ""),
        ((), None, 0, "disconnected"),
    ],
)
async def test_what_a_server_does_wrong_is_in_the_answer(pieces, status, events, error):
    async with server(*pieces) as url:
        got = await ask(url)
    assert (got.status, len(got.events)) == (status, events)
    assert error in got.error


async def test_a_silent_server_ends_with_the_time_out_and_what_came_before_is_kept():
    async with server(OK, TOKEN, None) as url:
        got = await ask(url, timeout_s=0.2)
    assert len(got.events) == 1
    assert "time-out" in got.error


async def test_a_server_that_is_down_is_a_failed_answer():
    async with server() as url:
        pass
    got = await ask(url)
    assert got.status is None
    assert "cannot connect" in got.error


async def test_the_model_is_the_first_that_the_server_lists():
    said = b'HTTP/1.1 200 OK\r\n\r\n{"data":[{"id":"smol"}]}'
    async with server(said) as url, open_http() as http:
        assert await find_model(http, url) == "smol"


@pytest.mark.parametrize("said", [b"200 OK\r\n\r\n{}", b"200 OK\r\n\r\nhello", b"404 x\r\n\r\n"])
async def test_a_server_that_lists_no_model_is_told_from_one_that_is_down(said):
    async with server(b"HTTP/1.1 " + said) as url, open_http() as http:
        with pytest.raises(ServerError, match="--model"):
            await find_model(http, url)
    async with open_http() as http:
        with pytest.raises(ServerError, match="does not answer"):
            await find_model(http, url)


async def test_a_server_that_refuses_its_caller_is_said_to_want_a_token():
    async with server(b"HTTP/1.1 401 x\r\n\r\n") as url, open_http() as http:
        with pytest.raises(ServerError, match="--header"):
            await find_model(http, url)


async def answer_in(seconds: float, request: Request) -> Answer:
    clock = asyncio.get_running_loop().time
    answer = Answer(request, clock())
    await asyncio.sleep(seconds)
    answer.ended = clock()
    return answer


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.floats(0, 500))
@timed
async def test_an_open_load_is_sent_when_it_is_due_however_slow_the_answers_are(due, takes_s):
    begin = asyncio.get_running_loop().time()
    requests = [Request("a", 1, at_s) for at_s in sorted(due)]
    answers = await play_open(partial(answer_in, takes_s), requests)
    assert len(answers) == len(due)
    for answer in answers:
        assert answer.sent - begin == pytest.approx(answer.request.at_s, abs=1e-3)
        assert answer.late_s < 1e-3


@given(st.integers(1, 8), st.integers(0, 20))
@timed
async def test_a_closed_load_has_as_many_requests_at_once_as_clients(clients, count):
    most = running = 0

    async def watched(request: Request) -> Answer:
        nonlocal most, running
        running += 1
        most = max(most, running)
        answer = await answer_in(1.0, request)
        running -= 1
        return answer

    answers = await play_closed(watched, [Request("a", 1)] * count, clients)
    assert len(answers) == count
    assert most == min(clients, count)


def test_tpot_is_unknown_below_two_tokens():
    assert Answer(Request("a", 1), 0.0, events=[1.0], tokens=1).tpot_s is None
    assert Answer(Request("a", 1), 0.0).ttft_s is None
    assert Answer(Request("a", 3), 0.0, events=[1.0, 2.0], tokens=3).tpot_s == 0.5
