"""Frames over an asyncio stream."""

import asyncio
from typing import Any

from argosy_engine.kv.wire import (
    HEADER_BYTES,
    Frame,
    Kind,
    WireError,
    decode_control,
    decode_header,
    encode_control,
)

__all__ = ["read_control", "read_frame", "send_control"]


async def read_frame(reader: asyncio.StreamReader) -> tuple[Frame, bytes]:
    """WireError; asyncio.IncompleteReadError or OSError when the peer went away."""
    frame = decode_header(await reader.readexactly(HEADER_BYTES))
    return frame, await reader.readexactly(frame.length)


async def read_control(reader: asyncio.StreamReader) -> tuple[Kind, dict[str, Any]]:
    frame, payload = await read_frame(reader)
    if frame.kind is Kind.KV:
        raise WireError("KV bytes came where a control frame was due")
    return frame.kind, decode_control(payload)


async def send_control(writer: asyncio.StreamWriter, kind: Kind, payload: dict[str, Any]) -> None:
    writer.write(encode_control(kind, payload))
    await writer.drain()
