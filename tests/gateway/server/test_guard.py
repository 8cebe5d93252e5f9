"""A client's connection without a socket: what it may take, and what follows."""

import asyncio
import socket

import pytest

from argosy_gateway.config import Limits
from argosy_gateway.server.app import CLIENT, RECEIVED_AT
from tests.gateway.server.clients import (
    GET,
    HI,
    HI_ANSWER,
    POST,
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
async def test_the_guard_sets_a_body_and_an_answer_no_time():
    app = Echo()
    app.go_on.clear()
    client = Server(app).client()
    await client.sends(POST + b"content-length: 2\r\n\r\n")
    await asyncio.sleep(3600)
    await client.sends(b"hi")
    await asyncio.sleep(3600)
    app.go_on.set()
    await turns()
    assert client.transport.written == HI_ANSWER
    assert client.open


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
async def test_the_head_of_the_next_request_has_its_10_s_too():
    client = Server(Echo()).client()
    await client.sends(HI)
    await asyncio.sleep(60)
    await client.sends(GET)
    await asyncio.sleep(9.99)
    assert client.open, "its first byte ended the 65 s"
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


@timed
async def test_a_connection_that_broke_leaves_no_timer():
    client = Server(Echo()).client()
    client.guard.connection_lost(OSError("reset"))
    await asyncio.sleep(10)
    assert client.open, "nothing closed it again"


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
async def test_a_head_in_pieces_may_have_32_kib_with_its_request_line():
    server = Server(Echo())
    begun = GET + b"a: "
    first, second = server.client(), server.client()
    parts = [begun + b"b" * (16_384 - len(begun)), b"b" * 16_384]
    assert await first.sends(*parts) == b""
    assert first.open
    assert await second.sends(*parts, b"b") == TOO_LARGE
    assert not second.open


@timed
async def test_each_request_of_a_connection_may_have_a_head_of_32_kib():
    client = Server(Echo()).client()
    for _ in range(3):
        whole = head_of(30_000)
        assert b" 200 " in await client.sends(whole[:20_000], whole[20_000:])
        assert await client.sends(HI) == HI_ANSWER


@timed
async def test_a_long_body_is_no_long_head():
    app = Echo()
    body = b"x" * 100_000
    head = POST + b"content-length: 100000\r\n\r\n"
    assert (await Server(app).client().sends(head + body)).endswith(body)
    assert (await Server(app).client().sends(head, body[:50_000], body[50_000:])).endswith(body)
    assert {asked[2] for asked in app.asked} == {body}


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
async def test_a_connection_gets_a_send_buffer_of_its_own_size():
    client = Server(Echo(), limits=Limits(send_buffer_bytes=12_345)).client()
    assert client.transport.socket.options == {(socket.SOL_SOCKET, socket.SO_SNDBUF): 12_345}


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
async def test_what_is_idle_but_has_unread_bytes_or_is_closing_makes_no_room():
    app = Echo()
    server, clients = crowd(app)
    for client in clients[:3]:
        await client.sends(HI)
        await asyncio.sleep(0.1)
    app.go_on.clear()
    for client in clients[3:]:
        await client.sends(HI)
    clients[0].transport.unsent = 1
    clients[1].transport.unsent = 1
    clients[1].transport.close()
    new = server.client()
    await new.sends(HI)
    assert [client.open for client in [new, *clients[:3]]] == [True, True, False, False]
    assert not server.client().open, "none is idle any more"


@timed
async def test_of_those_without_a_request_the_oldest_makes_room_after_the_idle_ones():
    server, clients = Server(Echo(), max_queue=0), []
    for _ in range(64):
        clients.append(server.client())
        await asyncio.sleep(0.01)
    await clients[7].sends(HI)
    await clients[0].sends(GET)  # half a head is no request
    assert server.client().open
    assert [n for n, client in enumerate(clients) if not client.open] == [7]
    for new in range(3):
        assert server.client().open
        assert [n for n, client in enumerate(clients) if not client.open] == sorted(
            [7, *range(new + 1)]
        )


@timed
async def test_what_follows_an_answer_and_is_no_request_has_the_time_of_a_head():
    client = Server(Echo()).client()
    await client.sends(HI)
    for _ in range(9):
        await client.sends(b"\r\n")
        await asyncio.sleep(1)
    assert client.open
    await client.sends(b"\r\n")
    await asyncio.sleep(1.02)
    assert not client.open


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
async def test_a_client_that_begins_to_read_has_its_time_anew():
    app = Echo()
    client = Server(app).client()
    await client.sends(HI)
    client.guard.pause_writing()
    assert not stalls(client, 1000, 1)
    assert not stalls(client, 1030, 1)
    client.guard.resume_writing()
    assert not client.guard.flow.write_paused
    client.guard.pause_writing()
    assert not stalls(client, 1031, 1)
    assert not stalls(client, 1061, 1)
    assert stalls(client, 1061.01, 1)


@timed
async def test_a_whole_answer_that_is_not_read_is_given_up_after_30_s():
    client = Server(Echo()).client()
    await client.sends(HI)
    assert not stalls(client, 1000, 42)
    assert not stalls(client, 1030, 42)
    assert stalls(client, 1030.01, 42)


@timed
async def test_an_answer_that_grows_is_no_clients_fault():
    app = Echo()
    app.go_on.clear()
    client = Server(app).client()
    await client.sends(HI)
    for now in (1000, 1040, 1080):
        assert not stalls(client, now, 42)
    client.transport.closing = True
    assert not stalls(client, 1100, 42)
    assert stalls(client, 1120, 42), "nothing grows on a connection that is closed"


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
async def test_an_answer_of_known_length_has_no_parts():
    app, _ = await streaming((b"content-length", b"9"))
    assert app.body.has_room is False


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
