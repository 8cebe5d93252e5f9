"""Decode's end of a pull: ranges of blocks, received straight into the pool.

One `Fetch` is one pull's KV from one prefill engine. Its blocking calls run on threads of their
own. `stop` is for the event loop.

A large range goes over several connections: the checksums and system calls of one keep a core busy
at each end before the network is. Each connection takes the next piece. The first one is the
pull's own, and the others help: when one breaks off, those that are left fetch the rest of its
piece.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from argosy.descriptors import are_out
from argosy_engine.core.handover.patience import transfer_s
from argosy_engine.core.runner import HostBlocks, Runner
from argosy_engine.transfer.connection import Connection, RefusedError, Target
from argosy_engine.transfer.messages import MOST_CONNECTIONS, Done, Written
from argosy_engine.transfer.nixl import Link, LinkError, Routes, Slot
from argosy_engine.transfer.pieces import Piece, Pieces
from argosy_engine.transfer.wire import (
    DIGEST_BYTES,
    RUN_HEAD_BYTES,
    Digest,
    Frame,
    Kind,
    WireError,
    decode_run_head,
)

log = logging.getLogger(__name__)

_SHARE_BYTES = 16 << 20
"""A further connection is worth its thread and its round trips for this much. Pieces are as large.
"""
_LANDING = 2
"""Runs whose copies may be under way while the next one arrives."""
_LAG_S = 1.0
"""A further connection is waited for this long in any case, when the others have nothing to do."""
_TCP = Routes(None)


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
        helpers: ThreadPoolExecutor | None = None,
    ) -> None:
        """`helpers`: threads for further connections; None: one connection."""
        self._routes = routes
        self._runner = runner
        self._layout = runner.kv_layout()
        self._target = target
        self._block_ids = block_ids
        self._min_bytes_per_s = min_bytes_per_s
        self._helpers = helpers
        self._connections = [Connection(target) for _ in range(MOST_CONNECTIONS if helpers else 1)]
        self._own = self._connections[0]
        self._stopped = False
        self.at = first
        """Index of the first block that is not here."""
        self.busy_s = 0.0
        """Seconds of all `receive` calls."""

    def receive(self, end: int) -> None:
        """Fetch the blocks up to `end`. However it ends, nothing writes to a block afterwards.

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

    def stop(self) -> None:
        """End a `receive` that runs in another thread, and refuse all later ones."""
        self._stopped = True
        for connection in self._connections:
            connection.stop()

    def close(self) -> None:
        """After the last `receive`."""
        for connection in self._connections:
            connection.close()

    def _begin(self, count: int, from_s: float) -> None:
        """As many blocks are due at the minimum rate from then on."""
        size = count * self._layout.block_bytes
        for connection in self._connections:
            connection.deadline_s = from_s + transfer_s(size, self._min_bytes_per_s)

    # ------------------------------------------------------------- over TCP

    def _pull(self, end: int) -> None:
        size = (end - self.at) * self._layout.wire_block_bytes
        most = max(1, min(len(self._connections), size // _SHARE_BYTES))
        pieces = Pieces(self.at, end, self._step() if most > 1 else end - self.at)
        helping: list[Future[None]] = []
        if self._helpers is not None:
            helping = [
                self._helpers.submit(self._help, connection, pieces, most)
                for connection in self._connections[1:most]
            ]
        began = time.monotonic()
        try:
            self._fetch_pieces(self._own, pieces, most)
            while helping := _begun(helping):
                # One that needs as long again as all that has come will not help.
                patience_s = max(_LAG_S, time.monotonic() - began)
                ended, left = wait(helping, patience_s, return_when=FIRST_COMPLETED)
                if not ended:
                    self._stop_helpers()
                for helper in ended:
                    helper.result()
                helping = list(left)
                self._fetch_pieces(self._own, pieces, most)  # what a helper left
        except Exception:
            pieces.close()
            self.stop()
            wait(helping := _begun(helping))
            for helper in helping:
                helper.result()  # damage comes first: after it nothing counts
            raise
        finally:
            self.at = pieces.at

    def _stop_helpers(self) -> None:
        """Their pieces are fetched by the pull's own connection, and they stay closed."""
        for connection in self._connections[1:]:
            connection.stop()

    def _step(self) -> int:
        return max(1, _SHARE_BYTES // self._layout.wire_block_bytes)

    def _help(self, connection: Connection, pieces: Pieces, most: int) -> None:
        """Fetch pieces over a further connection as long as it lasts."""
        try:
            self._fetch_pieces(connection, pieces, most)
        except (RefusedError, EOFError, OSError) as error:
            log.debug("KV goes on without a connection to %s: %r", self._target.host, error)
            connection.close()
        except BaseException:
            pieces.close()  # damage, or a fault of this engine: the pull has failed
            raise

    def _fetch_pieces(self, connection: Connection, pieces: Pieces, most: int) -> None:
        while (piece := pieces.take()) is not None:
            try:
                self._fetch_piece(connection, piece, most)
            finally:
                pieces.give_back(piece)

    def _fetch_piece(self, connection: Connection, piece: Piece, most: int) -> None:
        count = piece.count
        connection.open()
        connection.ask(Kind.PULL, piece.at, count, {"connections": most} if most > 1 else {})
        due = piece.at
        landing: deque[tuple[int, HostBlocks]] = deque()
        try:
            while (frame := connection.read_head()).kind is Kind.KV:
                due, blocks = self._receive_run(connection, frame, due, piece.end)
                blocks.land()
                landing.append((due, blocks))
                if len(landing) > _LANDING:
                    _finish(piece, landing)
        finally:
            while landing:
                _finish(piece, landing)
        message = connection.read_control(frame)
        if not isinstance(message, Done):
            raise WireError(f"{type(message).__name__.upper()} came where DONE was due")
        if message.n_blocks != count:
            raise WireError(f"DONE is about {message.n_blocks} blocks; {count} were asked for")
        if self._layout.wire_block_bytes and piece.count:
            raise WireError(f"DONE came at block {piece.at} of {piece.end}")
        piece.at = piece.end

    def _receive_run(
        self, connection: Connection, frame: Frame, due: int, end: int
    ) -> tuple[int, HostBlocks]:
        """The block after the run, and its blocks, which are verified and have to land."""
        size = self._layout.wire_block_bytes
        least = RUN_HEAD_BYTES + DIGEST_BYTES
        if not least <= frame.length <= least + (end - due) * size:
            raise WireError(f"{end - due} blocks are due, not a frame of {frame.length} bytes")
        head = connection.read(RUN_HEAD_BYTES)
        run, digest = decode_run_head(head), Digest(head)
        last = run.first + run.count
        if run.first != due or not 1 <= run.count <= end - due:
            raise WireError(f"blocks {run.first} to {last} came where {due} was due")
        if frame.length != RUN_HEAD_BYTES + run.count * size + DIGEST_BYTES:
            raise WireError(f"{run.count} blocks came in a frame of {frame.length} bytes")
        blocks = self._runner.incoming(self._block_ids[run.first : last])
        for view in blocks.views:
            connection.fill(view, digest)
        if connection.read(DIGEST_BYTES) != digest.digest():
            raise WireError(f"the XXH3 of blocks {run.first} to {last} is wrong")
        return last, blocks

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
            self._own.close()
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
                self._own.open()
                self._ask(link, firsts[0], end, slots[0])
                for index, first in enumerate(firsts):
                    if index + 1 < len(firsts):
                        self._ask(link, firsts[index + 1], end, slots[(index + 1) % 2])
                    self._take_slot(first, min(end, first + step), slots[index % 2])
        finally:
            link.give(slots)

    def _ask(self, link: Link, first: int, end: int, slot: Slot) -> None:
        offer = link.offer
        if offer is None:
            raise LinkError("the NIXL process ended")
        count = min(end - first, link.slot_bytes // self._layout.wire_block_bytes)
        where = {"metadata": offer.metadata, "address": offer.address + slot.at}
        self._own.ask(Kind.PUSH, first, count, where)

    def _take_slot(self, first: int, last: int, slot: Slot) -> None:
        from argosy_engine.transfer.nixl import unstage  # numpy is there if NIXL is

        message = self._own.read_control(self._own.read_head())
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


def _begun(helping: Sequence[Future[None]]) -> list[Future[None]]:
    """Those that have a thread; the others get none any more."""
    return [helper for helper in helping if not helper.cancel()]


def _finish(piece: Piece, landing: deque[tuple[int, HostBlocks]]) -> None:
    """Wait until the oldest run is in its blocks."""
    at, blocks = landing.popleft()
    blocks.wait()
    piece.at = at
