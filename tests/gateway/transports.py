"""Connections without sockets: a test feeds the bytes that arrive and reads what was written.

With `tests.support.virtual` a time limit of minutes costs nothing, and no buffer of a kernel hides
where a boundary lies.
"""

import asyncio
from collections.abc import Callable
from typing import Any


class Socket:
    """The options that were set on it."""

    def __init__(self) -> None:
        self.options: dict[tuple[int, int], int] = {}

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self.options[level, name] = value

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.7", 50_000

    def getsockname(self) -> tuple[str, int]:
        return "192.0.2.1", 8080


class Transport(asyncio.Transport):
    """One end of a connection. Its protocol hears of the end in the loop's next turn, as from
    asyncio."""

    def __init__(self) -> None:
        super().__init__()
        self.socket = Socket()
        self.protocol: asyncio.BaseProtocol = asyncio.Protocol()
        self.parts: list[bytes] = []
        """What was written, call by call."""
        self.unsent = 0
        """Bytes that the other side has not read."""
        self.closing = False
        self.aborted = False
        self.reads: list[bool] = []
        """Each `resume_reading` (True) and `pause_reading` (False)."""

    @property
    def written(self) -> bytes:
        return b"".join(self.parts)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def write(self, data: Any) -> None:
        if not self.closing:
            self.parts.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.reads.append(False)

    def resume_reading(self) -> None:
        self.reads.append(True)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        """What waits is sent first: an unread answer holds the connection open."""
        if not self.closing and not self.unsent:
            self._lose()
        self.closing = True

    def abort(self) -> None:
        if not self.aborted:
            self._lose()
        self.closing = self.aborted = True

    def _lose(self) -> None:
        asyncio.get_running_loop().call_soon(lambda: self.protocol.connection_lost(None))


class Network:
    """What a process dials: in place of its event loop's `create_connection`."""

    def __init__(self) -> None:
        self.dialled: list[tuple[str, int, Any]] = []
        """Host, port and TLS context of each attempt."""
        self.connections: list[Transport] = []
        self.fails: Exception | None = None
        """Raised at the next attempts; None lets them connect."""
        self.silent = False
        """Nobody answers."""
        asyncio.get_running_loop().create_connection = self._connect  # type: ignore[assignment]

    async def _connect(
        self, make: Callable[[], asyncio.Protocol], host: str, port: int, *, ssl: Any
    ) -> tuple[Transport, asyncio.Protocol]:
        self.dialled.append((host, port, ssl))
        if self.silent:
            await asyncio.sleep(1e6)
        if self.fails is not None:
            raise self.fails
        transport, protocol = Transport(), make()
        transport.set_protocol(protocol)
        self.connections.append(transport)
        protocol.connection_made(transport)
        return transport, protocol
