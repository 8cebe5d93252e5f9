"""Clients that do not read, do not send, or speak HTTP/1.0 cost other clients nothing."""

import asyncio
import contextlib
import json
import socket

import httpx
import pytest

from argosy_gateway.config import Limits
from tests.gateway.engines import Engine, front
from tests.support.loops import on_both_loops

pytestmark = pytest.mark.slow

PATH = "/v1/chat/completions"
STREAM = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
TOO_MUCH = b'{"choices":[{"delta":{"content":"' + b"x" * 65_536 + b'"}}]}'


def client(f):
    return httpx.AsyncClient(base_url=f.url, timeout=30, verify=False)


def request(body, *more, version="1.1"):
    """A request as bytes; `more` are header lines."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {PATH} HTTP/{version}", "host: x", f"content-length: {len(data)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + data


async def dial(f):
    """A connection with a small window, so that little is in flight while its client stalls."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", httpx.URL(f.url).port))
    return sock


async def dead_reader(f):
    """A connection that asks for a stream and never reads."""
    sock = await dial(f)
    await asyncio.get_running_loop().sock_sendall(sock, request(STREAM))
    return sock


async def flood(call):
    """More than all buffers on the way take; returns when the gateway hangs up."""
    await call.begin_stream()
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            await call.event(TOO_MUCH)
        await call.gone()


@on_both_loops
async def test_a_client_that_reads_slowly_is_left_alone_and_one_that_stops_is_not():
    async with front(Engine("a", flood)) as f:
        sock, now = await dead_reader(f), f.state.clock
        await f.until(lambda: f.guards() and f.guards()[0].flow.write_paused)
        (guard,) = f.guards()
        for _ in range(3):
            read = 0
            while read < 1_500_000:  # more than all buffers hold
                read += len(await asyncio.get_running_loop().sock_recv(sock, 65_536))
            guard.check_time(now() + 29)
            for relay in f.state.relays:
                relay.check_time(now() + 31)  # a long write is no silence of the engine
            assert f.state.relays
            assert not guard.transport.is_closing()
        await f.until(lambda: guard.flow.write_paused)
        guard.check_time(now() + 29)
        guard.check_time(now() + 29 + 31)
        await f.settled()
        assert f.count("argosy_requests_completed_total", result="client_gone") == 1
        sock.close()


@on_both_loops
async def test_clients_that_never_read_do_not_hold_the_end_of_the_process():
    engine = Engine("a", flood)
    limits = Limits(write_stall_s=0.3)
    sockets = []
    async with asyncio.timeout(60), front(engine, limits=limits, drain_timeout_s=300) as f:
        sockets += [await dead_reader(f) for _ in range(10)]
        await f.until(lambda: len(engine.calls) == 10)
    for sock in sockets:
        sock.close()


@on_both_loops
async def test_bodies_that_never_end_are_bounded_and_the_oldest_goes_first():
    limits = Limits(body_bytes=100_000, arriving_bytes=400_000)
    async with front(Engine("a"), limits=limits, max_queue=100) as f, client(f) as c:
        begun = []
        for _ in range(150):
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(f.url).port)
            writer.write(request(b"x" * 100_000)[:-1])
            await writer.drain()
            begun.append((reader, writer))
            assert f.state.bodies.arriving <= 400_000
        assert (await begun[0][0].readline()).split(b" ")[1] == b"503"
        await f.until(lambda: f.state.bodies.arriving > 300_000)
        assert (await c.post(PATH, json=STREAM)).status_code == 200
        for _, writer in begun:
            writer.close()
        await f.until(lambda: f.state.bodies.arriving == 0)


@on_both_loops
async def test_of_two_pipelined_requests_the_first_does_not_outlive_its_client():
    async def hang(call):
        await call.gone()

    engine = Engine("a", hang)
    for apart in (False, True):
        async with front(engine) as f:
            _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(f.url).port)
            writer.write(request(STREAM) * (1 if apart else 2))
            await f.until(lambda: f.state.relays)
            if apart:
                writer.write(request(STREAM))
                await writer.drain()
                await f.until(lambda: any(guard.surplus for guard in f.guards()))
            writer.close()
            await f.settled()
