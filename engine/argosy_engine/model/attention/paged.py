"""Attention over a paged pool, in plain torch: every device, no kernel of our own.

The pool is one allocation [block][layer][K, V][kv head][offset][head dim], so that one block is one
contiguous run for the KV transfer. A step's index tensors are made once (`PagedBatch`) and used by
every layer, each through its own shifted view of the pool.

Sequences with one new token are gathered and multiplied together, query heads of a group folded
into rows; prompts go one by one in tiles of rows with causal trimming. Layers with a sliding window
read the blocks that it reaches and no others; the pool keeps them all. `TritonPool` computes the
same on a GPU with kernels of its own, behind the same calls.

A pool of float8_e4m3fn (`--kv-cache-dtype fp8`) rounds what is written and widens what is read; its
scale is 1, as vLLM's without a calibration.

`HostKv` has blocks in the host's memory, for preempted requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from argosy_engine.core.request import BlockTable
from argosy_engine.core.runner import NULL_BLOCK
from argosy_engine.core.step import Copies, FlatBatch


def rotate_(heads: torch.Tensor, turn: torch.Tensor) -> None:
    """Turn `heads` [N, H, head_dim], pairs side by side, in place; `turn` [N, 1, head_dim / 2]."""
    pairs = heads.view(*heads.shape[:-1], -1, 2)
    if heads.dtype is torch.float32:
        torch.view_as_complex(pairs).mul_(turn)
    else:
        turned = torch.view_as_complex(pairs.float()) * turn
        pairs.copy_(torch.view_as_real(turned))


_GATHER_ELEMENTS = 1 << 21
"""K and V elements gathered for one group of single-token rows: 8 MiB of float32, about a cache."""
_SCORE_ELEMENTS = 1 << 22
"""Score elements of one tile of prompt rows: 16 MiB of float32."""
_TILE_ROWS = 128
_NOT_SEEN = float("-inf")


FP8 = torch.float8_e4m3fn
_LARGEST_FP8 = 448.0


def to_fp8(x: torch.Tensor) -> torch.Tensor:
    """The nearest numbers of `FP8`; what is beyond its range becomes the last one, NaN stays."""
    return x.float().clamp(-_LARGEST_FP8, _LARGEST_FP8).to(FP8)


def _indexed(memory: torch.Tensor) -> torch.Tensor:
    """`memory` as torch indexes it: of FP8 it does not on every device, so as bytes."""
    return memory.view(torch.uint8) if memory.dtype is FP8 else memory


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """Blocks include the null block; the rest is in elements."""

    blocks: int
    layers: int
    kv_heads: int
    block_size: int
    head_dim: int

    @property
    def block_elements(self) -> int:
        return self.layers * 2 * self.kv_heads * self.block_size * self.head_dim


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms of each head of Q and of K by itself, before they are turned (Qwen3)."""

    q: torch.Tensor
    """[head_dim] weights."""
    k: torch.Tensor
    """[head_dim] weights."""
    eps: float


@dataclass(frozen=True, slots=True)
class _Singles:
    """Sequences with one new token and similar length: B of them, padded to M blocks."""

    tokens: torch.Tensor
    """[B] index into the step's N tokens."""
    gather: torch.Tensor
    """[2 · B · kv_heads · M] rows of `PagedPool._by_block`."""
    bias: torch.Tensor
    """[B · kv_heads, 1, M · block_size] 0 or -inf."""


@dataclass(frozen=True, slots=True)
class _Span:
    """One sequence with several new tokens: tokens [first, last) of the step."""

    first: int
    last: int
    start: int
    """How many of the gathered keys come before the first token."""
    gather: torch.Tensor
    """[2 · kv_heads · blocks]."""


@dataclass(frozen=True, slots=True)
class _View:
    """What the layers of one window read."""

    singles: tuple[_Singles, ...]
    spans: tuple[_Span, ...]


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """One step on the pool's device, whole numbers all."""

    flat: FlatBatch
    token_ids: torch.Tensor
    """[N]"""
    positions: torch.Tensor
    """[N]"""
    sample_rows: torch.Tensor
    """[S]"""


@dataclass(frozen=True, slots=True)
class _GatherBatch(PagedBatch):
    """What the layers index the pool with."""

    write: torch.Tensor
    """[N, 2 · kv_heads] rows of `PagedPool._by_token`."""
    views: dict[int, _View] = field(default_factory=dict)
    """By window, made when the first layer of that window attends."""


