"""Kept connections before servers that answer in every way, on both event loops."""

import asyncio
import contextlib
import ctypes
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from argosy_gateway.errors import BrokenError, ShortageError, StaleError, UnreachableError
from argosy_gateway.wire import pool
from argosy_gateway.wire.pool import Peer, Pool
from tests.support.loops import on_both_loops

HEAD = b"HTTP/1.1 200 OK\r\n"
HELLO = HEAD + b"content-length: 5\r\n\r\nhello"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"

CLOSE = None
"""In place of an answer: the server closes the connection."""


class Server:
    """A server that answers each request with the next answer of its list."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.connections: list[asyncio.StreamWriter] = []
        self.requests: list[tuple[int, bytes]] = []
        """The number of its connection, and its head."""
        self.ended: set[int] = set()
        """Numbers of the connections that the client closed."""
        self.changed = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.connections)
        self.connections.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.split(b"content-length: ")[1].split()[0]))
                self.requests.append((number, head))
                answer = self.answers.pop(0)
                if answer is CLOSE:
                    writer.close()
                    return
                writer.write(answer)
        self.ended.add(number)
        async with self.changed:
            self.changed.notify_all()
        writer.close()

    async def sees_end_of(self, number: int) -> None:
        async with asyncio.timeout(5), self.changed:
            await self.changed.wait_for(lambda: number in self.ended)

    @property
    def used(self) -> list[int]:
        """For each request the number of its connection."""
        return [number for number, _ in self.requests]


class World:
    """A pool, a server, and a time that stands still."""

    def __init__(self, *answers: bytes | None, **limits: float) -> None:
        self.server = Server(*answers)
        self.now = 100.0
        given = {"idle_s": 4.0, "most_of_one": 8, "most": 8, "most_body_bytes": 100, **limits}
        self.pool = Pool(lambda: self.now, **given)  # type: ignore[arg-type]
        self.peer = Peer("uid", "127.0.0.1", 0, None)

    async def ask(self, peer: Peer | None = None, body: bytes = b"", *, fresh: bool = False):
        return await self.pool.post(
            peer or self.peer, "/", [("a", "b")], body, connect_s=5, fresh=fresh
        )

    async def whole(self, peer: Peer | None = None, body: bytes = b"") -> bytes:
        """An answer, read to its end."""
        exchange = await self.ask(peer, body)
        await exchange.head()
        data = b""
        while part := await exchange.read():
            data += part
        exchange.release()
        return data

    async def kept(self, count: int) -> None:
        """Wait until so many connections are kept."""
        async with asyncio.timeout(5):
            while len(self.pool) != count:  # noqa: ASYNC110 (no event says so)
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def world(*answers: bytes | None, **limits: float) -> AsyncIterator[World]:
    here = World(*answers, **limits)
    server = await asyncio.start_server(here.server.serve, "127.0.0.1", 0)
    here.peer = here.peer._replace(port=server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(20):
            yield here
    finally:
        here.pool.close()
        server.close()
        for writer in here.server.connections:
            writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (HELLO, b"hello"),
        (CHUNKED + b"5\r\nhello\r\n" + LAST, b"hello"),
        (CHUNKED + b"5;ext=1\r\nhello\r\n0\r\ntrailer: x\r\n\r\n", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HELLO, b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n", b""),
    ],
)
@on_both_loops
async def test_after_a_whole_answer_the_next_request_uses_the_same_connection(answer, body):
    async with world(answer, HELLO) as w:
        assert await w.whole() == body
        assert len(w.pool) == 1
        assert await w.whole() == b"hello"
        assert w.server.used == [0, 0]
        assert len(w.pool) == 1


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"connection: close\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 5\r\n\r\nhello",
        HELLO + HELLO,
        HELLO + b"stray",
        CHUNKED + b"5\r\nhello\r\n" + LAST + b"HTTP/1.1 200 OK\r\n",
    ],
)
@on_both_loops
async def test_a_connection_that_is_to_close_or_has_more_on_it_is_not_used_again(answer):
    async with world(answer, HELLO) as w:
        assert await w.whole() == b"hello"
        assert len(w.pool) == 0
        await w.server.sees_end_of(0)
        assert await w.whole() == b"hello"
        assert w.server.used == [0, 1]


@pytest.mark.parametrize("answer", [CHUNKED + b"5\r\nhello\r\n", HEAD + b"content-length: 9\r\n"])
@on_both_loops
async def test_an_aborted_request_closes_its_connection(answer):
    async with world(answer) as w:
        exchange = await w.ask()
        exchange.abort()
        await w.server.sees_end_of(0)
        exchange.release()
        assert len(w.pool) == 0


@on_both_loops
async def test_a_released_stream_is_kept_when_the_end_of_its_body_has_come():
    async with world(CHUNKED + b"5\r\nhello\r\n", HELLO) as w:
        exchange = await w.ask()
        assert await exchange.read() == b"hello"
        exchange.release()
        assert len(w.pool) == 0
        w.server.connections[0].write(LAST)
        await w.kept(1)
        assert await w.whole() == b"hello"
        assert w.server.used == [0, 0]


@pytest.mark.parametrize("other", [{"uid": "new"}, {"host": "localhost"}])
@on_both_loops
async def test_another_pod_at_the_same_address_gets_a_connection_of_its_own(other):
    async with world(HELLO, HELLO, HELLO) as w:
        await w.whole()
        await w.whole(w.peer._replace(**other))
        await w.whole()
        assert w.server.used == [0, 1, 0]


@on_both_loops
async def test_a_kept_connection_that_ends_before_the_answer_is_stale():
    async with world(HELLO, CLOSE) as w:
        await w.whole()
        exchange = await w.ask()
        with pytest.raises(StaleError, match=r"connection closed early \(end of stream\)"):
            await exchange.head()


@on_both_loops
async def test_a_kept_connection_that_ends_within_the_answer_is_a_failure_and_not_stale():
    async with world(HELLO, b"H") as w:
        await w.whole()
        exchange = await w.ask()
        async with asyncio.timeout(5):
            while not exchange._head_bytes:  # noqa: ASYNC110 (no event says so)
                await asyncio.sleep(0.001)
        w.server.connections[0].close()
        with pytest.raises(BrokenError) as error:
            await exchange.head()
        assert not isinstance(error.value, StaleError)


@on_both_loops
async def test_a_new_connection_takes_the_descriptor_of_one_that_waits(monkeypatch):
    async with world(HELLO, HELLO) as w:
        await w.whole()
        await w.kept(1)
        connect, tried = pool.connect, []

        async def out_of_descriptors(*args, **options):
            tried.append(len(w.pool))
            if len(tried) == 1:
                raise ShortageError("[Errno 24] Too many open files")
            return await connect(*args, **options)

        monkeypatch.setattr(pool, "connect", out_of_descriptors)
        (await w.ask(fresh=True)).abort()
        assert tried == [1, 0]
        await w.server.sees_end_of(0)


def deaf(sock: socket.socket) -> None:
    """Drop all packets that come for this socket, as if its pod had vanished."""
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    program = struct.pack("HL", 1, ctypes.addressof(drop_all))
    sock.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER


@on_both_loops
async def test_a_kept_connection_to_a_pod_that_vanished_ends_when_a_new_one_would_have():
    async with world(HELLO) as w:
        exchange = await w.pool.post(w.peer, "/", [], b"", connect_s=0.25)
        assert await exchange.read() == b"hello"
        exchange.release()
        deaf(w.server.connections[0].get_extra_info("socket"))
        exchange = await w.ask()
        with pytest.raises(UnreachableError, match="a kept connection is dead"):
            await exchange.head()
