"""An engine that costs little: `python -m argosy_bench.gateway.idle_engine --port 1 --period-s 1`.

It answers each request as an engine of ours does, in the same bytes, but computes nothing. A stream
has as many tokens as `max_tokens` asks for, one in each period of `--period-s`; the first comes at
once. As `--engine vllm` it names no pod, and says where a prompt's KV is if it is asked.
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
_OK = b"HTTP/1.1 200 OK\r\n"
_HEAD = _OK + b"x-argosy-pod: %b\r\n" % POD.encode()
_STREAM = _HEAD + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_USAGE = {"prompt_tokens": 100, "completion_tokens": 1}
_ANSWER = {"choices": [{"text": " word"}], "usage": _USAGE}
_WHOLE = json.dumps(_ANSWER).encode()
_PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [list(range(16))],
    "remote_engine_id": "42aa01b3-0000-4000-8000-000000000000",
    "remote_request_id": "cmpl-0123456789abcdef-0-ace95174",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 100,
}
_COMPUTED = json.dumps(
    {**_ANSWER, "prompt_token_ids": list(range(100)), "kv_transfer_params": _PARAMS}
).encode()
"""What a prefill pod of vLLM answers."""


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

    def __init__(self, period_s: float, kind: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._period_s = period_s
        self._head = _OK if kind == "vllm" else _HEAD
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
            computes = (request.get("kv_transfer_params") or {}).get("do_remote_decode")
            whole = _COMPUTED if computes else _WHOLE
            self._transport.write(
                b"%bcontent-length: %d\r\n\r\n%b" % (self._head, len(whole), whole)
            )
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


async def _serve(port: int, period_s: float, kind: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Answers(period_s, kind), "127.0.0.1", port, backlog=1024
    )
    await server.serve_forever()


@contextlib.asynccontextmanager
async def idle_engine(*, period_s: float, kind: str = "argosy") -> AsyncIterator[Server]:
    """Run it as a process of its own."""
    port = free_port()
    words = f"""-m argosy_bench.gateway.idle_engine --port {port} --period-s {period_s}
        --engine {kind}"""
    async with running("engine", (sys.executable, *words.split()), port) as server:
        yield server


def main() -> None:
    """Command line: serve until the process is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--period-s", type=float, required=True)
    parser.add_argument("--engine", choices=("argosy", "vllm"), default="argosy")
    asked = parser.parse_args()
    uvloop.run(_serve(asked.port, asked.period_s, asked.engine))


if __name__ == "__main__":
    main()
