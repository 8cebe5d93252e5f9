"""How an answer is written to its client, and how the app learns that the client has left."""

import asyncio

import uvicorn
from uvicorn.server import ServerState

from argosy_gateway.server.app import CLIENT
from argosy_gateway.server.guard import Guard

HEAD = b"HTTP/1.1 200 OK\r\n"


class Connection(asyncio.Transport):
    """A client's connection that records each write."""

    def __init__(self, app, *lines, method=b"POST", body=b"hi", rest=b""):
        super().__init__()
        self.written, self.closed = [], False
        config = uvicorn.Config(app, log_config=None, server_header=False, date_header=False)
        self.guard = Guard(config, ServerState(), {})
        self.guard.connection_made(self)
        head = [
            method + b" / HTTP/1.1",
            b"host: x",
            b"content-length: %d" % len(body + rest),
            *lines,
        ]
        self.guard.data_received(b"\r\n".join([*head, b"", b""]) + body)
        self.tasks = list(self.guard.tasks)

    def get_extra_info(self, name, default=None):
        return self if name == "socket" else default

    def setsockopt(self, *_):
        """Its buffer may have any size."""

    def getsockname(self):
        return ("127.0.0.1", 1)

    getpeername = getsockname

    def pause_reading(self):
        """Nothing is read."""

    resume_reading = pause_reading

    def write(self, data):
        self.written.append(data)

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    async def ended(self):
        await asyncio.gather(*self.tasks)


def start(*headers):
    return {"type": "http.response.start", "status": 200, "headers": headers}


def part(body, more=False):
    return {"type": "http.response.body", "body": body, "more_body": more}


async def test_the_head_of_a_stream_is_written_with_its_first_event():
    async def app(scope, receive, send):
        await send(start())
        assert connection.written == []
        await send(part(b"one", more=True))
        scope["state"][CLIENT].write(b"two")
        await send(part(b"three"))

    connection = Connection(app)
    await connection.ended()
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    ends = b"5\r\nthree\r\n0\r\n\r\n"
    assert connection.written == [head + b"3\r\none\r\n", b"3\r\ntwo\r\n", ends]


async def test_a_whole_answer_is_one_write_and_each_request_of_a_connection_has_its_own():
    async def app(_scope, _receive, send):
        await send(start((b"content-length", b"2")))
        await send(part(b"ok"))

    connection = Connection(app)
    await connection.ended()
    connection.guard.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await asyncio.gather(*connection.guard.tasks)
    connection.guard.connection_lost(None)
    assert connection.written == [HEAD + b"content-length: 2\r\n\r\nok"] * 2


async def test_an_app_that_fails_behind_the_head_leaves_a_head_and_a_closed_connection():
    async def app(_scope, _receive, send):
        await send(start())
        raise OSError

    connection = Connection(app)
    await connection.ended()
    assert connection.written == [HEAD + b"transfer-encoding: chunked\r\n\r\n"]
    assert connection.closed


async def test_the_app_is_called_when_the_client_leaves_and_not_after_a_whole_answer():
    async def app(scope, _receive, send):
        client = scope["state"][CLIENT]
        client.on_gone(lambda: seen.append("left"))
        await leaves.wait()
        if not seen:
            await send(start((b"content-length", b"0")))
            await send(part(b""))

    for whole in (False, True):
        seen, leaves = [], asyncio.Event()
        connection = Connection(app)
        await asyncio.sleep(0)
        if whole:
            leaves.set()
            await connection.ended()
        connection.guard.connection_lost(None)
        leaves.set()
        await connection.ended()
        assert seen == ([] if whole else ["left"])
