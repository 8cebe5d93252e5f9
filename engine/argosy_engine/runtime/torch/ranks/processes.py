"""Starts the processes of ranks 1 and up, sends to them, and notices when one of them has died.

Each has two sockets to rank 0: one for what it computes, frame after frame, and one for KV that
other engines exchange with this one (`kv`). When rank 0 closes the first or dies, the rank ends.
When a rank dies, the engine cannot compute: `on_lost` ends its process, and the pod starts anew.

A frame is its kind, its length, and its numbers of 32 bits in one array. The ranks are processes of
one machine and one release, so the order of bytes is the machine's and there is no version.
"""

import contextlib
import json
import logging
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from itertools import accumulate, chain, pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from argosy_engine.config import EngineConfig
from argosy_engine.core.request import to_table
from argosy_engine.core.step import Copies, FlatBatch
from argosy_engine.errors import EngineError, LoadError, RankLostError
from argosy_engine.runtime.machine import allowed_threads

Numbers = npt.NDArray[np.int32]

_HEAD = 8  # bytes


class Kind(IntEnum):
    """What a frame asks a rank to do."""

    STEP = 1
    """Compute a step."""
    TO_HOST = 2
    """Copy blocks to slots of the host pool."""
    FROM_HOST = 3
    """Copy slots to blocks."""
    RESERVE = 4
    """Make a host pool of so many slots."""
    SEND_KV = 5
    """Send the bytes of blocks; on the socket for KV."""
    TAKE_KV = 6
    """Take the bytes of blocks, which follow; on the socket for KV."""
    CAPTURE = 7
    """Capture the graphs of steps of up to so many decodes."""


Frame = tuple[Kind, Numbers]


def send(sock: socket.socket, kind: Kind, numbers: Numbers) -> None:
    """OSError if the rank is gone."""
    head = np.array([kind, len(numbers)], np.int32)
    sock.sendall(head.tobytes() + numbers.tobytes())


def receive(sock: socket.socket) -> Frame | None:
    """The next frame; None when rank 0 has ended."""
    head = _read(sock, _HEAD)
    if head is None:
        return None
    kind, count = np.frombuffer(head, np.int32).tolist()
    body = _read(sock, 4 * count)
    return None if body is None else (Kind(kind), np.frombuffer(body, np.int32))


def pack_step(flat: FlatBatch) -> Numbers:
    """What the model and its KV pool read of a step; the draw is rank 0's alone."""
    tables = flat.block_tables
    sizes = (len(flat.token_ids), len(tables), len(flat.sample_rows))
    head = _concatenate(
        sizes,
        flat.token_ids,
        flat.positions,
        flat.slot_mapping,
        flat.cu_q,
        flat.kv_lens,
        [len(table) for table in tables],
        flat.sample_rows,
    )
    return np.concatenate([head, np.frombuffer(flat.joined_tables(), np.int32)])


def step_of(numbers: Numbers) -> FlatBatch:
    """`pack_step` undone, with nothing of what the draw needs."""
    tokens, sequences, samples = numbers[:3].tolist()
    sizes = (tokens, tokens, tokens, sequences + 1, sequences, sequences, samples)
    ends = list(accumulate((3, *sizes)))
    parts = [numbers[a:b].tolist() for a, b in pairwise(ends)]
    blocks = numbers[ends[-1] :].tolist()
    bounds = list(accumulate((0, *parts[5])))
    return FlatBatch(
        token_ids=parts[0],
        positions=parts[1],
        slot_mapping=parts[2],
        cu_q=parts[3],
        kv_lens=parts[4],
        block_tables=[to_table(blocks[a:b]) for a, b in pairwise(bounds)],
        sample_rows=parts[6],
        sample_positions=[],
        sampling=[],
        histories=[],
        n_prompts=[],
        request_ids=[],
    )


def pack_copies(copies: Copies) -> Numbers:
    """(block, slot) after (block, slot)."""
    return _concatenate(list(chain.from_iterable(copies)))


def copies_of(numbers: Numbers) -> Copies:
    """`pack_copies` undone."""
    pairs: Any = numbers.reshape(-1, 2).tolist()
    return tuple((block, slot) for block, slot in pairs)


def _concatenate(*columns: Sequence[int]) -> Numbers:
    total = sum(map(len, columns))
    values: Iterable[int] = chain.from_iterable(columns)
    return np.fromiter(values, np.int32, total)


def _read(sock: socket.socket, size: int) -> bytes | None:
    """None at the end of the stream, also in the middle of a frame."""
    parts: list[bytes] = []
    while size:
        part = sock.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-P", "-m", "argosy_engine.runtime.torch.ranks.follower")
_END_S = 10.0
_NOTICE_S = 5.0
"""A rank that dies breaks the others' step before the kernel has ended it."""


