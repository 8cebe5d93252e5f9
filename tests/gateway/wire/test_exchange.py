"""One HTTP/1.1 call, fed byte by byte in virtual time: each limit at the byte where it lies.

`test_http1.py` and `test_pool.py` meet the same answers over sockets.
"""

import asyncio
import ssl

import pytest

from argosy_gateway.errors import BrokenError, StaleError, UnreachableError
from argosy_gateway.wire.http1 import Exchange, Head, call, connect
from tests.gateway.transports import Network
from tests.gateway.wire.lines import (
    CHUNKED,
    ENDLESS,
    HELLO,
    KIB_64,
    KIB_256,
    OK,
    Line,
    chunk,
    fails,
    rest,
)
from tests.support.virtual import timed

# What an answer says.


@timed
async def test_an_answer_may_arrive_byte_by_byte():
    line = Line()
    head = asyncio.create_task(line.exchange.head())
    for at in range(len(HELLO)):
        assert line.exchange.answered == (at > HELLO.index(b"hello") - 1)
        line.feed(HELLO[at : at + 1])
        await asyncio.sleep(0)
    assert await head == Head(200, ((b"content-length", b"5"),))
    assert await rest(line.exchange) == [b"hello"]


@timed
async def test_an_interim_answer_and_its_headers_are_no_part_of_the_answer():
    line = Line()
    line.feed(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
    assert not line.exchange.answered
    line.feed(HELLO)
    assert await line.exchange.head() == Head(200, ((b"content-length", b"5"),))


# Limits.


@pytest.mark.parametrize(("size", "refused"), [(KIB_64, False), (KIB_64 + 1, True)])
@timed
async def test_a_head_may_have_64_kib(size, refused):
    line = Line()
    line.feed(OK)
    line.feed(b"a: " + b"b" * (size - len(OK) - 3))
    if refused:
        assert await fails(line.exchange.head()) == "response headers larger than 64 KiB"
        assert line.fate == "closed"
        return
    line.feed(b"\r\ncontent-length: 1\r\n\r\n", b"x")
    assert (await line.exchange.head()).status == 200
    assert await line.exchange.read() == b"x"


@timed
async def test_the_socket_is_not_read_while_more_than_256_kib_wait():
    line = Line()
    line.feed(ENDLESS)
    for _ in range(2):
        line.feed(bytes(KIB_256 - 1), b"x")
        assert line.reading, "256 KiB may wait"
        line.feed(b"x")
        assert not line.reading
        line.feed(b"from the last read of the socket")
        assert len(await line.exchange.read()) == KIB_256 + 33
        assert line.reading
    assert line.transport.reads == [False, True, False, True]


@timed
async def test_bytes_that_are_taken_at_their_arrival_do_not_wait():
    line, taken = Line(), []
    line.feed(ENDLESS)
    await line.exchange.head()
    line.exchange.on_arrival = lambda data: taken.append(len(data)) or True
    reading = asyncio.create_task(line.exchange.read())
    await asyncio.sleep(3)
    began = line.exchange.waiting_since
    line.feed(bytes(KIB_256 + 1))
    assert line.exchange.waiting_since - began == pytest.approx(3)
    line.exchange.on_arrival = None
    line.feed(b"rest")
    assert await reading == b"rest"
    line.feed(bytes(KIB_256))
    assert (taken, line.transport.reads) == ([KIB_256 + 1], [])
    await line.exchange.read()


# Failures.


@pytest.mark.parametrize("answer", [b"HTTP/2 200\r\n\r\n", b"\x16\x03\x01", b"SSH-2.0-x\r\n"])
@timed
async def test_what_is_no_http_is_said_to_be_none(answer):
    line = Line()
    head = asyncio.create_task(line.exchange.head())
    await asyncio.sleep(0)
    line.feed(answer)
    assert (await fails(head)).startswith("not HTTP/1.1: ")
    assert line.fate == "closed"


@timed
async def test_an_abort_wakes_the_reader_and_the_first_reason_stays():
    line = Line()
    head = asyncio.create_task(line.exchange.head())
    await asyncio.sleep(1)
    line.exchange.abort()
    line.exchange.abort("later")
    assert await fails(head) == "aborted"
    assert line.fate == "closed"


@pytest.mark.parametrize(
    ("fed", "error", "says"),
    [
        (b"", None, "connection closed early (end of stream)"),
        (b"", OSError("reset"), "connection closed early (reset)"),
        (b"HTTP/1.1 20", None, "connection closed early (end of stream)"),
        (CHUNKED + chunk(b"one"), None, "connection closed early (end of stream)"),
        (OK + b"content-length: 9\r\n\r\nhello", None, "connection closed early (end of stream)"),
        (OK + b"\r\nhello", OSError("reset"), "connection closed early (reset)"),
    ],
)
@timed
async def test_an_answer_that_is_cut_is_broken(fed, error, says):
    line = Line()
    line.feed(fed)
    line.lose(error)
    assert await fails(rest(line.exchange)) == says


@timed
async def test_a_body_without_a_length_ends_with_its_connection():
    line = Line()
    line.feed(OK + b"\r\nhello")
    reading = asyncio.create_task(rest(line.exchange))
    await asyncio.sleep(1)
    line.lose()
    assert await reading == [b"hello"]


@pytest.mark.parametrize(
    ("fed", "error", "kind", "says"),
    [
        (b"", None, StaleError, "connection closed early (end of stream)"),
        (b"", OSError("reset"), StaleError, "connection closed early (reset)"),
        (
            b"",
            TimeoutError("nobody took it in"),
            UnreachableError,
            "a kept connection is dead: nobody took it in",
        ),
        (b"H", None, BrokenError, "connection closed early (end of stream)"),
        (b"H", TimeoutError("late"), BrokenError, "connection closed early (late)"),
    ],
)
@timed
async def test_a_kept_connection_that_ends_before_the_first_byte_says_nothing_of_the_engine(
    fed, error, kind, says
):
    line = Line(reused=True)
    line.feed(fed)
    line.lose(error)
    assert await fails(line.exchange.head(), kind) == says


# The request.


CLOSE = b"connection: close\r\n"


@pytest.mark.parametrize(
    ("method", "body", "sent"),
    [
        ("GET", b"", b"GET /a HTTP/1.1\r\nhost: api:81\r\nx: y\r\n" + CLOSE + b"\r\n"),
        (
            "POST",
            b"",
            b"POST /a HTTP/1.1\r\nhost: api:81\r\nx: y\r\n" + CLOSE + b"content-length: 0\r\n\r\n",
        ),
        (
            "PUT",
            b"hi",
            b"PUT /a HTTP/1.1\r\nhost: api:81\r\nx: y\r\n" + CLOSE + b"content-length: 2\r\n\r\nhi",
        ),
    ],
)
@timed
async def test_a_call_sends_one_request_in_one_piece_and_asks_for_the_end(method, body, sent):
    network = Network()
    await call("api", 81, method=method, target="/a", headers=[("x", "y")], body=body, connect_s=2)
    assert network.dialled == [("api", 81, None)]
    assert network.connections[0].parts == [sent]


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (OSError("refused"), "10.0.0.1:81: refused"),
        (ssl.SSLError("certificate"), "10.0.0.1:81: ('certificate',)"),
        (TimeoutError(), "10.0.0.1:81: no answer"),
    ],
)
@timed
async def test_a_host_that_cannot_be_reached_is_named(fails, says):
    network = Network()
    network.fails = fails
    with pytest.raises(UnreachableError) as unreachable:
        await connect(Exchange, "10.0.0.1", 81, connect_s=2, tls=None)
    assert str(unreachable.value) == says


@timed
async def test_connecting_takes_no_longer_than_it_may():
    network, began = Network(), asyncio.get_running_loop().time()
    network.silent = True
    with pytest.raises(UnreachableError) as unreachable:
        await connect(Exchange, "10.0.0.1", 81, connect_s=2, tls=None)
    assert str(unreachable.value) == "10.0.0.1:81: no answer"
    assert asyncio.get_running_loop().time() - began == pytest.approx(2)
