"""Frames over an asyncio stream, and blocking calls beside it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from argosy_engine.transfer.messages import Message, decode_message
from argosy_engine.transfer.wire import (
    HEADER_BYTES,
    SMALL_CONTROL_BYTES,
    Frame,
    Kind,
    WireError,
    decode_header,
    encode_control,
)

__all__ = ["in_thread", "read_head", "read_message", "read_payload", "send_control"]

T = TypeVar("T")


async def in_thread(
    threads: ThreadPoolExecutor, stop: Callable[[], None], call: Callable[..., T], *arguments: Any
) -> T:
    """Run `call` in a thread. When this is cancelled, `stop` must make it end, which is awaited."""
    running = asyncio.get_running_loop().run_in_executor(threads, call, *arguments)
    try:
        return await asyncio.shield(running)
    finally:
        if not running.done():
            stop()
            await asyncio.wait((running,))
            running.exception()


async def read_head(reader: asyncio.StreamReader) -> Frame:
    """WireError; asyncio.IncompleteReadError or OSError when the peer went away."""
    return decode_header(await reader.readexactly(HEADER_BYTES))


async def read_payload(reader: asyncio.StreamReader, frame: Frame, longest: int) -> bytes:
    """The frame's payload; WireError above `longest` bytes, before any of it is read, and if it was
    damaged."""
    if frame.length > longest:
        raise WireError(
            f"a {frame.kind.name} frame of {frame.length} bytes came; at most {longest} are due"
        )
    return frame.whole(await reader.readexactly(frame.length))


async def read_message(reader: asyncio.StreamReader, longest: int = SMALL_CONTROL_BYTES) -> Message:
    """The next control frame, checked."""
    frame = await read_head(reader)
    if frame.kind.raw:
        raise WireError(f"{frame.kind.name} came where a control frame was due")
    return decode_message(frame.kind, await read_payload(reader, frame, longest))


async def send_control(writer: asyncio.StreamWriter, kind: Kind, payload: dict[str, Any]) -> None:
    writer.write(encode_control(kind, payload))
    await writer.drain()
