"""A client's connection without a socket: what it may take, and what follows."""

import asyncio

import pytest

from argosy_gateway.server.app import CLIENT, RECEIVED_AT
from tests.gateway.server.clients import (
    GET,
    HI,
    HI_ANSWER,
    START,
    TOO_LARGE,
    Client,
    Echo,
    Server,
    refused,
    turns,
)
from tests.support.virtual import timed

# Time.


@timed
async def test_a_connection_that_sends_nothing_is_closed_after_5_s():
    client = Server(Echo()).client()
    await asyncio.sleep(4.99)
    assert client.open
    await asyncio.sleep(0.02)
    assert not client.open
    assert client.transport.written == b""


@pytest.mark.parametrize("begun", [b"G", GET])
@timed
async def test_a_head_may_take_10_s_from_its_first_byte(begun):
    client = Server(Echo()).client()
    await asyncio.sleep(4)
    await client.sends(begun)
    await asyncio.sleep(9)
    await client.sends(b"E" if begun == b"G" else b"a: b\r\n")
    await asyncio.sleep(0.99)
    assert client.open
    await asyncio.sleep(0.02)
    assert not client.open
    assert client.transport.written == b""


@timed
async def test_a_connection_waits_65_s_for_its_next_request():
    client = Server(Echo()).client()
    for _ in range(2):
        await asyncio.sleep(4)
        assert await client.sends(HI) == HI_ANSWER
        await asyncio.sleep(60)
    await asyncio.sleep(4.99)
    assert client.open
    await asyncio.sleep(0.02)
    assert not client.open


@timed
async def test_a_request_is_received_when_its_first_byte_is():
    app, loop = Echo(), asyncio.get_running_loop()
    client = Server(app).client()
    await asyncio.sleep(1)
    began = loop.time()
    await client.sends(HI[:1])
    await asyncio.sleep(3)
    await client.sends(HI[1:])
    assert app.scopes[0]["state"][RECEIVED_AT] == pytest.approx(began)


# The size of a head.


def head_of(size):
    """A head whose target, names and values have so many bytes, with four more a header."""
    fixed = len(b"/a") + len(b"hostx") + 4 + len(b"a") + 4
    return GET + b"a: " + b"b" * (size - fixed) + b"\r\n\r\n"


@timed
async def test_a_head_in_one_piece_may_have_32_kib():
    server = Server(Echo())
    client = server.client()
    assert (await client.sends(head_of(32_768))).startswith(b"HTTP/1.1 200 OK\r\n")
    assert await server.client().sends(head_of(32_769)) == TOO_LARGE


@timed
async def test_of_a_refused_head_nothing_more_is_read():
    app = Echo()
    client = Server(app).client()
    client.guard.data_received(head_of(40_000) + HI)
    client.guard.data_received(HI)
    await turns()
    assert client.transport.written == TOO_LARGE
    assert app.scopes == []


# How many connections.


@timed
async def test_a_process_has_64_connections_and_two_for_each_place_in_its_queue():
    app = Echo()
    app.go_on.clear()
    server = Server(app, max_queue=3)
    clients = [server.client() for _ in range(70)]
    for client in clients:
        await client.sends(HI)
    assert all(client.open for client in clients)
    last = server.client()
    assert last.transport.written == refused(b"503 Service Unavailable", "Too many connections.")
    assert not last.open
    assert all(client.open for client in clients)


def crowd(app):
    """A server without a queue, and as many connections as it takes."""
    server = Server(app, max_queue=0)
    clients = [server.client() for _ in range(64)]
    return server, clients


@timed
async def test_the_connection_that_is_idle_for_longest_makes_room():
    server, clients = crowd(Echo())
    for client in (clients[5], clients[3], clients[9]):
        await client.sends(HI)
        await asyncio.sleep(1)
    assert server.client().open
    assert [client.open for client in (clients[5], clients[3], clients[9])] == [False, True, True]
    assert server.client().open
    assert [client.open for client in (clients[3], clients[9])] == [False, True]
    assert sum(client.open for client in clients) == 62


@timed
async def test_a_connection_in_use_makes_no_room():
    app = Echo()
    app.go_on.clear()
    server, clients = crowd(app)
    for client in clients:
        await client.sends(HI)
    assert not server.client().open
    app.go_on.set()
    await turns()
    assert server.client().open


# Clients that do not read.


def stalls(client, now, unsent):
    client.transport.unsent = unsent
    client.guard.check_time(now)
    return client.transport.aborted


@timed
async def test_a_whole_answer_that_is_not_read_is_given_up_after_30_s():
    client = Server(Echo()).client()
    await client.sends(HI)
    assert not stalls(client, 1000, 42)
    assert not stalls(client, 1030, 42)
    assert stalls(client, 1030.01, 42)


# What a stream writes at once.


class Held:
    """An app whose answer a test sends itself."""

    def __init__(self):
        self.scope = self.send = None
        self.end = asyncio.Event()

    async def __call__(self, scope, receive, send):
        self.scope, self.send = scope, send
        await self.end.wait()

    @property
    def body(self):
        return self.scope["state"][CLIENT]


async def streaming(*headers) -> tuple[Held, Client]:
    app = Held()
    client = Server(app).client()
    await client.sends(GET + b"\r\n")
    assert not app.body.has_room, "the answer has not begun"
    await app.send({**START, "headers": list(headers)})
    assert not app.body.has_room, "its head waits for the first part"
    await app.send({"type": "http.response.body", "body": b"first", "more_body": True})
    return app, client


@timed
async def test_a_part_that_is_written_at_once_is_a_chunk_like_others():
    app, client = await streaming()
    app.body.write(b"x" * 26)
    await app.send({"type": "http.response.body", "body": b"y", "more_body": True})
    assert client.transport.written == (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        b"5\r\nfirst\r\n1a\r\n" + b"x" * 26 + b"\r\n1\r\ny\r\n"
    )
    await app.send({"type": "http.response.body", "body": b""})
    assert not app.body.has_room, "the answer is whole"


@timed
async def test_a_client_that_reads_slowly_or_has_left_gets_no_part_at_once():
    app, client = await streaming()
    assert app.body.has_room
    client.guard.pause_writing()
    assert not app.body.has_room
    client.guard.resume_writing()
    assert app.body.has_room
    client.guard.connection_lost(None)
    assert not app.body.has_room
