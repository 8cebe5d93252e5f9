"""Requests that break HTTP/1.1, and bytes that hide a second request in the first.

Each row is refused or its connection is closed, no engine is called, and no second answer comes.
`test_framing.py` sends the heads without sockets, in pieces of several sizes.
"""

import asyncio
import contextlib

import httpx
import pytest

from argosy_gateway.config import Limits
from tests.gateway.engines import Engine, front

pytestmark = pytest.mark.slow

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
SIZE = len(BODY)
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
LENGTH = b"content-length: %d\r\n" % SIZE
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)
HIDDEN = (
    b"POST /v1/completions HTTP/1.1\r\ncontent-length: 26\r\n\r\n" + b'{"model":"m","prompt":"s"}'
)
LIMITS = Limits(first_byte_s=0.3, head_s=0.3, body_s=0.3, keep_alive_s=1.0)

HEADS = {
    "blank lines": b"\r\n\r\n\r\n",
    "no version": b"POST /v1/chat/completions\r\n\r\n",
    "version 3": b"GET /v1/models HTTP/3.0\r\nhost: x\r\n\r\n",
    "version x": b"GET /v1/models HTTP/1.x\r\nhost: x\r\n\r\n",
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100,
    "unknown method": b"BREW /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "method in lower case": POST.replace(b"POST", b"post") + LENGTH + b"\r\n" + BODY,
    "space in the target": b"GET /v1/ models HTTP/1.1\r\nhost: x\r\n\r\n",
    "NUL in the target": b"GET /v1/\0models HTTP/1.1\r\nhost: x\r\n\r\n",
    "byte beyond ASCII in the target": b"GET /v1/\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    "tab after the method": b"GET\t/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "no target": b"GET  HTTP/1.1\r\nhost: x\r\n\r\n",
    "target without slash": b"GET v1 HTTP/1.1\r\nhost: x\r\n\r\n",
    "target with a port out of range": b"GET http://x:99999/v1 HTTP/1.1\r\nhost: x\r\n\r\n",
    "CONNECT": b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n" + HIDDEN,
    "no colon": POST + b"nocolon\r\n\r\n",
    "space before the colon": POST + b"content-length : %d\r\n\r\n" % SIZE + BODY,
    "no name": POST + b": x\r\n\r\n",
    "name beyond ASCII": POST + b"\xffa: b\r\n\r\n",
    "folded line": POST + b"a: b\r\n c: d\r\n" + LENGTH + b"\r\n" + BODY,
    "folded transfer-encoding": POST + b"transfer-encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "NUL in a value": POST + b"a: b\0c\r\n\r\n",
    "CR in a value": POST + b"a: b\r" + CHUNKED + LENGTH + b"\r\n" + BODY,
    "LF alone": (POST + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY,
    "target too long": b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "header too long": POST + b"a: " + b"b" * 40_000 + b"\r\n\r\n",
    "too many headers": POST + b"a: b\r\n" * 8_000 + b"\r\n",
}

LENGTHS = {
    "two lengths": POST + LENGTH + b"content-length: 0\r\n\r\n" + BODY,
    "the same length twice": POST + LENGTH + LENGTH + b"\r\n" + BODY,
    "list of lengths": POST + b"content-length: %d, %d\r\n\r\n" % (SIZE, SIZE) + BODY,
    "length with plus": POST + b"content-length: +%d\r\n\r\n" % SIZE + BODY,
    "negative length": POST + b"content-length: -1\r\n\r\n" + BODY,
    "hexadecimal length": POST + b"content-length: 0x10\r\n\r\n" + BODY,
    "no number": POST + b"content-length: \r\n\r\n" + BODY,
    "length of 2 to the 63rd": POST + b"content-length: 9223372036854775808\r\n\r\n" + BODY,
    "length beyond 64 bits": POST + b"content-length: 99999999999999999999999\r\n\r\n" + BODY,
    "underscore": POST + b"content_length: %d\r\n\r\n" % SIZE + BODY,
    "length, then chunks": POST + LENGTH + CHUNKED + b"\r\n" + CHUNKS,
    "chunks, then length": POST + CHUNKED + b"content-length: 4\r\n\r\n" + CHUNKS,
    "unknown encoding": POST + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS,
    "gzip": POST + b"transfer-encoding: gzip\r\n\r\n" + CHUNKS,
    "chunked is not the last": POST + b"transfer-encoding: chunked, identity\r\n\r\n" + CHUNKS,
    "two encodings": POST + CHUNKED + b"transfer-encoding: identity\r\n\r\n" + CHUNKS,
    "vertical tab": POST + b"transfer-encoding:\x0bchunked\r\n\r\n" + CHUNKS,
    "offer of another protocol, two lengths": (
        POST + b"connection: upgrade\r\nupgrade: h2c\r\n" + LENGTH + CHUNKED + b"\r\n" + CHUNKS
    ),
    "offer of another protocol, gzip": (
        POST + b"connection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: gzip\r\n\r\n" + CHUNKS
    ),
}

_BEGUN = POST + CHUNKED + b"\r\n"
BODIES = {
    "size in letters": _BEGUN + b"zz\r\n" + BODY,
    "negative size": _BEGUN + b"-1\r\n" + BODY,
    "size with 0x": _BEGUN + b"0x10\r\n" + BODY,
    "size beyond 64 bits": _BEGUN + b"ffffffffffffffffff\r\n" + BODY,
    "space before the size": _BEGUN + b" " + CHUNKS,
    "space after the size": _BEGUN + CHUNKS.replace(b"\r\n", b" \r\n", 1),
    "LF after the size": _BEGUN + CHUNKS.replace(b"\r\n", b"\n", 1),
    "LF after an extension": _BEGUN + CHUNKS.replace(b"\r\n", b";a\n", 1),
    "no line end after a chunk": _BEGUN + b"%x\r\n%b0\r\n\r\n" % (SIZE, BODY),
    "chunk longer than its size": _BEGUN + b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE - 1, BODY),
    "length in a trailer": _BEGUN + CHUNKS[:-2] + b"content-length: 5\r\n\r\n",
    "trailer without end": _BEGUN + CHUNKS[:-2] + b"a: b\r\n" * 20_000,
    "body that never ends": POST + b"content-length: %d\r\n\r\n" % (SIZE + 1) + BODY,
}

