"""What rank 0 sends to the other ranks: numbers of 32 bits in one array each, over a socket.

A frame is its kind, its length, and its numbers. The ranks are processes of one machine and one
release, so the order of bytes is the machine's and there is no version.
"""

import socket
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from argosy_engine.core.step import Copies, FlatBatch

__all__ = ["Frame", "Kind", "copies_of", "pack_copies", "pack_step", "receive", "send", "step_of"]

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
    return _joined(
        sizes,
        flat.token_ids,
        flat.positions,
        flat.slot_mapping,
        flat.cu_q,
        flat.kv_lens,
        [len(table) for table in tables],
        flat.sample_rows,
        list(chain.from_iterable(tables)),
    )


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
        block_tables=[blocks[a:b] for a, b in pairwise(bounds)],
        sample_rows=parts[6],
        sample_positions=[],
        sampling=[],
        histories=[],
        n_prompts=[],
        request_ids=[],
    )


def pack_copies(copies: Copies) -> Numbers:
    """(block, slot) after (block, slot)."""
    return _joined(list(chain.from_iterable(copies)))


def copies_of(numbers: Numbers) -> Copies:
    """`pack_copies` undone."""
    pairs: Any = numbers.reshape(-1, 2).tolist()
    return tuple((block, slot) for block, slot in pairs)


def _joined(*columns: Sequence[int]) -> Numbers:
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
