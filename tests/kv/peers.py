"""Peers that do what an engine would not: engines that go step by step or lie, a bad network."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from argosy_engine.core.sampling import SamplingParams
from argosy_engine.transfer.wire import (
    HEADER_BYTES,
    Frame,
    Kind,
    decode_control,
    decode_header,
    encode_control,
    encode_tokens,
)


async def read_frame(reader: asyncio.StreamReader) -> tuple[Frame, bytes]:
    frame = decode_header(await reader.readexactly(HEADER_BYTES))
    return frame, await reader.readexactly(frame.length)


async def read_control(reader: asyncio.StreamReader) -> tuple[Kind, dict[str, Any]]:
    frame, payload = await read_frame(reader)
    return frame.kind, decode_control(payload)


async def send_control(writer: asyncio.StreamWriter, kind: Kind, payload: dict[str, Any]) -> None:
    writer.write(encode_control(kind, payload))
    await writer.drain()


def hello(n_tokens: int, fingerprint: str, **more: object) -> dict[str, Any]:
    """What PREFILL says."""
    return {
        "request_id": "r",
        "attempt": 1,
        "fingerprint": fingerprint,
        "n_tokens": n_tokens,
        "sampling": SamplingParams(max_tokens=4, temperature=0.0).to_json(),
        "lease_s": 30.0,
        **more,
    }


class Puller:
    """Decode's end of one connection, one frame at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.lease: list[object] = []
        self.waits = 0

    async def prefill(
        self, prompt: list[int], fingerprint: str, **more: object
    ) -> tuple[Kind, dict]:
        """PREFILL up to READY or REFUSED."""
        said = hello(len(prompt), fingerprint, **more)
        await send_control(self.writer, Kind.PREFILL, said)
        self.writer.write(encode_tokens(prompt))
        kind, payload = Kind.ACCEPTED, {}
        while kind in (Kind.ACCEPTED, Kind.WAIT):
            kind, payload = await read_control(self.reader)
            self.waits += kind is Kind.WAIT
        self.lease = payload.get("lease", [])
        return kind, payload

    async def tell(self, kind: Kind, **payload: object) -> None:
        await send_control(self.writer, kind, {"lease": self.lease, **payload})

    async def pull(self) -> tuple[Kind, dict]:
        """PULL, then the control frame that comes after the KV."""
        await self.tell(Kind.PULL, from_token=0)
        while True:
            frame, payload = await read_frame(self.reader)
            if frame.kind is not Kind.KV:
                return frame.kind, decode_control(payload)


@contextlib.asynccontextmanager
async def puller(address: str) -> AsyncIterator[Puller]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Puller(reader, writer)
    finally:
        writer.close()


@dataclass
class Liar:
    address: str = ""
    asked: int = 0  # connections on which it read a prompt


@contextlib.asynccontextmanager
async def liar(*frames: tuple[Kind, dict[str, Any]] | bytes) -> AsyncIterator[Liar]:
    """A prefill engine that reads a prompt, answers with these frames and is silent after them."""
    leaving = asyncio.Event()
    it = Liar()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            for _ in ("PREFILL", "TOKENS"):
                await read_frame(reader)
            it.asked += 1
            for frame in frames:
                writer.write(frame if isinstance(frame, bytes) else encode_control(*frame))
            await writer.drain()
            await leaving.wait()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    it.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield it
    finally:
        leaving.set()
        server.close()


@contextlib.asynccontextmanager
async def bad_network(
    address: str, *, cut_after: int | None = None, flip_at: int | None = None
) -> AsyncIterator[str]:
    """An address in front of `address`; what flows back is cut, or one of its bytes damaged."""
    host, _, port = address.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        forward = asyncio.create_task(_pipe(reader, far_writer, None, None))
        await _pipe(far_reader, writer, cut_after, flip_at)
        writer.transport.abort()
        far_writer.transport.abort()
        await forward

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _pipe(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    cut_after: int | None,
    flip_at: int | None,
) -> None:
    passed = 0
    with contextlib.suppress(OSError):
        while data := bytearray(await reader.read(1 << 16)):
            if flip_at is not None and passed <= flip_at < passed + len(data):
                data[flip_at - passed] ^= 0xFF
            if cut_after is not None and passed + len(data) > cut_after:
                writer.write(bytes(data[: cut_after - passed]))
                await writer.drain()
                return
            passed += len(data)
            writer.write(bytes(data))
            await writer.drain()
        writer.close()
