"""Every port answers a new caller, however many silent strangers hold connections to it."""

import asyncio
import contextlib
import socket
import ssl
import urllib.request

from argosy.descriptors import Listener
from argosy_fetch import cli
from argosy_operator.shell import health

STRANGERS = 400


class Healthy:
    ready = True

    def stuck(self):
        return None


@contextlib.contextmanager
def strangers(port, said=b"G"):
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(STRANGERS):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            with contextlib.suppress(ConnectionError):
                one.sendall(said)
            made.append(one)
        yield made


def left(made):
    """How many of these connections the other side holds open."""
    for one in made:
        one.setblocking(False)
    return sum(map(_is_open, made))


def _is_open(one):
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


async def test_the_operators_probes_are_answered_beside_strangers_who_send_no_head():
    server = await health.serve(Healthy(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    def ask():
        url = f"http://127.0.0.1:{port}/health"
        with strangers(port) as made, urllib.request.urlopen(url, timeout=3) as answer:
            return answer.status, left(made)

    async with server:
        status, open_ones = await asyncio.to_thread(ask)
    assert status == 200
    assert open_ones <= health._CONNECTIONS


def test_the_progress_of_a_fetch_is_answered_beside_strangers_who_send_no_head(tmp_path):
    with cli.serving(0) as (told, port):
        told.begin(tmp_path, 10)
        with strangers(port) as made:
            url = f"http://127.0.0.1:{port}/progress"
            with urllib.request.urlopen(url, timeout=3) as answer:
                assert answer.status == 200
            assert left(made) <= cli._CONNECTIONS


async def test_a_tls_handshake_that_does_not_go_on_counts():
    listener = Listener(("127.0.0.1", 0), most=3, backlog=8)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server = await asyncio.start_server(lambda *_: None, sock=listener, ssl=context)
    async with server:
        port = listener.getsockname()[1]
        with contextlib.ExitStack() as stack:
            made = []
            for _ in range(10):
                one = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port), 5)
                made.append(stack.enter_context(one))
            async with asyncio.timeout(5):
                while left(made) > 3:  # noqa: ASYNC110 (no event says so)
                    await asyncio.sleep(0.01)
            assert [_is_open(one) for one in made] == 7 * [False] + 3 * [True]


async def test_callers_that_come_while_the_event_loop_is_busy_are_all_answered():
    listener = Listener(("127.0.0.1", 0), most=8, backlog=128)

    class Greeting(asyncio.Protocol):
        def connection_made(self, transport):
            listener.proven(transport.get_extra_info("socket").fileno())
            transport.write(b"x")

    loop = asyncio.get_running_loop()
    async with await loop.create_server(Greeting, sock=listener, backlog=128):
        with contextlib.ExitStack() as stack:
            made = [
                stack.enter_context(socket.create_connection(listener.getsockname(), timeout=5))
                for _ in range(100)  # the event loop has no turn meanwhile
            ]
            answers = [asyncio.to_thread(one.recv, 1) for one in made]
            assert await asyncio.gather(*answers) == 100 * [b"x"]


async def test_who_has_proven_himself_is_never_ended_for_a_stranger():
    listener = Listener(("127.0.0.1", 0), most=2, backlog=8)
    known = []

    async def greet(reader, writer):
        if await reader.readline() == b"known\n":
            listener.proven(writer.get_extra_info("socket").fileno())
            known.append(writer)

    server = await asyncio.start_server(greet, sock=listener)
    async with server:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as friend:
            friend.sendall(b"known\n")
            async with asyncio.timeout(5):
                while not known:  # noqa: ASYNC110 (no event says so)
                    await asyncio.sleep(0.01)
            with await asyncio.to_thread(lambda: contextlib.ExitStack()) as stack:
                made = [
                    stack.enter_context(
                        await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port), 5)
                    )
                    for _ in range(5)
                ]
                async with asyncio.timeout(5):
                    while left(made) > 2:  # noqa: ASYNC110 (no event says so)
                        await asyncio.sleep(0.01)
                friend.setblocking(False)
                assert _is_open(friend)
