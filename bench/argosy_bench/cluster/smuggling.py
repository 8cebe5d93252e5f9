"""Messages that hide a second request from a server that reads them leniently.

Each is malformed by RFC 9112 (or RFC 9110 for fields), so a server answers it with an error and
closes the connection. A server that reads past the error takes the hidden request for one of its
own. An engine that only remembers what came stands behind a gateway of its own: what it was asked,
and what the client was answered, decides.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

from argosy_bench.processes import MODEL, endpoint, gateway

MARK = "smuggled"
"""In the prompt of every hidden request."""
_PATH = b"/v1/completions"


def _request(prompt: str, model: str) -> bytes:
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 1}).encode()
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % _PATH
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


@dataclass(frozen=True, slots=True)
class Message:
    """One malformed message, sent on a connection of its own."""

    name: str
    sent: bytes
    may_be_answered: bool = False
    """A server may answer what is not hidden, if it closes the connection then (RFC 9112, 6.1)."""


_LENGTHS = {
    "negative": b"-1",
    "with a plus": b"+60",
    "in hexadecimal": b"0x3c",
    "with letters": b"60a",
    "empty": b"",
    "two in one field": b"60, 61",
    "with a space": b"6 0",
    "with an underscore": b"6_0",
    "beyond 64 bits": b"9" * 30,
    "in other digits": "\u0666\u0660".encode(),
}
_CODINGS = {
    "unknown": b"xchunked",
    "chunked is not last": b"chunked, identity",
    "with a parameter": b"chunked;q=1",
    "behind a vertical tab": b"\x0bchunked",
    "twice in one field": b"chunked, chunked",
    "quoted": b'"chunked"',
}
_SIZES = {
    "negative": b"-3c",
    "with a plus": b"+3c",
    "with 0x": b"0x3c",
    "no number": b"zz",
    "empty": b"",
    "beyond 64 bits": b"f" * 20,
    "with an underscore": b"3_c",
    "with NUL": b"3c\x00",
    "behind a space": b" 3c",
}
_FIELDS = {
    "a space before the colon of content-length": b"content-length : 5\r\n",
    "a space before the colon of transfer-encoding": b"transfer-encoding : chunked\r\n",
    "no colon": b"transfer-encoding chunked\r\n",
    "no name": b": chunked\r\n",
    "NUL in a value": b"x-a: b\x00c\r\n",
    "a bare CR in a value": b"x-a: b\rtransfer-encoding: chunked\r\n",
    "a control character in a name": b"x\x01a: b\r\n",
    "a name in quotes": b'"content-length": 5\r\n',
    "a continued line": b"content-length: 1\r\n 0\r\n",
    "a first field that begins with a space": b" content-length: 5\r\n",
}
_LINES = {
    "a space in the target": b"POST /v1/comple tions HTTP/1.1\r\n",
    "a control character in the target": b"POST /v1/completions\x01 HTTP/1.1\r\n",
    "a space in the method": b"PO ST /v1/completions HTTP/1.1\r\n",
    "NUL in the method": b"POST\x00 /v1/completions HTTP/1.1\r\n",
    "a version in lower case": b"POST /v1/completions http/1.1\r\n",
    "a version with letters": b"POST /v1/completions HTTP/1.x\r\n",
    "no version": b"POST /v1/completions\r\n",
}


def messages(model: str) -> Iterator[Message]:
    """The table; `model` is the fleet's served name, so that a hidden request would be answered."""
    hidden = _request(MARK, model)
    body = json.dumps({"model": model, "prompt": "shown", "max_tokens": 1}).encode()
    size = b"%x" % len(body)
    chunks = size + b"\r\n" + body + b"\r\n0\r\n\r\n"
    length = b"content-length: %d\r\n" % len(body)
    chunked = b"transfer-encoding: chunked\r\n"

    def post(fields: bytes, rest: bytes, line: bytes = b"POST %b HTTP/1.1\r\n" % _PATH) -> bytes:
        return line + b"host: x\r\ncontent-type: application/json\r\n" + fields + b"\r\n" + rest

    yield Message("a length and chunks", post(length + chunked, chunks + hidden))
    yield Message("chunks and a length", post(chunked + length, chunks + hidden))
    longer = b"content-length: %d\r\n" % (len(chunks) + len(hidden))
    yield Message("chunks in a longer length", post(chunked + longer, chunks + hidden))
    yield Message("two lengths", post(length + b"content-length: 0\r\n", body + hidden))
    yield Message(
        "chunks in HTTP/1.0",
        post(chunked, chunks + hidden, b"POST %b HTTP/1.0\r\n" % _PATH),
        may_be_answered=True,
    )
    yield Message("two codings", post(chunked + b"transfer-encoding: x\r\n", chunks + hidden))
    for name, value in _LENGTHS.items():
        yield Message(f"length {name}", post(b"content-length: %b\r\n" % value, body + hidden))
    for name, value in _CODINGS.items():
        coding = b"transfer-encoding: %b\r\n" % value
        yield Message(f"coding {name}", post(coding + length, chunks + hidden))
    for name, value in _SIZES.items():
        odd = value + b"\r\n" + body + b"\r\n0\r\n\r\n"
        yield Message(f"chunk size {name}", post(chunked, odd + hidden))
    yield Message(
        "a chunk longer than its size", post(chunked, b"1\r\n" + body + b"\r\n0\r\n\r\n" + hidden)
    )
    yield Message(
        "a chunk ends with LF alone", post(chunked, size + b"\r\n" + body + b"\n0\r\n\r\n" + hidden)
    )
    for name, line in _FIELDS.items():
        yield Message(name, post(line + length, body + hidden))
    for name, line in _LINES.items():
        yield Message(name, post(length, body + hidden, line))
    head = b"POST %b HTTP/1.1\r\n" % _PATH + length
    yield Message("no host", head + b"\r\n" + body + hidden)
    yield Message("two hosts", head + b"host: a\r\nhost: b\r\n\r\n" + body + hidden)


_ANSWER = json.dumps(
    {
        "choices": [{"index": 0, "text": "a", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()
_READ_S = 2.0
"""How long an answer may take. A server that waits for more of a malformed message is no harm."""


@dataclass(slots=True)
class Hidden:
    """What came of the table."""

    messages: int = 0
    smuggled: int = 0
    """Hidden requests that reached the engine."""
    answered: list[str] = field(default_factory=list)
    """Malformed messages that were answered 200."""


async def hidden_requests(options: Sequence[str]) -> Hidden:
    """Send the whole table through a gateway with these options."""
    found = Hidden()
    async with (
        engine_that_remembers(found) as port,
        gateway([endpoint("recorder", port)], *options) as front,
    ):
        for message in messages(MODEL):
            found.messages += 1
            answer = await _send(front.port, message.sent)
            if answer.startswith(b"HTTP/1.1 200") and not message.may_be_answered:
                found.answered.append(message.name)
    return found


async def _send(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    with contextlib.suppress(OSError, TimeoutError):
        writer.write(data)
        async with asyncio.timeout(_READ_S):
            while part := await reader.read(65_536):
                received += part
    writer.transport.abort()
    return received


@contextlib.asynccontextmanager
async def engine_that_remembers(found: Hidden) -> AsyncIterator[int]:
    """Answers everything and counts hidden requests; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            asked = await reader.readexactly(length)
            found.smuggled += MARK.encode() in asked
            fields = b"content-type: application/json\r\nx-argosy-pod: recorder\r\n"
            writer.write(
                b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n" % (fields, len(_ANSWER))
                + _ANSWER
            )
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
