"""A bad network in front of a TCP server: it cuts, damages, swallows and slows what passes.

Each direction of each connection passes through a `Fault`. Bytes are counted from the start of the
connection. A half-open network (`swallow_after`) keeps the connection open and delivers nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fault:
    """What happens to one direction; by default nothing."""

    cut_after: int | None = None
    """Bytes after which both ends lose the connection."""
    flip_at: int | None = None
    """The byte whose bits are turned over."""
    swallow_after: int | None = None
    """Bytes after which nothing arrives any more, and nobody is told."""
    bytes_per_s: float | None = None
    """The rate at which bytes pass."""


@dataclass
class FaultProxy:
    """Addresses are "ip:port". Faults may be changed at any time, for connections to come."""

    target: str
    back: Fault = Fault()
    """From the server to its clients."""
    forth: Fault = Fault()
    only: int | None = None
    """Index of the connection with the faults; None: all have them."""
    address: str = ""
    connections: int = 0
    """Made so far."""
    _passed: dict[int, bytearray] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def passed_back(self, index: int) -> bytes:
        """What the server has said on its connection of this index."""
        return bytes(self._passed.get(index, b""))

    def break_all(self) -> None:
        """Every connection breaks now."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        index, self.connections = self.connections, self.connections + 1
        faulty = self.only in (None, index)
        host, _, port = self.target.rpartition(":")
        far = None
        try:
            far_reader, far = await asyncio.open_connection(host, int(port))
            self._writers |= {writer, far}
            forth, back = (self.forth, self.back) if faulty else (Fault(), Fault())
            passed = self._passed[index] = bytearray()
            await asyncio.gather(
                _pipe(reader, far, forth, bytearray()), _pipe(far_reader, writer, back, passed)
            )
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # an end is gone, the fault cut them, or the proxy ends
        finally:
            for each in (writer, far):
                if each is not None:
                    each.transport.abort()
                    self._writers.discard(each)
            self._tasks.discard(task)


@contextlib.asynccontextmanager
async def fault_proxy(
    target: str, *, back: Fault = Fault(), forth: Fault = Fault(), only: int | None = None
) -> AsyncIterator[FaultProxy]:
    proxy = FaultProxy(target, back, forth, only)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        tasks = list(proxy._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pipe(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault, seen: bytearray
) -> None:
    """EOFError at the cut; returns at the end of the stream, which is passed on."""
    passed = 0
    size = 1 << 16 if fault.bytes_per_s is None else max(1, int(fault.bytes_per_s / 50))
    while data := bytearray(await reader.read(size)):
        if fault.flip_at is not None and passed <= fault.flip_at < passed + len(data):
            data[fault.flip_at - passed] ^= 0xFF
        if fault.cut_after is not None and passed + len(data) > fault.cut_after:
            writer.write(bytes(data[: fault.cut_after - passed]))
            await writer.drain()
            raise EOFError
        end = len(data)
        if fault.swallow_after is not None:
            end = max(0, min(end, fault.swallow_after - passed))
        passed += len(data)
        seen += data[:end]
        writer.write(bytes(data[:end]))
        await writer.drain()
        if fault.bytes_per_s is not None:
            await asyncio.sleep(len(data) / fault.bytes_per_s)
    if fault.swallow_after is None and writer.can_write_eof():
        writer.write_eof()
