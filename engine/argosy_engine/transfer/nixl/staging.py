"""Blocks into a slot of the staging memory and out of it, each time with their checksum.

Prefill copies a lease's blocks before they are written to decode. Decode copies them to their
places and checks what is there: what a peer writes to the slot later changes nothing.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from argosy_engine.transfer.wire import Digest, encode_run_head

__all__ = ["stage", "unstage"]

_PIECE_BYTES = 1 << 20
"""Copied and then checked while it is still in the processor's cache."""


def stage(
    first: int, count: int, views: Sequence[memoryview], memory: memoryview
) -> tuple[int, str]:
    """Bytes and checksum of `count` blocks that are the views together."""
    return _copied(first, count, views, memory, out=False)


def unstage(
    first: int, count: int, views: Sequence[memoryview], memory: memoryview
) -> tuple[int, str]:
    """The same, from the slot to the views; the checksum is of the views."""
    return _copied(first, count, views, memory, out=True)


def _copied(
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
