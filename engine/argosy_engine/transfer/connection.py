"""One connection for KV to a prefill engine, for threads: system calls and checksums release the
interpreter's lock there.
"""

import contextlib
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from argosy_engine.errors import EngineError
from argosy_engine.transfer.messages import Message, Refused, decode_message
from argosy_engine.transfer.wire import (
    HEADER_BYTES,
    SMALL_CONTROL_BYTES,
    Digest,
    Frame,
    Kind,
    WireError,
    decode_header,
    encode_control,
)

CONNECT_S = 2.0
_PIECE_BYTES = 1 << 20
"""Received and then checked while it is still in the processor's cache."""


class RefusedError(EngineError):
    """The peer sent REFUSED."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"{refused.reason}: {refused.message}")
        self.reason = refused.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the KV is, and what must be shown for it."""

    host: str
    port: int
    ssl: ssl.SSLContext | None
    opening: bytes
    """The OPEN frame."""
    ticket: str
    engine_epoch: str
    transports: tuple[str, ...] = ()
    """What it offers besides TCP."""


class Connection:
    """One thread at a time uses it; `stop` is for any thread.

    Each call raises EOFError or OSError when the peer is gone, and TimeoutError at `deadline_s`.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._socket: socket.socket | None = None
        self._stopped = False
        self.deadline_s = 0.0
        """On the monotonic clock."""

    def open(self) -> None:
        """Connect and show who calls, if it is not open."""
        if self._socket is None:
            target = self._target
            plain = socket.create_connection((target.host, target.port), CONNECT_S)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain  # `stop` reaches it during the handshake
            if target.ssl is not None:
                self._socket = target.ssl.wrap_socket(plain, server_hostname=target.host)
            self._send(target.opening)
        if self._stopped:
            raise ConnectionAbortedError("the pull was stopped")

    def ask(
        self, kind: Kind, first: int, count: int, more: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        """PULL or PUSH of `count` blocks."""
        asked = {
            "ticket": self._target.ticket,
            "engine_epoch": self._target.engine_epoch,
            "first_block": first,
            "n_blocks": count,
        }
        self._send(encode_control(kind, {**asked, **more}))

    def read_head(self) -> Frame:
        """The next frame's; WireError."""
        return decode_header(self.read(HEADER_BYTES))

    def read_control(self, frame: Frame) -> Message:
        """The rest of a control frame; WireError, or RefusedError for REFUSED."""
        if frame.kind.raw or frame.length > SMALL_CONTROL_BYTES:
            raise WireError(f"{frame.kind.name} of {frame.length} bytes came where DONE was due")
        message = decode_message(frame.kind, frame.whole(self.read(frame.length)))
        if isinstance(message, Refused):
            raise RefusedError(message)
        return message

    def read(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            view = view[self._some(view) :]
        return bytes(data)

    def fill(self, view: memoryview, digest: Digest) -> None:
        """Receive as many bytes as the view has, and add them to the checksum."""
        at, size = 0, view.nbytes
        while at < size:
            got = self._some(view[at : at + _PIECE_BYTES])
            digest.update(view[at : at + got])
            at += got

    def stop(self) -> None:
        """End a call that runs in another thread, and refuse all later ones."""
        self._stopped = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """`open` makes another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _some(self, into: memoryview) -> int:
        got = self._in_time().recv_into(into)
        if not got:
            raise EOFError("the peer closed the connection")
        return got

    def _send(self, data: bytes) -> None:
        self._in_time().sendall(data)

    def _in_time(self) -> socket.socket:
        """The socket, whose next call lasts until the deadline at most."""
        assert self._socket is not None
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the KV comes slower than the minimum rate")
        self._socket.settimeout(left_s)
        return self._socket
