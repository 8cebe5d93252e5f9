"""An engine's end of NIXL: staging memory, and the process that moves it (`nixl_agent.py`).

Made by `KvService`. Prefill fills a slot and has it written into a slot of decode's engine, which
copies it to the pool and checks it. No pool is ever shown to a peer. Methods may be called from any
thread. When the process ends by itself, its transfers fail, and it is started again.

`Routes` says which transport decode uses towards a prefill engine: NIXL where both have it and it
works, TCP otherwise (designs/0008-kv-protocol-2.md).
"""

import contextlib
import importlib.util
import json
import logging
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from argosy_engine.errors import EngineError
from argosy_engine.transfer.wire import Digest, encode_run_head

_PIECE_BYTES = 1 << 20
"""Copied and then checked while it is still in the processor's cache."""


def stage(
    first: int, count: int, views: Sequence[memoryview], memory: memoryview
) -> tuple[int, str]:
    """Bytes and checksum of `count` blocks that are the views together."""
    return _copy(first, count, views, memory, out=False)


def unstage(
    first: int, count: int, views: Sequence[memoryview], memory: memoryview
) -> tuple[int, str]:
    """The same, from the slot to the views; the checksum is of the views."""
    return _copy(first, count, views, memory, out=True)


def _copy(
    first: int, count: int, views: Sequence[memoryview], memory: memoryview, *, out: bool
) -> tuple[int, str]:
    size = sum(view.nbytes for view in views)
    digest = Digest(encode_run_head(first, count, size)[1])
    at = 0
    for piece in _pieces(views):
        ours = np.frombuffer(piece, np.uint8)
        staged = np.frombuffer(memory[at : at + piece.nbytes], np.uint8)
        # numpy copies without the interpreter's lock.
        np.copyto(ours, staged) if out else np.copyto(staged, ours)
        digest.update(piece)
        at += piece.nbytes
    return size, digest.hexdigest()


def _pieces(views: Sequence[memoryview]) -> Iterable[memoryview]:
    for view in views:
        for at in range(0, view.nbytes, _PIECE_BYTES):
            yield view[at : at + _PIECE_BYTES]


log = logging.getLogger(__name__)

_STAGING_BYTES = 64 << 20
_SLOT_BYTES = 4 << 20
_ANSWER_S = 2.0  # on top of a transfer's own time
_START_S = 30.0
_AGAIN_S = 1.0  # doubled with each end of the process
_AGAIN_MOST_S = 60.0
_SEND_TIMEOUT = struct.pack("ll", 1, 0)  # of orders; they are short, so it reads none


class LinkError(EngineError):
    """The bytes did not move; another transport may move them."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of the staging memory."""

    at: int
    """Offset from its beginning."""
    memory: memoryview


@dataclass(frozen=True, slots=True)
class Offer:
    """Where a peer may write to."""

    metadata: str
    """NIXL's, as base64."""
    address: int
    """Of the staging memory, in the address space of the process."""


def installed() -> bool:
    """Whether the package nixl is there; it is not imported."""
    return importlib.util.find_spec("nixl") is not None


def has_adapter(devices: Path = Path("/dev/infiniband")) -> bool:
    """Whether this process may use an RDMA adapter (InfiniBand, RoCE or EFA)."""
    return any(devices.glob("uverbs*"))


