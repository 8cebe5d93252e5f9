"""Kept connections without sockets: what is dialled, what the kernel is told, what a sweep closes.

`test_pool.py` has the same pool over sockets.
"""

import asyncio
import socket

import pytest

from argosy_gateway.errors import UnreachableError
from argosy_gateway.wire.pool import Peer, Pool
from tests.gateway.transports import Network
from tests.gateway.wire.lines import HELLO, rest
from tests.support.virtual import timed

PEER = Peer("uid", "10.0.0.1", 8000, None)
LIMITS = {"idle_s": 4.0, "most_of_one": 8, "most": 8, "most_body_bytes": 100}


class World:
    def __init__(self, **limits):
        self.network = Network()
        loop = asyncio.get_running_loop()
        self.pool = Pool(loop.time, **{**LIMITS, **limits})

    async def post(self, peer=PEER, body=b"", connect_s=2.0, **more):
        return await self.pool.post(peer, "/v1", [("a", "b")], body, connect_s=connect_s, **more)

    async def answered(self, peer=PEER, **more):
        """A request and its whole answer."""
        exchange = await self.post(peer, **more)
        exchange.data_received(HELLO)
        assert await rest(exchange) == [b"hello"]
        exchange.release()

    @property
    def open(self):
        return [not connection.closing for connection in self.network.connections]


@timed
async def test_requests_follow_each_other_on_one_connection_in_whole_parts():
    w = World()
    for body in (b"one", b"x" * 100, b""):
        await w.answered(body=body)
    assert w.network.dialled == [("10.0.0.1", 8000, None)]
    head = b"POST /v1 HTTP/1.1\r\nhost: 10.0.0.1:8000\r\na: b\r\ncontent-length: %d\r\n\r\n"
    assert w.network.connections[0].parts == [
        head % 3 + b"one",
        head % 100 + b"x" * 100,
        head % 0,
    ]


@pytest.mark.parametrize(("connect_s", "millis"), [(2.0, 2000), (0.25, 250), (1.0005, 1000)])
@timed
async def test_the_kernel_ends_a_kept_connection_whose_peer_takes_nothing_in(connect_s, millis):
    w = World()
    await w.post(connect_s=connect_s)
    (connection,) = w.network.connections
    assert connection.socket.options == {}, "a new one has shown that its peer is there"
    connection.protocol.data_received(HELLO)
    exchange = connection.protocol
    assert await rest(exchange) == [b"hello"]
    exchange.release()
    assert connection.socket.options == {(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): millis}


@timed
async def test_a_peer_that_cannot_be_reached_loses_its_kept_connections_and_others_keep_theirs():
    w = World()
    other = PEER._replace(uid="other")
    await w.answered()
    await w.answered(other)
    w.network.fails = OSError("refused")
    with pytest.raises(UnreachableError) as unreachable:
        await w.post(fresh=True)
    assert str(unreachable.value) == "10.0.0.1:8000: refused"
    assert w.open == [False, True]
    assert len(w.pool) == 1
    await w.answered(other)


@timed
async def test_a_connection_is_used_for_4_s_after_its_last_answer():
    w = World()
    await w.answered()
    await asyncio.sleep(3.999)
    await w.answered()
    await asyncio.sleep(3.999)
    w.pool.sweep(lambda _: True)
    assert w.open == [True]
    await asyncio.sleep(0.002)
    await w.answered()
    assert w.open == [False, True]
    await asyncio.sleep(4.001)
    w.pool.sweep(lambda _: True)
    assert w.open == [False, False]
    assert len(w.pool) == 0


@timed
async def test_what_arrives_on_a_connection_that_waits_closes_it():
    w = World()
    await w.answered()
    w.network.connections[0].protocol.data_received(b"H")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert w.network.connections[0].aborted
    assert len(w.pool) == 0


@pytest.mark.parametrize(
    ("limits", "kept"), [({"most_of_one": 2}, 2), ({"most": 3}, 3), ({}, 5), ({"most": 0}, 0)]
)
@timed
async def test_so_many_connections_are_kept(limits, kept):
    w = World(**limits)
    exchanges = [await w.post() for _ in range(5)]
    for exchange in exchanges:
        exchange.data_received(HELLO)
        assert await rest(exchange) == [b"hello"]
        exchange.release()
    assert len(w.pool) == kept
    assert w.open == [True] * kept + [False] * (5 - kept)
    w.pool.close()
    assert not any(w.open)
    assert (len(w.pool), w.pool._idle) == (0, {})


@pytest.mark.parametrize(("size", "kept"), [(100, True), (101, False)])
@timed
async def test_only_a_short_body_goes_over_a_connection_that_is_kept(size, kept):
    w = World()
    await w.answered(body=b"x" * size)
    assert w.open == [kept]
