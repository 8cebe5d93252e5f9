"""KV of all ranks as one: blocks leave joined by heads, and are cut by heads when they come.

A block on the wire is that of an engine with one rank, [layer][K, V][kv head][offset][head dim].
So engines of any numbers of ranks exchange KV, and the KV protocol does not know of ranks.

Rank 0 has one more socket to each other rank for this (`JoinedCarrier`). A thread of the rank
answers it (`answer`), while another one computes steps. Blocks that come there were freed by a step
or a copy that rank 0 has done, and the other rank may still be at it; so may blocks that leave be
computed by it. So each request says how many frames rank 0 has done, and the rank first does as
many (`Done`).
"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from argosy.model_config import ModelSpec
from argosy_engine.core.runner import HostBlocks
from argosy_engine.model.attention.carrier import Carrier
from argosy_engine.model.attention.paged import PagedPool
from argosy_engine.model.share import Share
from argosy_engine.runtime.torch.ranks.processes import Kind, Numbers, Ranks, receive, send

Bytes = npt.NDArray[np.uint8]

_ACK = b"\1"
_HALF = 1 << 30  # a frame has numbers of 32 bits


class Done:
    """How many frames a rank has done since its start."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def advance(self) -> None:
        """One more is done."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Return when at least this many are done."""
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count)


def answer(sock: socket.socket, carrier: Carrier, done: Done) -> None:
    """Exchange this rank's part of blocks with rank 0, until it ends."""
    with suppress(OSError):  # it ended in the middle
        while (frame := receive(sock)) is not None:
            kind, numbers = frame
            high, low, *block_ids = numbers.tolist()
            done.wait_for(high * _HALF + low)
            if kind is Kind.SEND_KV:
                blocks = carrier.outgoing(block_ids)
                blocks.wait()
                for view in blocks.views:
                    sock.sendall(view)
            else:
                blocks = carrier.incoming(block_ids)
                for view in blocks.views:
                    _fill(sock, view)
                blocks.land()
                blocks.wait()
                sock.sendall(_ACK)


class JoinedCarrier:
    """A `Carrier` of all ranks' blocks, in rank 0.

    A thread makes the exchanges with the other ranks, one after another.
    """

    def __init__(self, own: Carrier, ranks: Ranks, pool: PagedPool, spec: ModelSpec) -> None:
        """`own` carries rank 0's part, of `pool`; `spec` is the whole model's."""
        self._own = own
        self._ranks = ranks
        shape = pool.shape
        head_bytes = shape.block_size * shape.head_dim * pool.memory.element_size()
        self._block = (shape.layers * 2, spec.kv_heads, head_bytes)
        heads = [Share(rank, ranks.size).kv_heads(spec) for rank in range(ranks.size)]
        self._own_heads = heads[0]
        self._others = list(zip(ranks.kv_sockets, heads[1:], strict=True))
        # Where several ranks have the same head, the first one sends it.
        self._senders = [
            other for before, other in zip(heads, self._others, strict=False) if before != other[1]
        ]
        self._thread = ThreadPoolExecutor(1, "kv-ranks")

    def outgoing(self, block_ids: Sequence[int]) -> HostBlocks:
        """As `Runner.outgoing`."""
        blocks = self._room(block_ids)
        return _Joined(blocks, self._begin(self._gather, block_ids, blocks), None)

    def incoming(self, block_ids: Sequence[int]) -> HostBlocks:
        """As `Runner.incoming`."""
        blocks = self._room(block_ids)
        return _Joined(blocks, None, lambda: self._begin(self._scatter, block_ids, blocks))

    def close(self) -> None:
        """After the last exchange."""
        self._thread.shutdown()

    def _room(self, block_ids: Sequence[int]) -> Bytes:
        return np.empty((len(block_ids), *self._block), np.uint8)

    def _begin(
        self,
        exchange: Callable[[int, Sequence[int], Bytes], None],
        block_ids: Sequence[int],
        blocks: Bytes,
    ) -> "Future[None]":
        return self._thread.submit(self._try, exchange, self._ranks.done, block_ids, blocks)

    def _try(
        self,
        exchange: Callable[[int, Sequence[int], Bytes], None],
        done: int,
        block_ids: Sequence[int],
        blocks: Bytes,
    ) -> None:
        """An error ends the engine: a socket is in the middle of an answer."""
        try:
            exchange(done, block_ids, blocks)
        except Exception as error:  # whatever it is
            self._ranks.fail(error)

    def _gather(self, done: int, block_ids: Sequence[int], blocks: Bytes) -> None:
        for sock, _ in self._senders:
            send(sock, Kind.SEND_KV, _request(done, block_ids))
        own = self._own.outgoing(block_ids)
        own.wait()
        for part, view in _parts(blocks[:, :, self._own_heads], own.views):
            part[:] = view
        for sock, heads in self._senders:
            part = blocks[:, :, heads]
            came = np.empty(part.shape, np.uint8)
            _fill(sock, came.data.cast("B"))
            part[:] = came

    def _scatter(self, done: int, block_ids: Sequence[int], blocks: Bytes) -> None:
        for sock, heads in self._others:
            send(sock, Kind.TAKE_KV, _request(done, block_ids))
            sock.sendall(np.ascontiguousarray(blocks[:, :, heads]).data.cast("B"))
        own = self._own.incoming(block_ids)
        for part, view in _parts(blocks[:, :, self._own_heads], own.views):
            view[:] = part
        own.land()
        own.wait()
        for sock, _ in self._others:
            _fill(sock, memoryview(bytearray(len(_ACK))))


class _Joined:
    """A `HostBlocks` of whole blocks."""

    def __init__(
        self,
        blocks: Bytes,
        begun: "Future[None] | None",
        scatter: "Callable[[], Future[None]] | None",
    ) -> None:
        self.views = (blocks.data.cast("B"),)
        self._begun = begun
        self._scatter = scatter

    def land(self) -> None:
        assert self._scatter is not None
        self._begun = self._scatter()

    def wait(self) -> None:
        if self._begun is not None:
            self._begun.result()


def _parts(blocks: Bytes, views: Sequence[memoryview]) -> Iterator[tuple[Bytes, Bytes]]:
    """The views one after another as arrays, each with the blocks that it is of."""
    at = 0
    for view in views:
        found = np.frombuffer(view, np.uint8).reshape(-1, *blocks.shape[1:])
        yield blocks[at : at + len(found)], found
        at += len(found)


def _request(done: int, block_ids: Sequence[int]) -> Numbers:
    return np.array([*divmod(done, _HALF), *block_ids], np.int32)


def _fill(sock: socket.socket, view: memoryview) -> None:
    """ConnectionError when the other end closes it."""
    while view:
        got = sock.recv_into(view)
        if not got:
            raise ConnectionResetError("the other rank has ended")
        view = view[got:]
