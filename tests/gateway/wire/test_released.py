"""What becomes of a connection after its answer: kept for the next request, or closed."""

import asyncio

import pytest

from tests.gateway.wire.lines import CHUNKED, HELLO, LAST, OK, Line, chunk, rest
from tests.support.virtual import timed


@pytest.mark.parametrize(
    ("answer", "fate"),
    [
        (HELLO, "kept"),
        (CHUNKED + chunk(b"hello") + LAST, "kept"),
        (OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", "closed"),
        (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 5\r\n\r\nhello", "closed"),
        (HELLO + b"H", "closed"),
        (HELLO + HELLO, "closed"),
    ],
)
@timed
async def test_a_whole_answer_leaves_its_connection_if_that_stays_open_and_brings_nothing_more(
    answer, fate
):
    line = Line()
    line.feed(answer)
    assert await rest(line.exchange) == [b"hello"]
    line.exchange.release()
    assert line.fate == fate


@timed
async def test_a_connection_that_nobody_keeps_is_closed():
    line = Line(keeps=False)
    line.feed(HELLO)
    assert await rest(line.exchange) == [b"hello"]
    line.exchange.release()
    assert line.fate == "closed"


@timed
async def test_an_answer_with_unread_bytes_leaves_no_connection():
    for answer in (HELLO, CHUNKED + chunk(b"hello")):
        line = Line()
        line.feed(answer)
        line.exchange.release()
        assert line.fate == "closed"


@timed
async def test_a_released_stream_may_end_within_a_second():
    line = Line()
    line.feed(CHUNKED + chunk(b"hello"))
    await line.exchange.read()
    line.exchange.release()
    await asyncio.sleep(0.999)
    assert line.fate == "open"
    line.feed(LAST[:2])
    assert line.fate == "open"
    line.feed(LAST[2:])
    assert line.fate == "kept"
    await asyncio.sleep(10)
    assert line.fate == "kept"
    assert not line.transport.aborted


@timed
async def test_a_released_stream_is_closed_after_a_second():
    line = Line()
    line.feed(CHUNKED + chunk(b"hello"))
    await line.exchange.read()
    line.exchange.release()
    await asyncio.sleep(1)
    assert line.fate == "closed"


@pytest.mark.parametrize("more", [chunk(b"!"), chunk(b"!") + LAST, LAST + HELLO, b"x"])
@timed
async def test_a_released_stream_that_goes_on_is_closed_at_once(more):
    line = Line()
    line.feed(CHUNKED + chunk(b"hello"))
    await line.exchange.read()
    line.exchange.release()
    line.feed(more)
    assert line.fate == "closed"


@timed
async def test_a_released_stream_whose_connection_ends_is_over():
    line = Line()
    line.feed(CHUNKED + chunk(b"hello"))
    await line.exchange.read()
    line.exchange.release()
    line.lose()
    assert (line.kept, line.transport.aborted) == ([], True)
    line.transport.aborted = False
    await asyncio.sleep(2)
    assert not line.transport.aborted, "no timer is left"
