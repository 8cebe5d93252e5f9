"""The inputs of a step on their way to a GPU: one copy from a pinned buffer that stays.

`Staging` sends arrays of any size. `Decodes` has the inputs of steps that only decode, at addresses
that stay: graphs are captured with them.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from argosy_engine.core.runner import NULL_BLOCK
from argosy_engine.core.step import FlatBatch

_ALIGNED = 16
"""Elements at whose multiples each array begins: a cache line, so that kernels are compiled for one
alignment only."""


class Copied(Protocol):
    """What `torch.cuda.Event` has of this."""

    def record(self) -> None:
        """Mark the end of the copy just asked for."""

    def synchronize(self) -> None:
        """Return when the copy has ended, or at once if there was none."""


class Staging:
    """A buffer on the host, pinned for a GPU, and one on the device. Both stay and grow.

    The arrays of one `send` are on the device until the next.
    """

    def __init__(self, device: torch.device, copied: Copied | None = None) -> None:
        """`copied` is for tests; a GPU has its own."""
        if copied is None and device.type == "cuda":
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._device = device
        self._copied = copied
        self._grow(1 << 12)

    def _grow(self, size: int) -> None:
        pinned = self._device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=pinned)
        self._there = torch.zeros(size, dtype=torch.int32, device=self._device)

    def send(self, arrays: Sequence[Sequence[int] | npt.NDArray[np.int32]]) -> list[torch.Tensor]:
        """Each array as int32 on the device."""
        if self._copied is not None:
            self._copied.synchronize()  # the host buffer may be on its way yet
        sizes = [len(array) for array in arrays]
        starts = [0]
        for size in sizes:
            starts.append(-(-(starts[-1] + size) // _ALIGNED) * _ALIGNED)
        end = starts.pop()
        if end > len(self._host):
            self._grow(max(end, 2 * len(self._host)))
        host = self._host.numpy()
        for start, size, array in zip(starts, sizes, arrays, strict=True):
            host[start : start + size] = array
        self._there[:end].copy_(self._host[:end], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return [self._there[at : at + size] for at, size in zip(starts, sizes, strict=True)]


TABLE_ROOM = 1 << 18
"""Blocks in all tables of a step, 1 MiB: 256 texts of 32,768 tokens in blocks of 32."""
_COLUMNS = 6
_PADDING = np.array([[0], [-1], [0], [0], [1], [0]], np.int32)
"""Of a row: token, row drawn before, position, slot, KV length, beginning of its table."""


class Decodes:
    """The columns of a step have room for `rows` sequences, and all block tables follow them.

    Rows beyond the step's read and write the null block.
    """

    def __init__(self, device: torch.device, rows: int, copied: Copied | None = None) -> None:
        """`copied` is for tests; a GPU has its own."""
        pinned = device.type == "cuda"
        if copied is None and pinned:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied = copied
        self._width = -(-rows // _ALIGNED) * _ALIGNED
        self._tables_at = _COLUMNS * self._width
        size = self._tables_at + TABLE_ROOM
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=pinned)
        self._there = torch.zeros(size, dtype=torch.int32, device=device)
        columns = self._there[: self._tables_at].view(_COLUMNS, self._width).unbind()
        self.token_ids, self.drawn, self.positions, self.slots, self.lengths, self.begins = columns
        self.tables = self._there[self._tables_at :]
        self.numbers = torch.arange(self._width + 1, dtype=torch.int32, device=device)
        """0, 1, 2, …"""

    def send(self, flat: FlatBatch, drawn: Sequence[int] | None, padded: int) -> bool:
        """Bring a step of one token a sequence to the device, with rows up to `padded`.

        False, and nothing is sent, if its tables have no room. `drawn`: the rows of the last step
        that draw the tokens; None: the tokens are known.
        """
        count, starts = len(flat.token_ids), flat.table_starts
        blocks = 1 + starts[-1]  # the first table is that of the null block
        if blocks > TABLE_ROOM:
            return False
        if self._copied is not None:
            self._copied.synchronize()  # the host buffer may be on its way yet
        host = self._host.numpy()
        columns = host[: self._tables_at].reshape(_COLUMNS, self._width)
        columns[:, count:padded] = _PADDING
        columns[0, :count] = flat.token_ids
        columns[1, :count] = -1 if drawn is None else drawn
        columns[2, :count] = flat.positions
        columns[3, :count] = flat.slot_mapping
        columns[4, :count] = flat.kv_lens
        columns[5, :count] = starts[:-1]
        columns[5, :count] += 1
        end = self._tables_at + blocks
        host[self._tables_at] = NULL_BLOCK
        host[self._tables_at + 1 : end] = np.frombuffer(flat.joined_tables(), np.int32)
        self._there[:end].copy_(self._host[:end], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return True
