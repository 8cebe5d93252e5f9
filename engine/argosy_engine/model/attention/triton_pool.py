"""The paged pool with Triton kernels of our own, for GPUs; memory and seam are `PagedPool`'s.

The constructor imports triton, which CPU builds of torch lack. `attention.trial` executes these
kernels beside `PagedPool` before an engine uses them.
"""

import importlib
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from argosy_engine.core.step import FlatBatch
from argosy_engine.model.attention.driver import use_built
from argosy_engine.model.attention.inputs import Decodes, Staging
from argosy_engine.model.attention.paged import HeadNorms, PagedBatch, PagedPool, PoolShape

_TILE_BYTES = 16 << 10
"""Of one tile of K or of V in bfloat16; half of it in float32, whose products are compiled into
single multiplications. With two of each in flight a program takes at most 80 KiB of shared memory
where it is compiled for an H100; an L4 has 99."""
_SPLITS = 16
"""Of a decode's keys. With 8 KV heads one sequence then gives 128 programs, about an H200's 132
multiprocessors."""
_LEAST_TILES = 2
"""Of a split: 64 keys of head dimension 128. Fewer cost more to join than they save."""
_HEADS_WRITTEN = 16
"""By one program of the write."""
_EVERYTHING = 1 << 30
"""A window that no context reaches."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the work is cut; powers of two, at least 16, which the tensor cores multiply."""

    rows: int
    """Queries of a prompt's tile: tokens times the heads of a group."""

    single_rows: int
    """Of a decode: the heads of a group, padded."""

    keys: int
    """Of a prompt's tile."""

    single_keys: int
    """Of a decode's tile: smaller, so that more of them are on their way at a time."""

    width: int
    """Head dimension, padded."""


