"""An engine that costs little: `python -m argosy_bench.gateway.idle_engine --port 1 --period-s 1`.

It answers each request as an engine of ours does, in the same bytes, but computes nothing. A stream
has as many tokens as `max_tokens` asks for, one in each period of `--period-s`; the first comes at
once.
"""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import cast

import httptools
import uvloop

from argosy_bench.ports import free_port
from argosy_bench.processes import Server, running

POD = "engine"
"""The name by which it answers, for the gateway's list of pods."""
_HEAD = b"HTTP/1.1 200 OK\r\nx-argosy-pod: %b\r\n" % POD.encode()
_STREAM = _HEAD + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_USAGE = {"prompt_tokens": 100, "completion_tokens": 1}
_WHOLE = json.dumps({"choices": [{"text": " word"}], "usage": _USAGE}).encode()


def _chunked(*events: object) -> bytes:
    data = b"".join(
        b"data: " + (e if isinstance(e, bytes) else json.dumps(e).encode()) + b"\n\n"
        for e in events
    )
    return b"%x\r\n%b\r\n" % (len(data), data)


_TOKEN = _chunked(
    {
        "id": "cmpl-0123456789abcdef",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "text": " word", "finish_reason": None}],
        "usage": None,
    }
)


class _Answers(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self, period_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._period_s = period_s
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._next: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._left = 0
        self._sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._next is not None:
            self._next.cancel()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        request = json.loads(self._body)
        self._body = b""
        if request.get("stream"):
            self._transport.write(_STREAM)
            self._left, self._sent = request["max_tokens"], 0
            self._due = self._loop.time()
            self._token()
        else:
            self._transport.write(_HEAD + b"content-length: %d\r\n\r\n%b" % (len(_WHOLE), _WHOLE))
            self._close_if_asked()

    def _token(self) -> None:
        if self._left:
            self._left -= 1
            self._sent += 1
            self._transport.write(_TOKEN)
            # An engine that was late keeps its pace, but does not send several tokens at once.
            self._due = max(self._due + self._period_s, self._loop.time())
            self._next = self._loop.call_at(self._due, self._token)
            return
        usage = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": self._sent}}
        self._transport.write(_chunked(usage, b"[DONE]") + b"0\r\n\r\n")
        self._close_if_asked()

    def _close_if_asked(self) -> None:
        if not self._parser.should_keep_alive():
            self._transport.close()


async def _serve(port: int, period_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Answers(period_s), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


@contextlib.asynccontextmanager
async def idle_engine(*, period_s: float) -> AsyncIterator[Server]:
    """Run it as a process of its own."""
    port = free_port()
    words = f"-m argosy_bench.gateway.idle_engine --port {port} --period-s {period_s}"
    async with running("engine", (sys.executable, *words.split()), port) as server:
        yield server


def main() -> None:
    """Command line: serve until the process is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--period-s", type=float, required=True)
    asked = parser.parse_args()
    uvloop.run(_serve(asked.port, asked.period_s))


if __name__ == "__main__":
    main()