class Link:
    """`offer` is None while the process is starting, and while it is gone."""

    def __init__(self, block_bytes: int, ports: str = "") -> None:
        """`block_bytes`: a slot holds at least one block. `ports`, as `first-last`: where UCX
        listens for peers without an adapter of their own; empty: any."""
        self._ports = ports
        self.slot_bytes = max(_SLOT_BYTES, block_bytes)
        self._size = self.slot_bytes * max(4, _STAGING_BYTES // self.slot_bytes)
        self._fd = os.memfd_create("argosy-kv")
        os.ftruncate(self._fd, self._size)
        # Never unmapped by hand: views of it may be in use by threads that still end.
        self._memory = memoryview(mmap.mmap(self._fd, self._size))
        self._free = list(range(0, self._size, self.slot_bytes))
        self._lock = threading.Lock()
        self._number = self._awaited = 0
        self._writes: dict[int, Future[None]] = {}
        self._sock: socket.socket | None = None
        self._why = ""
        self._closed = threading.Event()
        self._settled = threading.Event()
        self.offer: Offer | None = None
        self.pid = 0
        """Of the process; 0 before it was started."""
        self.moved = 0
        """Bytes written so far."""
        self._thread = threading.Thread(target=self._keep, name="kv-nixl", daemon=True)
        self._thread.start()

    def wait(self, within_s: float = _START_S) -> bool:
        """Whether it can be used; the first start is awaited."""
        self._settled.wait(within_s)
        return self.offer is not None

    def take(self, count: int) -> list[Slot] | None:
        """Slots, or None while fewer are free."""
        with self._lock:
            if len(self._free) < count:
                return None
            places = [self._free.pop() for _ in range(count)]
        return [Slot(at, self._memory[at : at + self.slot_bytes]) for at in places]

    def give(self, slots: list[Slot]) -> None:
        """Back; nothing reads them any more. What a late peer writes to one fails its checksum."""
        with self._lock:
            self._free += [slot.at for slot in slots]

    def write(self, slot: Slot, size: int, peer: str, address: int, within_s: float) -> None:
        """Write the slot's first bytes to a peer's address. LinkError; the slot is free then."""
        done: Future[None] = Future()
        with self._lock:
            self._number = number = self._number + 1
            self._writes[number] = done
            self._say(
                write=number, at=slot.at, size=size, metadata=peer, address=address,
                within_s=within_s,
            )  # fmt: skip
        try:
            done.result(within_s + _ANSWER_S)
        except TimeoutError:
            self._cut_link()
            done.exception(_ANSWER_S)
            raise LinkError("the NIXL process does not answer") from None
        with self._lock:
            self.moved += size

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        """Bytes of peers arrive only meanwhile."""
        self._await(1)
        try:
            yield
        finally:
            with contextlib.suppress(LinkError):  # it ended; the next one awaits nothing
                self._await(-1)

    def close(self) -> None:
        self._closed.set()
        self._cut_link()
        self._thread.join()
        os.close(self._fd)

    def _await(self, more: int) -> None:
        with self._lock:
            self._awaited += more
            self._say(awaited=self._awaited)

    def _say(self, **order: object) -> None:
        """With the lock held."""
        if self._sock is None:
            self._writes.pop(self._number, None)
            raise LinkError("the NIXL process is not running")
        with contextlib.suppress(OSError):  # its end fails all writes
            self._sock.sendall(json.dumps(order).encode() + b"\n")

    def _cut_link(self) -> None:
        if (sock := self._sock) is not None:
            with contextlib.suppress(OSError):  # it is closed already
                sock.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------- the process, on its own thread

    def _keep(self) -> None:
        again_s = _AGAIN_S
        while not self._closed.is_set():
            began = time.monotonic()
            lasting = self._run()
            self._settled.set()
            if not lasting:
                return
            again_s = _AGAIN_S if time.monotonic() - began > _AGAIN_MOST_S else again_s
            self._closed.wait(again_s)
            again_s = min(2 * again_s, _AGAIN_MOST_S)

    def _run(self) -> bool:
        """One life of the process; False if it cannot work on this machine."""
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        with ours, _process(theirs, self._fd, self._size, self._ports) as child:
            theirs.close()
            self.pid = child.pid
            with self._lock:
                self._sock = ours
                if self._closed.is_set():
                    return False
            try:
                works = self._read(ours)
            finally:
                self._fail()
            child.kill()
            status = child.wait()
        if not works and not self._closed.is_set():
            log.warning("KV travels over TCP: NIXL cannot start: %s", self._why or f"exit {status}")
        elif not self._closed.is_set():
            log.warning("the NIXL process ended with status %d; KV goes over TCP meanwhile", status)
        return works

    def _read(self, sock: socket.socket) -> bool:
        """Until the process ends; whether it had started."""
        started = False
        with contextlib.suppress(OSError), sock.makefile("rb") as lines:
            for line in lines:
                said = json.loads(line)
                if "failed" in said:
                    self._why = said["failed"]
                elif "metadata" in said:
                    started = True
                    self._open(Offer(said["metadata"], said["address"]))
                else:
                    self._complete(said["write"], said.get("error"))
        return started

    def _open(self, offer: Offer) -> None:
        with self._lock:
            self.offer = offer
            if self._awaited:
                self._say(awaited=self._awaited)
        self._settled.set()
        log.info("KV may travel over NIXL")

    def _complete(self, number: int, error: str | None) -> None:
        with self._lock:
            done = self._writes.pop(number, None)
        if done is not None:
            done.set_exception(LinkError(error)) if error else done.set_result(None)

    def _fail(self) -> None:
        with self._lock:
            self._sock = self.offer = None
            writes, self._writes = self._writes, {}
        for done in writes.values():
            done.set_exception(LinkError("the NIXL process ended"))


@contextlib.contextmanager
def _process(
    sock: socket.socket, memory: int, size: int, ports: str
) -> Iterator["subprocess.Popen[bytes]"]:
    fds = (sock.fileno(), memory)
    given = {"UCX_TCP_PORT_RANGE": ports, **os.environ} if ports else dict(os.environ)
    own = {"NIXL_LOG_LEVEL": "FATAL", "UCX_LOG_LEVEL": "fatal", "CUDA_VISIBLE_DEVICES": ""}
    child = subprocess.Popen(  # noqa: S603 - this package itself
        [sys.executable, "-m", "argosy_engine.transfer.nixl_agent", *map(str, (*fds, size))],
        pass_fds=fds,
        env=given | own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


NIXL = "nixl"
_AVOID_S = 60.0
"""A peer to which NIXL failed is sent no order over it for so long: each costs its time-out."""


class Routes:
    """Remembers peers to which NIXL failed, such as those behind a closed port of UCX."""

    def __init__(self, link: Link | None, now: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._now = now
        self._avoided: dict[str, float] = {}

    def to(self, address: str, transports: Collection[str]) -> Link | None:
        """The link to a peer that offers these transports; None: TCP."""
        link = self._link
        if link is None or link.offer is None or NIXL not in transports:
            return None
        if self._now() < self._avoided.get(address, 0.0):
            return None
        return link

    def failed(self, address: str) -> None:
        now = self._now()
        self._avoided = {a: until for a, until in self._avoided.items() if until > now}
        self._avoided[address] = now + _AVOID_S