class PagedPool:
    """KV of all sequences: the memory, and the two operations on it."""

    def __init__(self, shape: PoolShape, dtype: torch.dtype, device: torch.device) -> None:
        """`dtype` is that of KV. torch.OutOfMemoryError or RuntimeError when the memory is not
        there."""
        self.shape = shape
        self.memory = _zeros(shape.blocks, shape.block_elements, dtype, device)
        heads, size, dim = shape.kv_heads, shape.block_size, shape.head_dim
        indexed = _indexed(self.memory)
        by_block = indexed.view(-1, size * dim)
        by_token = indexed.view(-1, dim)
        per_layer = 2 * heads
        self._by_block = [by_block[layer * per_layer :] for layer in range(shape.layers)]
        self._by_token = [by_token[layer * per_layer * size :] for layer in range(shape.layers)]
        self._head_rows = torch.arange(per_layer, device=device)
        self._scale = dim**-0.5
        # Scores in float32 everywhere but on devices that accumulate in it and are slow at it.
        self._math = dtype if device.type == "cuda" and dtype is not FP8 else torch.float32
        future = torch.full((_TILE_ROWS, _TILE_ROWS), float("-inf"), device=device).triu(1)
        self._future = future.to(self._math)

    @property
    def device(self) -> torch.device:
        return self.memory.device

    # -------------------------------------------------------------- once a step

    def prepare(self, flat: FlatBatch) -> PagedBatch:
        """Index tensors for a step; O(tokens + blocks of its sequences)."""
        slots = self._ids(flat.slot_mapping)
        size = self.shape.block_size
        block_rows = self.shape.layers * 2 * self.shape.kv_heads * size
        base = slots // size * block_rows + slots % size
        return _GatherBatch(
            flat,
            self._ids(flat.token_ids),
            self._ids(flat.positions),
            self._ids(flat.sample_rows),
            base.unsqueeze(1) + self._head_rows * size,
        )

    def _view(self, batch: _GatherBatch, window: int) -> _View:
        """The batch as layers of that window see it: without the blocks before it."""
        flat = batch.flat if not window else self._without_the_past(batch.flat, window)
        singles: list[int] = []
        spans: list[_Span] = []
        for index, table in enumerate(flat.block_tables):
            first, last = flat.cu_q[index], flat.cu_q[index + 1]
            if last - first == 1:
                singles.append(index)
            else:
                start = flat.kv_lens[index] - (last - first)
                gather = self._gather_rows([table], len(table))
                spans.append(_Span(first, last, start, gather))
        groups = self._groups(flat, singles)
        return _View(tuple(self._singles(flat, group, window) for group in groups), tuple(spans))

    def _without_the_past(self, flat: FlatBatch, window: int) -> FlatBatch:
        """Tables and lengths that begin at the first block that a token of the step sees."""
        size = self.shape.block_size
        tables: list[BlockTable] = []
        lengths: list[int] = []
        for index, table in enumerate(flat.block_tables):
            start = flat.kv_lens[index] - (flat.cu_q[index + 1] - flat.cu_q[index])
            skipped = max(0, start - window + 1) // size
            tables.append(table[skipped:])
            lengths.append(flat.kv_lens[index] - skipped * size)
        return replace(flat, block_tables=tables, kv_lens=lengths)

    def _groups(self, flat: FlatBatch, singles: list[int]) -> list[list[int]]:
        """Longest first. A group ends where padding would double the work or exceed the cache."""
        singles = sorted(singles, key=lambda index: -flat.kv_lens[index])
        groups: list[list[int]] = []
        row = 2 * self.shape.kv_heads * self.shape.block_size * self.shape.head_dim
        limit, longest = 0, 0
        for index in singles:
            blocks = len(flat.block_tables[index])
            if not groups or len(groups[-1]) >= limit or 2 * blocks < longest:
                groups.append([])
                longest = blocks
                limit = max(1, _GATHER_ELEMENTS // (row * blocks))
            groups[-1].append(index)
        return groups

    def _singles(self, flat: FlatBatch, group: list[int], window: int) -> _Singles:
        tables = [flat.block_tables[index] for index in group]
        width = len(tables[0])
        lengths = self._ids([flat.kv_lens[index] for index in group]).unsqueeze(1)
        positions = torch.arange(width * self.shape.block_size, device=self.device)
        beyond = positions >= lengths
        if window:
            beyond |= positions < lengths - window
        bias = torch.zeros(beyond.shape, dtype=self._math, device=self.device)
        bias.masked_fill_(beyond, float("-inf"))
        return _Singles(
            self._ids([flat.cu_q[index] for index in group]),
            self._gather_rows(tables, width),
            bias.repeat_interleave(self.shape.kv_heads, dim=0).unsqueeze(1),
        )

    def _gather_rows(self, tables: Sequence[BlockTable], width: int) -> torch.Tensor:
        """Order [K, V][sequence][kv head][block]: what bmm wants, without a copy in between."""
        padded = np.full((len(tables), width), NULL_BLOCK, np.int64)
        for row, table in zip(padded, tables, strict=True):
            row[: len(table)] = table
        blocks = torch.from_numpy(padded).to(self.device) * (
            self.shape.layers * 2 * self.shape.kv_heads
        )
        rows = self._head_rows.view(2, 1, -1, 1) + blocks.view(1, len(tables), 1, width)
        return rows.reshape(-1)

    def _ids(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    # -------------------------------------------------------------- once a layer

    def write(self, layer: int, batch: PagedBatch, kv: torch.Tensor) -> None:
        """Store `kv` [N, 2 · kv_heads, head_dim], K heads before V heads."""
        assert isinstance(batch, _GatherBatch)
        if self.memory.dtype is FP8:
            kv = to_fp8(kv).view(torch.uint8)
        self._by_token[layer][batch.write] = kv

    def turn_and_write(
        self,
        layer: int,
        batch: PagedBatch,
        heads: torch.Tensor,
        turn: torch.Tensor,
        norms: HeadNorms | None = None,
    ) -> None:
        """Turn the Q heads of `heads` [N, heads + 2 · kv_heads, head_dim] in place by `turn`
        (see `rotate_`), and store K, turned as well, and V; `norms` come before the turn.

        What K in `heads` is afterwards is not said."""
        kv_heads, dim = self.shape.kv_heads, self.shape.head_dim
        before = heads.shape[1] - 2 * kv_heads
        if norms is not None:
            q, k = heads[:, :before], heads[:, before : before + kv_heads]
            q.copy_(F.rms_norm(q, (dim,), norms.q, norms.eps))
            k.copy_(F.rms_norm(k, (dim,), norms.k, norms.eps))
        rotate_(heads[:, : before + kv_heads], turn)
        self.write(layer, batch, heads[:, before:])

    def attend(
        self,
        layer: int,
        batch: PagedBatch,
        q: torch.Tensor,
        window: int = 0,
        scale: float | None = None,
    ) -> torch.Tensor:
        """softmax(scale·q·Kᵀ)·V for `q` [N, heads, head_dim], causal; the same shape and type.

        A token sees the newest `window` tokens, itself included; 0: all. `scale` None: 1/√d.
        """
        assert isinstance(batch, _GatherBatch)
        scale = self._scale if scale is None else scale
        if window not in batch.views:
            batch.views[window] = self._view(batch, window)
        view = batch.views[window]
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for group in view.singles:
            out[group.tokens] = self._attend_singles(layer, group, q[group.tokens], scale)
        for span in view.spans:
            rows = slice(span.first, span.last)
            self._attend_span(layer, span, q[rows], out[rows], window, scale)
        return out

    def _attend_singles(
        self, layer: int, group: _Singles, q: torch.Tensor, scale: float
    ) -> torch.Tensor:
        count, heads, dim = q.shape
        batches = count * self.shape.kv_heads
        rows = self._by_block[layer].index_select(0, group.gather).view(self.memory.dtype)
        k, v = rows.view(2, batches, -1, dim).to(self._math).unbind()
        folded = q.reshape(batches, -1, dim).to(self._math)
        scores = torch.baddbmm(group.bias, folded, k.transpose(1, 2), alpha=scale)
        return torch.bmm(scores.softmax(-1), v).view(count, heads, dim).to(q.dtype)

    def _attend_span(
        self,
        layer: int,
        span: _Span,
        q: torch.Tensor,
        out: torch.Tensor,
        window: int,
        scale: float,
    ) -> None:
        """Tiles of rows; a tile sees the keys up to its last row, masked in its last columns, and
        those from its first row's window on, masked for the other rows."""
        count, heads, dim = q.shape
        kv_heads = self.shape.kv_heads
        rows = self._by_block[layer].index_select(0, span.gather).view(self.memory.dtype)
        k, v = rows.view(2, kv_heads, -1, dim).to(self._math).unbind()
        by_group = q.view(count, kv_heads, -1, dim).permute(1, 2, 0, 3).to(self._math)
        whole_prompt = span.start == 0 and (not window or count <= window)
        if self.device.type == "cuda" and whole_prompt:
            whole = F.scaled_dot_product_attention(
                by_group.flatten(0, 1).unsqueeze(0),
                k[:, :count].unsqueeze(0),
                v[:, :count].unsqueeze(0),
                is_causal=True,
                scale=scale,
                enable_gqa=True,
            )
            out.copy_(whole[0].transpose(0, 1))
            return
        target = out.view(count, kv_heads, -1, dim).permute(1, 2, 0, 3)
        step = max(1, min(_TILE_ROWS, _SCORE_ELEMENTS // (heads * (span.start + count))))
        for first in range(0, count, step):
            last = min(first + step, count)
            end, size = span.start + last, last - first
            begin = max(0, span.start + first - window + 1) if window else 0
            tile = by_group[:, :, first:last].reshape(kv_heads, -1, dim) * scale
            scores = torch.bmm(tile, k[:, begin:end].transpose(1, 2))
            by_row = scores.view(kv_heads, -1, size, end - begin)
            by_row[..., end - begin - size :] += self._future[:size, :size]
            if window:
                by_row.masked_fill_(self._past(span.start + first, size, begin, window), _NOT_SEEN)
            attended = torch.bmm(scores.softmax(-1), v[:, begin:end])
            target[:, :, first:last] = attended.view(kv_heads, -1, size, dim).to(q.dtype)

    def _past(self, first: int, size: int, begin: int, window: int) -> torch.Tensor:
        """[size, keys] Whether a key is before a row's window; `first` row, `begin` first key."""
        rows = torch.arange(first, first + size, device=self.device).unsqueeze(1)
        keys = torch.arange(begin, first + size, device=self.device)
        return keys <= rows - window


def _zeros(
    blocks: int, block_elements: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[blocks, block_elements]; zeroed, since padded positions have weight 0 and 0 · NaN is NaN.

    On a CPU the kernel gives zeroed pages as blocks are first used: an engine starts seconds
    earlier and holds only what it was asked for. A block of a small model costs 0.3 ms that once.
    """
    if device.type != "cpu":
        return torch.zeros(blocks, block_elements, dtype=dtype, device=device)
    untouched = np.zeros(blocks * block_elements * dtype.itemsize, np.uint8)
    return torch.from_numpy(untouched).view(dtype).view(blocks, block_elements)


class HostKv:
    """Slots of one pool's blocks; none until `reserve`."""

    def __init__(self, pool: PagedPool) -> None:
        self._device = pool.device
        self._blocks = _indexed(pool.memory)
        self._slots = torch.empty(0)

    def reserve(self, slots: int) -> None:
        """Pages come as slots are first used, but on a GPU, whose copies need pinned memory.

        MemoryError or RuntimeError when the memory is not there.
        """
        cuda = self._device.type == "cuda"
        width, dtype = self._blocks.shape[1], self._blocks.dtype
        self._slots = torch.empty(slots, width, dtype=dtype, pin_memory=cuda)

    def take(self, copies: Copies) -> None:
        """Blocks to slots; returns when the blocks may be written to."""
        blocks, slots = _columns(copies)
        with torch.inference_mode():
            self._slots[slots] = self._blocks[blocks.to(self._device)].cpu()

    def give(self, copies: Copies) -> None:
        """Slots to blocks, before the step that reads them."""
        blocks, slots = _columns(copies)
        with torch.inference_mode():
            self._blocks[blocks.to(self._device)] = self._slots[slots].to(self._device)


def _columns(copies: Copies) -> tuple[torch.Tensor, torch.Tensor]:
    """(blocks, slots)."""
    blocks, slots = torch.tensor(copies).unbind(1)
    return blocks, slots
