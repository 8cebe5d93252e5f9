"""The gateway's HTTP client before servers that answer in every way, on both event loops."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from argosy_gateway.errors import BrokenError
from argosy_gateway.wire import http1
from tests.support.loops import on_both_loops

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def asked(answer: Answer) -> AsyncIterator[http1.Exchange]:
    """One call of a server that answers like this and then closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    exchange = await http1.call("127.0.0.1", port, method="GET", target="/", connect_s=5)
    try:
        async with asyncio.timeout(10):
            yield exchange
    finally:
        exchange.abort()
        server.close()


def bytes_of(data: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return answer


async def whole(exchange: http1.Exchange) -> bytes:
    body = b""
    while part := await exchange.read():
        body += part
    return body


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"content-length: 5\r\n\r\nhello",
        CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        CHUNKED + b"5;ext=1\r\nhello\r\n0\r\ntrailer: x\r\n\r\n",
        HEAD + b"\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 5\r\n\r\nhello",
        HEAD + b"content-length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\nstranger's",
    ],
)
@on_both_loops
async def test_an_answer_is_read_whole_in_each_framing(answer):
    async with asked(bytes_of(answer)) as exchange:
        assert (await exchange.head()).status == 200
        assert await whole(exchange) == b"hello"


BROKEN_HEADS = [
    b"",
    b"\r\n\r\n\r\n",
    b"hello\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"HTTP/1.1\r\n\r\n",
    b"HTTP/2.7 200 OK\r\n\r\n",
    b"HTTP/1.1 20 OK\r\n\r\n",
    b"HTTP/1.1 2000 OK\r\n\r\n",
    b"HTTP/1.1 -200 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n: empty name\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nspace : x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nnul: a\0b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncr: a\rb: c\r\n\r\n",
    b"HTTP/1.1 200 OK\r\na: b",
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nbytes",
    HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    HEAD + b"content-length: -5\r\n\r\nhello",
    HEAD + b"content-length: 5x\r\n\r\nhello",
    HEAD + b"content-length: 99999999999999999999\r\n\r\nhello",
    HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    HEAD + b"x: " + b"y" * 400_000 + b"\r\n\r\n",
    HEAD + b"x: y\r\n" * 80_000 + b"\r\n",
]


@pytest.mark.parametrize("answer", BROKEN_HEADS, ids=range(len(BROKEN_HEADS)))
@on_both_loops
async def test_a_malformed_head_is_a_failure_and_no_answer(answer):
    async with asked(bytes_of(answer)) as exchange:
        with pytest.raises(BrokenError):
            await exchange.head()


BROKEN_BODIES = [
    HEAD + b"content-length: 6\r\n\r\nhello",
    CHUNKED,
    CHUNKED + b"5\r\nhello\r\n",
    CHUNKED + b"5\r\nhello\r\n0\r\n",
    CHUNKED + b"5\r\nhello0\r\n\r\n",
    CHUNKED + b"6\r\nhello\r\n0\r\n\r\n",
    CHUNKED + b"x\r\nhello\r\n0\r\n\r\n",
    CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
    CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n",
    CHUNKED + b"5\nhello\n0\n\n",
    CHUNKED + b"ffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked, identity\r\ncontent-length: 5\r\n\r\nhello",
]


@pytest.mark.parametrize("answer", BROKEN_BODIES, ids=range(len(BROKEN_BODIES)))
@on_both_loops
async def test_a_malformed_body_is_a_failure_and_never_a_whole_answer(answer):
    async with asked(bytes_of(answer)) as exchange:
        with pytest.raises(BrokenError):
            await whole(exchange)


class Steps:
    """A server that sends its next part when it is told to."""

    def __init__(self, *parts: bytes) -> None:
        self.parts, self.next = parts, asyncio.Semaphore(1)

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        for part in self.parts:
            await self.next.acquire()
            writer.write(part)
            await writer.drain()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@on_both_loops
async def test_what_is_taken_at_its_arrival_is_not_read_and_what_is_not_taken_is():
    steps = Steps(CHUNKED, chunk(b"one"), chunk(b"two"), chunk(b"three") + b"0\r\n\r\n")
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        if data == b"one":
            taken.append(data)
            steps.next.release()
            return True
        return False

    async with asked(steps) as exchange:
        await exchange.head()
        exchange.on_arrival = take
        reading = asyncio.create_task(exchange.read())
        await asyncio.sleep(0)
        began = exchange.waiting_since
        assert began is not None
        steps.next.release()
        assert await reading == b"two"
        assert taken == [b"one"]
        exchange.on_arrival = lambda _: pytest.fail("the end of the body is the reader's")
        reading = asyncio.create_task(exchange.read())
        await asyncio.sleep(0)
        steps.next.release()
        assert await reading == b"three"
        assert await exchange.read() == b""
