"""Which hidden requests a gateway takes for requests: an engine that only remembers what came.

It stands behind a gateway of its own. Every message of the table is sent on a connection of its
own; what the engine was asked, and what the client was answered, decides.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from argosy_bench.attack.processes import MODEL, Keys, gateway
from argosy_bench.attack.smuggling import MARK, messages

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


async def hidden_requests(keys: Keys) -> Hidden:
    """Send the whole table through a gateway."""
    found = Hidden()
    async with engine_that_remembers(found) as port:
        endpoint = {"name": "recorder", "role": "colocated", "ip": "127.0.0.1", "port": port}
        async with gateway([endpoint], keys) as front:
            for message in messages(MODEL):
                found.messages += 1
                answer = await _send(front.api, message.sent)
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
