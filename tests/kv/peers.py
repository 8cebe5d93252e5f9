"""Peers that do what an engine would not: engines that go step by step, or lie."""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import xxhash

from argosy_engine.core.sampling import SamplingParams
from argosy_engine.transfer.wire import (
    HEADER_BYTES,
    Frame,
    Kind,
    decode_control,
    decode_header,
    encode_control,
    encode_run_head,
    encode_tokens,
)

TICKET = "0123456789abcdef0123456789abcdef"
ADMITTED = (Kind.ADMITTED, {"ticket": TICKET, "engine_epoch": "e"})
OPEN = encode_control(Kind.OPEN, {"credential": "", "pod_uid": ""})


def frame(kind: int, payload: bytes, *, length: int | None = None, magic: bytes = b"AGSY") -> bytes:
    """By the document: a head of 16 bytes, and the payload, of which `length` may lie."""
    size = len(payload) if length is None else length
    checked = struct.pack("!BI", kind, size) + (b"" if kind == Kind.KV else payload)
    check = xxhash.xxh3_64(checked).intdigest() & 0xFFFF_FFFF
    return struct.pack("!4sBBHII", magic, 4, kind, 0, size, check) + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[Frame, bytes]:
    head = decode_header(await reader.readexactly(HEADER_BYTES))
    return head, await reader.readexactly(head.length)


async def read_control(reader: asyncio.StreamReader) -> tuple[Kind, dict[str, Any]]:
    head, payload = await read_frame(reader)
    return head.kind, decode_control(payload)


async def send_control(writer: asyncio.StreamWriter, kind: Kind, payload: dict[str, Any]) -> None:
    writer.write(encode_control(kind, payload))
    await writer.drain()


def kv_frame(first: int, count: int, data: bytes) -> bytes:
    """Whole and undamaged."""
    header, head = encode_run_head(first, count, len(data))
    return header + head + data + xxhash.xxh3_64(head + data).digest()


def hello(n_tokens: int, fingerprint: str, **more: object) -> dict[str, Any]:
    """What PREFILL says."""
    return {
        "request_id": "r",
        "attempt": 1,
        "fingerprint": fingerprint,
        "tp": 1,
        "n_tokens": n_tokens,
        "sampling": SamplingParams(max_tokens=4, temperature=0.0).to_json(),
        "lease_s": 30.0,
        **more,
    }


def ready_for(job: dict[str, Any], blocks: int, **more: object) -> tuple[Kind, dict[str, Any]]:
    """A READY that fits a PREFILL."""
    said = {
        "request_id": job["request_id"],
        "attempt": job["attempt"],
        "engine_epoch": "e",
        "fingerprint": job["fingerprint"],
        "dtype": "",
        "first_token": 5,
        "n_tokens": job["n_tokens"],
        "n_blocks": blocks,
        "pod": "p",
        **more,
    }
    return Kind.READY, said


class Puller:
    """Decode's end of one handover, one frame at a time."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.reader, self.writer = reader, writer
        self._tls = tls
        self.ticket, self.epoch = TICKET, "none"
        self.n_blocks = 0
        self.waits: list[dict[str, Any]] = []
        self._opened: list[asyncio.StreamWriter] = []

    async def prefill(
        self, prompt: list[int], fingerprint: str, **more: object
    ) -> tuple[Kind, dict]:
        """OPEN and PREFILL up to READY or REFUSED."""
        said = hello(len(prompt), fingerprint, **more)
        self.writer.write(OPEN)
        await send_control(self.writer, Kind.PREFILL, said)
        self.writer.write(encode_tokens(prompt))
        return await self.answer()

    async def answer(self) -> tuple[Kind, dict]:
        """READY or REFUSED."""
        while True:
            kind, payload = await read_control(self.reader)
            if kind is Kind.WAIT:
                self.waits.append(payload)
            elif kind is Kind.ADMITTED:
                self.ticket, self.epoch = payload["ticket"], payload["engine_epoch"]
            else:
                self.n_blocks = payload.get("n_blocks", 0)
                return kind, payload

    async def tell(self, kind: Kind, **payload: object) -> None:
        await send_control(self.writer, kind, payload)

    async def open_data(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection for KV to the same engine."""
        host, port = self.writer.get_extra_info("peername")[:2]
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        self._opened.append(writer)
        writer.write(OPEN)
        return reader, writer

    async def ask_for(
        self, writer: asyncio.StreamWriter, first: int, count: int, **more: object
    ) -> None:
        said = {"ticket": self.ticket, "engine_epoch": self.epoch, "first_block": first,
                "n_blocks": count, **more}  # fmt: skip
        await send_control(writer, Kind.PULL, said)

    async def pull(
        self, first: int = 0, count: int | None = None, **more: object
    ) -> tuple[Kind, dict]:
        """PULL on a new connection, then the control frame that comes after the KV."""
        reader, writer = await self.open_data()
        await self.ask_for(writer, first, self.n_blocks if count is None else count, **more)
        while True:
            head, payload = await read_frame(reader)
            if head.kind is not Kind.KV:
                return head.kind, decode_control(payload)

    async def close(self) -> None:
        for writer in (self.writer, *self._opened):
            writer.close()
            with contextlib.suppress(OSError):  # it is closed already
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def puller(address: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Puller]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    peer = Puller(reader, writer, tls)
    try:
        yield peer
    finally:
        await peer.close()


@dataclass
class Liar:
    address: str = ""
    asked: int = 0  # connections on which it read a prompt
    said: list[dict[str, Any]] = field(default_factory=list)  # the PREFILLs
    pulls: list[dict[str, Any]] = field(default_factory=list)


CLOSE = b""
"""A liar closes its connection here."""
Words = tuple[Kind, dict[str, Any]] | bytes


@contextlib.asynccontextmanager
async def liar(*frames: Words, kv: tuple[Words, ...] = ()) -> AsyncIterator[Liar]:
    """A prefill engine that reads a prompt, answers with `frames` and is silent after them.

    A READY that a function makes from the PREFILL is true about the prompt. A connection for KV
    gets `kv` after its first PULL.
    """
    leaving = asyncio.Event()
    it = Liar()
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with contextlib.suppress(OSError, EOFError):
            await read_frame(reader)  # OPEN
            kind, said = await read_control(reader)
            if kind is Kind.PREFILL:
                await read_frame(reader)  # TOKENS
                it.asked += 1
                it.said.append(said)
            else:
                it.pulls.append(said)
            for words in frames if kind is Kind.PREFILL else kv:
                if words == CLOSE:
                    writer.close()
                    return
                if callable(words):
                    words = words(said)
                writer.write(words if isinstance(words, bytes) else encode_control(*words))
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
        for writer in writers:
            writer.transport.abort()