def for_ranks(config: EngineConfig) -> EngineConfig:
    """Each rank's options: its share of the threads. LoadError for what several ranks do not do."""
    size = config.tensor_parallel_size
    for wrong, instead in (
        (config.compute == "native" and "--compute native", "say --compute torch"),
        (config.quantization != "none" and "--quantization int8", "leave it out"),
    ):
        if wrong:
            raise LoadError(
                "BadArgument",
                f"{wrong} is for engines of one rank, and --tensor-parallel-size is {size}: "
                f"{instead}, or leave --tensor-parallel-size out",
            )
    threads = max(1, (config.threads or allowed_threads()) // size)
    return replace(config, threads=threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a rank is told before it loads; one line of JSON."""

    config: EngineConfig
    """With `dtype` decided."""

    rank: int

    port: int
    """Where the ranks meet."""

    isa: str
    """`ONEDNN_MAX_CPU_ISA`; empty: not set."""

    def line(self) -> bytes:
        paths = ("peers_file", "token_file", "tls_dir")  # a rank calls no other pod
        config = asdict(self.config) | dict.fromkeys(paths)
        told = {"config": config, "rank": self.rank, "port": self.port, "isa": self.isa}
        return json.dumps(told).encode() + b"\n"

    @staticmethod
    def read(sock: socket.socket) -> "Hello | None":
        """None when rank 0 has ended before it said anything."""
        line = b""
        while not line.endswith(b"\n"):  # byte by byte: frames follow
            byte = sock.recv(1)
            if not byte:
                return None
            line += byte
        told = json.loads(line)
        return Hello(**told | {"config": EngineConfig(**told["config"])})


@dataclass(slots=True)
class _Process:
    rank: int
    process: subprocess.Popen[bytes]
    frames: socket.socket
    kv: socket.socket


class Ranks:
    """The other ranks, as rank 0 sees them."""

    def __init__(self, size: int, on_lost: Callable[[EngineError], None]) -> None:
        """Start their processes; they import torch while rank 0 does.

        `on_lost` is called once, on a thread, if a rank dies before `close`; in an engine it ends
        the process.
        """
        self.size = size
        self.done = 0
        """Frames of which rank 0 has done its own part; see `finish`."""
        self._sent = 0
        self._on_lost = on_lost
        self._closing = False
        self._error: EngineError | None = None
        self._losing = threading.Lock()
        self._noticed = threading.Event()
        self._others = [_start(rank) for rank in range(1, size)]
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()

    @property
    def pids(self) -> list[int]:
        """Of ranks 1 and up."""
        return [one.process.pid for one in self._others]

    @property
    def kv_sockets(self) -> list[socket.socket]:
        """To ranks 1 and up, in their order."""
        return [one.kv for one in self._others]

    def greet(self, config: EngineConfig, *, port: int, isa: str) -> None:
        """Have them load the model and meet at `port`."""
        for one in self._others:
            hello = Hello(config=config, rank=one.rank, port=port, isa=isa)
            try:
                one.frames.sendall(hello.line())
            except OSError as error:
                self.fail(error)

    def send(self, kind: Kind, numbers: Numbers) -> None:
        """The same frame to each; RankLostError if one is gone."""
        self._sent += 1
        for one in self._others:
            try:
                send(one.frames, kind, numbers)
            except OSError as error:
                self.fail(error)

    def finish(self) -> None:
        """Rank 0 has done what it sent until now. The others may still be at it."""
        self.done = self._sent

    def fail(self, error: Exception) -> NoReturn:
        """This rank could not go on: the others wait for it, or one of them is why."""
        if not self._noticed.wait(_NOTICE_S):
            self._lose(RankLostError(f"rank 0 could not compute its part of a step: {error!r}"))
        raise self._error or error

    def close(self) -> None:
        """End the processes; they compute nothing at this time."""
        self._closing = True
        for one in self._others:
            with contextlib.suppress(OSError):
                one.frames.shutdown(socket.SHUT_RDWR)
        self._watcher.join()
        for one in self._others:
            _await_end(one.process)
            one.frames.close()
            one.kv.close()

    def _watch(self) -> None:
        poll = select.poll()
        waiting = {one.frames.fileno(): one for one in self._others}
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        ended = waiting[poll.poll()[0][0]]
        last_words = _read_all(ended.frames)
        if not self._closing:
            self._lose(_cause(ended, last_words))

    def _lose(self, error: EngineError) -> None:
        with self._losing:
            if self._error is None:
                self._error = error
                self._on_lost(error)
                self._noticed.set()


def _start(rank: int) -> _Process:
    (ours, theirs), (our_kv, their_kv) = socket.socketpair(), socket.socketpair()
    with theirs, their_kv:
        fds = [theirs.fileno(), their_kv.fileno()]
        process = subprocess.Popen(  # noqa: S603 - our own program
            [*PROGRAM, *map(str, fds)], stdin=subprocess.DEVNULL, pass_fds=fds
        )
    log.info("rank %d is process %d", rank, process.pid)
    return _Process(rank, process, ours, our_kv)


def _cause(ended: _Process, last_words: bytes) -> EngineError:
    if last_words:
        told = json.loads(last_words)
        message = f"rank {ended.rank}: {told['message']}"
        return LoadError(told["reason"], message) if told["reason"] else RankLostError(message)
    code = _await_end(ended.process)
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return RankLostError(f"rank {ended.rank} (process {ended.process.pid}) ended: {how}")


def _read_all(sock: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(OSError):
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def _await_end(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
