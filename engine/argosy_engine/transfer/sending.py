"""Prefill's end of a connection for KV: ranges of blocks, straight from the pool.

A decode engine shows the ticket of a lease and asks for blocks as they become ready. Blocks of a
plain connection are sent by threads, because system calls and checksums release the interpreter's
lock there; TLS goes through the event loop.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from argosy_engine.core.handover.messages import PrefillPort
from argosy_engine.core.handover.patience import transfer_s
from argosy_engine.core.runner import HostBlocks, InPlace, Runner
from argosy_engine.errors import EngineError, LeaseGoneError
from argosy_engine.transfer.messages import Pull, Push, in_thread, read_message, send_control
from argosy_engine.transfer.nixl import Link, LinkError
from argosy_engine.transfer.wire import Digest, Kind, WireError, encode_control, encode_run_head

_RUN_BYTES = 4 << 20
"""Blocks are sent in frames of about this size."""
_PIECE_BYTES = 1 << 20
"""Sent and then added to the checksum while it is still in the processor's cache."""
_THREADS = 32


class NotReadyError(EngineError):
    """Blocks were asked for that are not computed, or are not of the prompt."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One KV frame: its bytes in order, without the digest."""

    header: bytes
    head: bytes
    blocks: HostBlocks


class KvSender:
    """Answers PULL and PUSH frames; one for all connections."""

    def __init__(
        self,
        runner: Runner,
        prefill: PrefillPort,
        *,
        idle_s: float,
        min_bytes_per_s: float,
        link: Link | None = None,
    ) -> None:
        self._link = link
        self._runner = runner
        self._layout = runner.kv_layout()
        self._prefill = prefill
        self._idle_s = idle_s
        self._min_bytes_per_s = min_bytes_per_s
        self._threads = ThreadPoolExecutor(_THREADS, "kv-send")

    def close(self) -> None:
        """After the last connection has ended."""
        self._threads.shutdown()

    async def serve(
        self, asked: Pull, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send what is asked for until the peer closes. LeaseGoneError, WireError, OSError, or
        LinkError from a PUSH, after which a PULL may do."""
        moved, seconds = 0, 0.0
        try:
            while True:
                size, lasted_s = await self._send(asked, writer)
                moved, seconds = moved + size, seconds + lasted_s
                async with asyncio.timeout(self._idle_s):
                    message = await read_message(reader)
                if not isinstance(message, Pull):
                    raise WireError(f"{type(message).__name__.upper()} came where PULL was due")
                asked = message
        finally:
            if moved:
                self._prefill.observe_send(bytes_moved=moved, seconds=seconds)

    async def _send(self, asked: Pull, writer: asyncio.StreamWriter) -> tuple[int, float]:
        """Bytes and seconds. The blocks stay pinned until the last byte left or the time is up."""
        began = time.monotonic()
        if asked.engine_epoch != self._prefill.engine_epoch:
            raise LeaseGoneError(
                f"the ticket is of epoch {asked.engine_epoch}; this engine started since"
            )
        key = self._prefill.find_lease(asked.ticket)
        size = asked.n_blocks * self._layout.block_bytes
        deadline_s = began + transfer_s(size * asked.connections, self._min_bytes_per_s)
        ready = self._prefill.begin_send(key)
        try:
            if asked.first_block + asked.n_blocks > len(ready):
                raise NotReadyError(
                    f"blocks up to {asked.first_block + asked.n_blocks} were asked for; "
                    f"{len(ready)} are ready"
                )
            done = encode_control(Kind.DONE, {"n_blocks": asked.n_blocks})
            blocks = ready[asked.first_block :][: asked.n_blocks]
            if isinstance(asked, Push):
                await self._push(asked, blocks, writer, deadline_s)
            elif not self._layout.wire_block_bytes:
                if rate := self._layout.simulated_bytes_per_s:
                    await asyncio.sleep(size / rate)
                writer.write(done)
                await writer.drain()
            elif writer.get_extra_info("ssl_object") is not None:
                async with asyncio.timeout_at(_on_loop(deadline_s)):
                    await self._send_by_loop(asked.first_block, blocks, writer, done)
            else:
                await self._send_by_thread(asked.first_block, blocks, writer, done, deadline_s)
        finally:
            self._prefill.end_send(key)
        return size, time.monotonic() - began

    async def _push(
        self, asked: Push, blocks: Sequence[int], writer: asyncio.StreamWriter, deadline_s: float
    ) -> None:
        digest = await in_thread(
            self._threads, lambda: None, self._push_blocking, asked, blocks, deadline_s
        )
        written = {"first_block": asked.first_block, "n_blocks": asked.n_blocks, "digest": digest}
        await send_control(writer, Kind.WRITTEN, written)

    def _push_blocking(self, asked: Push, blocks: Sequence[int], deadline_s: float) -> str:
        """The checksum of what was written. It cannot be stopped, but ends at the minimum rate."""
        link = self._link
        if link is None:
            raise LinkError("this engine offers no NIXL")
        from argosy_engine.transfer.nixl import stage  # numpy is there if NIXL is

        if len(blocks) * self._layout.wire_block_bytes > link.slot_bytes:
            raise WireError(f"a PUSH of {len(blocks)} blocks is more than a slot holds")
        slots = link.take(1)
        if slots is None:
            raise LinkError("no staging memory is free")
        try:
            staged = self._runner.outgoing(blocks)
            staged.wait()
            size, digest = stage(asked.first_block, len(blocks), staged.views, slots[0].memory)
            left_s = deadline_s - time.monotonic()
            link.write(slots[0], size, asked.metadata, asked.address, left_s)
        finally:
            link.give(slots)
        return digest

    def _runs(self, first: int, blocks: Sequence[int]) -> Generator[_Run]:
        """Each is on its way to the host while the one before it is sent. Wait for its blocks."""
        size = self._layout.wire_block_bytes
        step = max(1, _RUN_BYTES // size)
        coming: deque[_Run] = deque()
        try:
            for at in range(0, len(blocks), step):
                run = blocks[at : at + step]
                header, head = encode_run_head(first + at, len(run), len(run) * size)
                coming.append(_Run(header, head, self._runner.outgoing(run)))
                if at:
                    yield coming.popleft()
            yield coming.popleft()
        finally:
            for left in coming:  # the blocks may be written to when this has ended
                left.blocks.wait()

    async def _send_by_loop(
        self, first: int, blocks: Sequence[int], writer: asyncio.StreamWriter, done: bytes
    ) -> None:
        with contextlib.closing(self._runs(first, blocks)) as runs:
            for run in runs:
                if not isinstance(run.blocks, InPlace):
                    await in_thread(self._threads, lambda: None, run.blocks.wait)
                digest = Digest(run.head)
                writer.write(run.header + run.head)
                for view in run.blocks.views:
                    digest.update(view)
                    writer.write(view)
                    await writer.drain()
                writer.write(digest.digest())
        writer.write(done)
        await writer.drain()

    async def _send_by_thread(
        self,
        first: int,
        blocks: Sequence[int],
        writer: asyncio.StreamWriter,
        done: bytes,
        deadline_s: float,
    ) -> None:
        """The thread has a socket of its own for the same connection, on which nobody else writes.

        When this is cancelled, the connection is shut down, and the thread ends with an error.
        """
        number = writer.get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(number)) as sock:
            await in_thread(
                self._threads,
                lambda: _shut_down(sock),
                self._send_blocking,
                sock,
                first,
                blocks,
                done,
                deadline_s,
            )

    def _send_blocking(
        self,
        sock: socket.socket,
        first: int,
        blocks: Sequence[int],
        done: bytes,
        deadline_s: float,
    ) -> None:
        tail = b""
        with contextlib.closing(self._runs(first, blocks)) as runs:
            for run in runs:
                run.blocks.wait()
                digest = Digest(run.head)
                _send_all(sock, [tail, run.header, run.head], deadline_s)
                for view in run.blocks.views:
                    for at in range(0, view.nbytes, _PIECE_BYTES):
                        piece = view[at : at + _PIECE_BYTES]
                        _send_all(sock, [piece], deadline_s)
                        digest.update(piece)
                tail = digest.digest()
        _send_all(sock, [tail, done], deadline_s)


def _send_all(
    sock: socket.socket, buffers: Sequence[bytes | memoryview], deadline_s: float
) -> None:
    """TimeoutError at that time of the monotonic clock."""
    rest = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while rest:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the peer reads slower than the minimum rate")
        sock.settimeout(left_s)
        sent = sock.sendmsg(rest)
        while rest and sent >= rest[0].nbytes:
            sent -= rest.pop(0).nbytes
        if sent:
            rest[0] = rest[0][sent:]


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the peer was faster
        sock.shutdown(socket.SHUT_RDWR)


def _on_loop(deadline_s: float) -> float:
    """A time of the monotonic clock on the event loop's clock."""
    return asyncio.get_running_loop().time() + deadline_s - time.monotonic()