SMUGGLED = {
    "behind a length": (
        POST + b"content-length: %d\r\n" % (5 + len(HIDDEN)) + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN
    ),
    "in a chunk": (
        POST + CHUNKED + b"content-length: 4\r\n\r\n" + b"%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0"
    ),
    "behind an empty body": POST + b"\r\n" + HIDDEN,
    "behind a short body": POST + b"content-length: 2\r\n\r\n{}" + HIDDEN,
    "behind an offer": POST + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n" + HIDDEN,
}

MALFORMED = {**BODIES, **SMUGGLED}


async def answered(port: int, data: bytes) -> list[bytes]:
    """What a connection that sends these bytes is answered: each status, without interim ones."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        async with asyncio.timeout(10):
            while part := await reader.read(65_536):
                got += part
    writer.close()
    return [part[:3] for part in got.split(b"HTTP/1.1 ")[1:] if part[:1] != b"1"]


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_request_is_refused_its_connection_ends_and_no_engine_is_called(data):
    engine = Engine("a")
    async with front(engine, limits=LIMITS) as f:
        statuses = await answered(httpx.URL(f.url).port, data)
        await f.settled()
        assert statuses in ([], [b"400"], [b"408"], [b"413"], [b"431"])
        assert engine.calls == []


CLEAR = {
    "extension of a chunk": _BEGUN + CHUNKS.replace(b"\r\n", b";a=b\r\n", 1),
    "blank line before": b"\r\n" + POST + LENGTH + b"\r\n" + BODY,
    "target with host": POST.replace(b"/v1", b"http://x/v1", 1) + LENGTH + b"\r\n" + BODY,
    "100-continue": POST + b"expect: 100-continue\r\n" + LENGTH + b"\r\n" + BODY,
    "offer, length": POST + b"connection: upgrade\r\nupgrade: h2c\r\n" + LENGTH + b"\r\n" + BODY,
    "offer, chunks": POST + b"Upgrade: h2c\r\nConnection: Upgrade\r\n" + CHUNKED + b"\r\n" + CHUNKS,
    "offer of a websocket": (
        POST + b"upgrade: websocket\r\nconnection: upgrade\r\n" + LENGTH + b"\r\n" + BODY
    ),
}
