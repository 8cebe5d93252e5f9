"""Decode's connection for KV: ranges of blocks, received straight into the pool.

One `Fetch` is one connection to one prefill engine. Its blocking calls run on threads of their own,
because system calls and checksums release the interpreter's lock there. `stop` is for the event
loop.
"""

import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from argosy.descriptors import are_out
from argosy_engine.core.handover.patience import transfer_s
from argosy_engine.core.runner import Runner
from argosy_engine.errors import EngineError
from argosy_engine.transfer.messages import Done, Message, Refused, Written, decode_message
from argosy_engine.transfer.nixl import Link, LinkError, Routes, Slot
from argosy_engine.transfer.wire import (
    DIGEST_BYTES,
    HEADER_BYTES,
    RUN_HEAD_BYTES,
    SMALL_CONTROL_BYTES,
    Digest,
    Frame,
    Kind,
    WireError,
    decode_header,
    decode_run_head,
    encode_control,
)

log = logging.getLogger(__name__)

CONNECT_S = 2.0
_TCP = Routes(None)
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


class Fetch:
    """Fills the blocks of one prompt in their order. One thread at a time calls `receive`."""

    def __init__(
        self,
        runner: Runner,
        target: Target,
        block_ids: Sequence[int],
        *,
        first: int,
        min_bytes_per_s: float,
        routes: Routes = _TCP,
    ) -> None:
        self._routes = routes
        self._runner = runner
        self._layout = runner.kv_layout()
        self._target = target
        self._block_ids = block_ids
        self._min_bytes_per_s = min_bytes_per_s
        self._socket: socket.socket | None = None
        self._stopped = False
        self._deadline_s = 0.0
        self.at = first
        """Index of the first block that is not here."""
        self.busy_s = 0.0
        """Seconds of all `receive` calls."""

    def receive(self, end: int) -> None:
        """Fetch the blocks up to `end`.

        WireError, RefusedError, EOFError, OSError; TimeoutError when they come slower than the
        minimum rate.
        """
        began = time.monotonic()
        if self._stopped:
            raise ConnectionAbortedError("the pull was stopped")
        from_s = began
        if self._layout.wire_block_bytes and (link := self._link()) is not None:
            self._begin(end - self.at, began)
            self._try_push(link, end)
            from_s = time.monotonic()
        if self.at < end:
            self._begin(end - self.at, from_s)
            self._pull(end)
        self.busy_s += time.monotonic() - began

    def _pull(self, end: int) -> None:
        """Over TCP."""
        count = end - self.at
        sock = self._connected()
        self._send(sock, self._request(Kind.PULL, self.at, count))
        while (frame := decode_header(self._exactly(sock, HEADER_BYTES))).kind is Kind.KV:
            self._take_run(sock, frame, end)
        message = self._take_control(sock, frame)
        if not isinstance(message, Done):
            raise WireError(f"{type(message).__name__.upper()} came where DONE was due")
        if message.n_blocks != count:
            raise WireError(f"DONE is about {message.n_blocks} blocks; {count} were asked for")
        if self._layout.wire_block_bytes and self.at != end:
            raise WireError(f"DONE came at block {self.at} of {end}")
        self.at = end

    def stop(self) -> None:
        """End a `receive` that runs in another thread, and refuse all later ones."""
        self._stopped = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """After the last `receive`."""
        if self._socket is not None:
            self._socket.close()

    # ------------------------------------------------------------- over NIXL

    def _link(self) -> Link | None:
        target = self._target
        return self._routes.to(f"{target.host}:{target.port}", target.transports)

    def _try_push(self, link: Link, end: int) -> None:
        """All blocks, or those before a failure: the rest is for TCP, over a new connection."""
        try:
            self._pushed(link, end)
        except (RefusedError, WireError, LinkError, EOFError, OSError) as error:
            if self._stopped or are_out(error):
                raise
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            if isinstance(error, RefusedError) and error.reason != "transport":
                raise
            target = self._target
            self._routes.failed(f"{target.host}:{target.port}")
            log.warning("KV from %s goes on over TCP: NIXL failed: %s", target.host, error)

    def _pushed(self, link: Link, end: int) -> None:
        """While the blocks of one slot are checked, those of the other one are on their way."""
        step = link.slot_bytes // self._layout.wire_block_bytes
        firsts = range(self.at, end, step)
        slots = link.take(min(2, len(firsts)))
        if slots is None:
            return  # as many pulls use it as have room
        try:
            with link.awaiting():
                sock = self._connected()
                self._ask(sock, link, firsts[0], end, slots[0])
                for index, first in enumerate(firsts):
                    if index + 1 < len(firsts):
                        self._ask(sock, link, firsts[index + 1], end, slots[(index + 1) % 2])
                    self._take_slot(sock, first, min(end, first + step), slots[index % 2])
        finally:
            link.give(slots)

    def _ask(self, sock: socket.socket, link: Link, first: int, end: int, slot: Slot) -> None:
        offer = link.offer
        if offer is None:
            raise LinkError("the NIXL process ended")
        count = min(end - first, link.slot_bytes // self._layout.wire_block_bytes)
        where = {"metadata": offer.metadata, "address": offer.address + slot.at}
        self._send(sock, self._request(Kind.PUSH, first, count, where))

    def _take_slot(self, sock: socket.socket, first: int, last: int, slot: Slot) -> None:
        from argosy_engine.transfer.nixl import unstage  # numpy is there if NIXL is

        frame = decode_header(self._exactly(sock, HEADER_BYTES))
        message = self._take_control(sock, frame)
        if not isinstance(message, Written):
            raise WireError(f"{type(message).__name__.upper()} came where WRITTEN was due")
        if (message.first_block, message.n_blocks) != (first, last - first):
            raise WireError(f"WRITTEN is about other blocks than {first} to {last}")
        places = self._block_ids[first:last]
        blocks = self._runner.incoming(places)
        _, digest = unstage(first, last - first, blocks.views, slot.memory)
        if digest != message.digest:
            raise WireError(f"the XXH3 of blocks {first} to {last} is wrong")
        blocks.land()
        blocks.wait()
        self.at = last

    # ------------------------------------------------------------- the connection

    def _begin(self, count: int, from_s: float) -> None:
        """So many blocks are due at the minimum rate from then on."""
        size = count * self._layout.block_bytes
        self._deadline_s = from_s + transfer_s(size, self._min_bytes_per_s)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            target = self._target
            plain = socket.create_connection((target.host, target.port), CONNECT_S)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain  # `stop` reaches it during the handshake
            if target.ssl is not None:
                self._socket = target.ssl.wrap_socket(plain, server_hostname=target.host)
            self._send(self._socket, target.opening)
        if self._stopped:
            raise ConnectionAbortedError("the pull was stopped")
        return self._socket

    def _request(
        self, kind: Kind, first: int, count: int, more: Mapping[str, object] = MappingProxyType({})
    ) -> bytes:
        asked = {
            "ticket": self._target.ticket,
            "engine_epoch": self._target.engine_epoch,
            "first_block": first,
            "n_blocks": count,
        }
        return encode_control(kind, {**asked, **more})

    def _take_run(self, sock: socket.socket, frame: Frame, end: int) -> None:
        size = self._layout.wire_block_bytes
        least = RUN_HEAD_BYTES + DIGEST_BYTES
        if not least <= frame.length <= least + (end - self.at) * size:
            raise WireError(f"{end - self.at} blocks are due, not a frame of {frame.length} bytes")
        head = self._exactly(sock, RUN_HEAD_BYTES)
        run, digest = decode_run_head(head), Digest(head)
        last = run.first + run.count
        if run.first != self.at or not 1 <= run.count <= end - self.at:
            raise WireError(f"blocks {run.first} to {last} came where {self.at} was due")
        if frame.length != RUN_HEAD_BYTES + run.count * size + DIGEST_BYTES:
            raise WireError(f"{run.count} blocks came in a frame of {frame.length} bytes")
        places = self._block_ids[run.first : last]
        blocks = self._runner.incoming(places)
        for view in blocks.views:
            self._fill(sock, view, digest)
        if self._exactly(sock, DIGEST_BYTES) != digest.digest():
            raise WireError(f"the XXH3 of blocks {run.first} to {last} is wrong")
        blocks.land()
        blocks.wait()
        self.at = last

    def _take_control(self, sock: socket.socket, frame: Frame) -> Message:
        """RefusedError for REFUSED."""
        if frame.kind.raw or frame.length > SMALL_CONTROL_BYTES:
            raise WireError(f"{frame.kind.name} of {frame.length} bytes came where DONE was due")
        message = decode_message(frame.kind, frame.whole(self._exactly(sock, frame.length)))
        if isinstance(message, Refused):
            raise RefusedError(message)
        return message

    def _fill(self, sock: socket.socket, view: memoryview, digest: "Digest") -> None:
        at, size = 0, view.nbytes
        while at < size:
            got = self._some(sock, view[at : at + _PIECE_BYTES])
            digest.update(view[at : at + got])
            at += got

    def _exactly(self, sock: socket.socket, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            view = view[self._some(sock, view) :]
        return bytes(data)

    def _some(self, sock: socket.socket, into: memoryview) -> int:
        self._limit(sock)
        got = sock.recv_into(into)
        if not got:
            raise EOFError("the peer closed the connection")
        return got

    def _send(self, sock: socket.socket, data: bytes) -> None:
        self._limit(sock)
        sock.sendall(data)

    def _limit(self, sock: socket.socket) -> None:
        """The next system call lasts until the deadline at most."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the KV comes slower than the minimum rate")
        sock.settimeout(left_s)