def tiles(group: int, head_dim: int, itemsize: int) -> Tiles:
    """For `group` query heads on a KV head; `itemsize` is the bytes of an element of K as it
    is multiplied."""
    width = max(16, _power_of_two(head_dim))
    keys = max(16, min(64, 2 * _TILE_BYTES // (width * itemsize * itemsize)))
    single = max(16, _power_of_two(group))
    return Tiles(max(keys, single), single, keys, max(16, keys // 2), width)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class _KernelBatch(PagedBatch):
    """What the kernels are handed. B sequences, T tiles, D sequences with one new token."""

    slots: torch.Tensor
    """[N]"""
    first: torch.Tensor
    """[B + 1]"""
    lengths: torch.Tensor
    """[B]"""
    table_first: torch.Tensor
    """[B]"""
    tables: torch.Tensor
    """[blocks of all tables]"""
    tile_sequences: torch.Tensor
    """[T]"""
    tile_tokens: torch.Tensor
    """[T] The first token of the tile, among its sequence's."""
    singles: torch.Tensor
    """[D] Their sequences."""
    parts: list[torch.Tensor] = field(default_factory=list, init=False)
    """Shares of the splits: sums, totals, largest; made by the first layer, used by each."""


class TritonPool(PagedPool):
    """KV of all sequences on a GPU."""

    def __init__(
        self, shape: PoolShape, dtype: torch.dtype, device: torch.device, *, heads: int
    ) -> None:
        """`heads` are the query heads. ImportError without triton; else as `PagedPool`."""
        super().__init__(shape, dtype, device)
        use_built()
        self._kernels: Any = importlib.import_module("argosy_engine.model.attention.triton_kernels")
        self.group = heads // shape.kv_heads
        # FP8 is widened to the type of Q before it is multiplied.
        self.tiles = tiles(self.group, shape.head_dim, max(2, dtype.itemsize))
        self._staging = Staging(device)
        self._layer_stride = 2 * shape.kv_heads * shape.block_size * shape.head_dim

    # -------------------------------------------------------------- once a step

    def prepare(self, flat: FlatBatch) -> PagedBatch:
        """As `PagedPool.prepare`, by one copy; a batch is good until the next is prepared."""
        tokens = self.tiles.rows // self.group
        work: list[tuple[int, int, int]] = []
        singles: list[int] = []
        for index in range(len(flat.kv_lens)):
            count = flat.cu_q[index + 1] - flat.cu_q[index]
            if count == 1:
                singles.append(index)
                continue
            start = flat.kv_lens[index] - count
            work.extend((start + first, index, first) for first in range(0, count, tokens))
        # The tiles with the most keys first: the last programs to begin are then short.
        work.sort(reverse=True)
        sent = self._staging.send(
            [
                flat.token_ids,
                flat.positions,
                flat.sample_rows,
                flat.slot_mapping,
                flat.cu_q,
                flat.kv_lens,
                flat.table_starts[:-1],
                np.frombuffer(flat.joined_tables(), np.int32),
                [sequence for _, sequence, _ in work],
                [first for _, _, first in work],
                singles,
            ]
        )
        return _KernelBatch(flat, *sent)

    def prepare_decodes(self, inputs: Decodes, rows: int) -> PagedBatch:
        """The first `rows` rows of `inputs`, each a sequence with one new token. The tensors are
        those of `inputs`, so the batch is good for whatever is sent there."""
        none = inputs.numbers[:0]
        return _KernelBatch(
            FlatBatch.empty(),
            inputs.token_ids[:rows],
            inputs.positions[:rows],
            inputs.numbers[:rows],
            slots=inputs.slots[:rows],
            first=inputs.numbers[: rows + 1],
            lengths=inputs.lengths[:rows],
            table_first=inputs.begins[:rows],
            tables=inputs.tables,
            tile_sequences=none,
            tile_tokens=none,
            singles=inputs.numbers[:rows],
        )

    # -------------------------------------------------------------- once a layer

    def write(self, layer: int, batch: PagedBatch, kv: torch.Tensor) -> None:
        """As `PagedPool.write`."""
        self._write(layer, batch, kv, None, None)

    def turn_and_write(
        self,
        layer: int,
        batch: PagedBatch,
        heads: torch.Tensor,
        turn: torch.Tensor,
        norms: HeadNorms | None = None,
    ) -> None:
        """As `PagedPool.turn_and_write`; K in `heads` stays as it was."""
        self._write(layer, batch, heads, torch.view_as_real(turn), norms)

    def _write(
        self,
        layer: int,
        batch: PagedBatch,
        heads: torch.Tensor,
        turns: torch.Tensor | None,
        norms: HeadNorms | None,
    ) -> None:
        """Without `turns`, `heads` are K and V alone."""
        assert isinstance(batch, _KernelBatch)
        assert heads.stride(2) == 1
        shape, (tokens, all_heads, _) = self.shape, heads.shape
        if not tokens:
            return
        self._kernels.turn_and_write[tokens, -(-all_heads // _HEADS_WRITTEN)](
            heads,
            heads.stride(0),
            heads.stride(1),
            heads if turns is None else turns,
            *((heads, heads, 0.0) if norms is None else (norms.q, norms.k, norms.eps)),
            batch.slots,
            self.memory,
            layer * self._layer_stride,
            self.memory.stride(0),
            Q_HEADS=0 if turns is None else all_heads - 2 * shape.kv_heads,
            KV_HEADS=shape.kv_heads,
            BLOCK=shape.block_size,
            DIM=shape.head_dim,
            WIDTH=self.tiles.width,
            HEADS=_HEADS_WRITTEN,
            TURN=turns is not None,
            NORM=norms is not None,
        )

    def attend(
        self,
        layer: int,
        batch: PagedBatch,
        q: torch.Tensor,
        window: int = 0,
        scale: float | None = None,
    ) -> torch.Tensor:
        """As `PagedPool.attend`, scores and sums in float32."""
        assert isinstance(batch, _KernelBatch)
        assert q.stride(2) == 1
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        scale = (self._scale if scale is None else scale) * math.log2(math.e)
        pool = (self.memory, layer * self._layer_stride, self.memory.stride(0))
        tables = (batch.first, batch.lengths, batch.table_first, batch.tables)
        seen = (scale, window or _EVERYTHING)
        queries = (q, q.stride(0), q.stride(1))
        shape, sizes = self.shape, self.tiles
        fixed = {
            "KV_HEADS": shape.kv_heads,
            "GROUP": self.group,
            "BLOCK": shape.block_size,
            "DIM": shape.head_dim,
            "WIDTH": sizes.width,
            "WIDEN": self.device.type == "cpu",
            "num_stages": 2,
            "enable_fp_fusion": True,
        }
        if len(batch.tile_tokens):
            work = (batch.tile_sequences, batch.tile_tokens)
            self._kernels.attend_rows[len(batch.tile_tokens), shape.kv_heads](
                *queries, out, *pool, *tables, *work, *seen,
                ROWS=sizes.rows, KEYS=sizes.keys, **fixed,
            )  # fmt: skip
        if len(batch.singles):
            parts = self._parts(batch, q)
            self._kernels.attend_splits[len(batch.singles), shape.kv_heads, _SPLITS](
                *queries, *parts, *pool, *tables, batch.singles, *seen,
                ROWS=sizes.single_rows, KEYS=sizes.single_keys,
                SPLITS=_SPLITS, LEAST=_LEAST_TILES, **fixed,
            )  # fmt: skip
            self._join(batch, parts, out)
        return out

    def _parts(self, batch: _KernelBatch, q: torch.Tensor) -> list[torch.Tensor]:
        if not batch.parts:
            count = len(batch.singles) * q.shape[1] * _SPLITS
            for size in (count * self.shape.head_dim, count, count):
                batch.parts.append(torch.empty(size, dtype=torch.float32, device=q.device))
        return batch.parts

    def _join(self, batch: _KernelBatch, parts: list[torch.Tensor], out: torch.Tensor) -> None:
        self._kernels.join_splits[len(batch.singles), out.shape[1]](
            *parts,
            out,
            batch.first,
            batch.singles,
            HEADS=out.shape[1],
            DIM=self.shape.head_dim,
            WIDTH=self.tiles.width,
            SPLITS=_SPLITS,
        )
