"""The C ABI of `native.h` in Python: structures, matrices, and the step.

`model.native` fills the structures and calls `Library.step` once a step, on the engine thread;
ctypes releases the GIL meanwhile. Memory is numpy's. A structure keeps no reference: the code that
fills one keeps the arrays.
"""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_double, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

F32, BF16, INT8 = 0, 1, 2
_CACHE_LINE = 64
Array = npt.NDArray[Any]


class MatrixFields(Structure):
    """`struct matrix`."""

    _fields_ = (
        ("out", c_int64),
        ("in_", c_int64),
        ("type", c_int64),
        ("packed", c_void_p),
        ("bias", c_void_p),
    )


class LayerFields(Structure):
    """`struct layer`."""

    _fields_ = (
        ("attention_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("window", c_int64),
        ("qkv", MatrixFields),
        ("out", MatrixFields),
        ("gate_up", MatrixFields),
        ("down", MatrixFields),
    )


class ModelFields(Structure):
    """`struct model`."""

    _fields_ = (
        *((name, c_int64) for name in ("layers", "hidden", "inner", "heads", "kv_heads")),
        *((name, c_int64) for name in ("head_dim", "vocab", "block_size", "type")),
        ("eps", c_double),
        ("embedding", c_void_p),
        ("norm", c_void_p),
        ("rotations", c_void_p),
        ("layer", POINTER(LayerFields)),
        ("head", MatrixFields),
        ("pool", c_void_p),
    )


class _BatchFields(Structure):
    """`struct batch`."""

    _fields_ = (
        *((name, c_int64) for name in ("tokens", "sequences", "samples")),
        *((name, c_void_p) for name in ("ids", "positions", "slots", "first", "lengths")),
        *((name, c_void_p) for name in ("tables", "table_at", "sampled", "logits")),
    )


class Batch:
    """One step's lists as arrays (see `core.step.FlatBatch`); `logits` [S, vocab] is written.

    `tables` are the joined ones.
    """

    def __init__(
        self,
        *,
        ids: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        first: Sequence[int],
        lengths: Sequence[int],
        tables: bytes,
        table_starts: Sequence[int],
        sampled: Sequence[int],
        logits: Array,
    ) -> None:
        short = [np.asarray(values, np.int32) for values in (ids, positions, first, lengths)]
        arrays: tuple[Array, ...] = (*short[:2], np.asarray(slots, np.int64), *short[2:])
        blocks, at = np.frombuffer(tables, np.int32), np.asarray(table_starts, np.int32)
        arrays += (blocks, at, np.asarray(sampled, np.int32), logits)
        self._kept = arrays
        counts = (len(ids), len(lengths), len(sampled))
        self.fields = _BatchFields(*counts, *(array.ctypes.data for array in arrays))


DRAW = np.dtype(
    [("point", "f8"), ("temperature", "f4"), ("top_p", "f4"), ("min_p", "f4"), ("top_k", "i4")]
)
"""`struct draw`."""


class Matrix:
    """A packed matrix; holds the only copy of the weight."""

    def __init__(self, library: "Library", weight: Array, kind: int, bias: Array | None) -> None:
        """`weight` [out, in] float32, for INT8, too, or uint16 with bfloat16's bits; `bias` float32
        [out]."""
        out, width = weight.shape
        self._library, self._bias = library, bias
        self._packed = library.pack(weight, kind)
        self.fields = MatrixFields(
            out, width, kind, self._packed.ctypes.data, None if bias is None else bias.ctypes.data
        )

    def __call__(self, x: Array) -> Array:
        """x · weightᵀ + bias for float32 `x` [rows, in]."""
        x = np.ascontiguousarray(x, np.float32)
        y = np.empty((len(x), self.fields.out), np.float32)
        self._library.product(self.fields, x, y)
        return y


class Library:
    """A loaded library and its team of threads."""

    def __init__(self, path: Path, *, threads: int, spins: int, pairs: bool | None = None) -> None:
        """`pairs`: whether vectors multiply bfloat16 in pairs or as float32, in this whole process;
        None: what is faster on this CPU. OSError if it cannot be loaded, is not of this release,
        or gets no registers.
        """
        self.path = path
        self._dll = ctypes.CDLL(str(path))
        self._check(path)
        self._dll.argosy_team.restype = c_void_p
        self._dll.argosy_team.argtypes = (c_int64, c_int64)
        self._dll.argosy_packed_bytes.restype = c_int64
        self._dll.argosy_packed_bytes.argtypes = (c_int64, c_int64, c_int64)
        self._dll.argosy_pack.argtypes = (c_void_p, c_void_p, c_int64, c_int64, c_int64)
        self._dll.argosy_product.argtypes = (c_void_p, c_void_p, c_void_p, c_int64, c_void_p)
        self._dll.argosy_step.argtypes = (c_void_p, c_void_p, c_void_p)
        self._dll.argosy_draw.argtypes = (c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p)
        self._dll.argosy_team_close.argtypes = (c_void_p,)
        error = self._dll.argosy_permit()
        if error:
            raise OSError(error, "the kernel does not give the registers of AMX")
        self.pairs = bool(self._dll.argosy_pairs(-1 if pairs is None else pairs))
        self._team = self._dll.argosy_team(threads, spins)
        if not self._team:
            raise OSError(f"no team of {threads} threads could be started")
        self.threads = threads

    def _check(self, path: Path) -> None:
        sizes = (c_int64 * 5)()
        self._dll.argosy_sizes(sizes)
        structures = (MatrixFields, LayerFields, ModelFields, _BatchFields)
        expected = [*(ctypes.sizeof(fields) for fields in structures), DRAW.itemsize]
        if list(sizes) != expected or not hasattr(self._dll, "argosy_pairs"):
            raise OSError(f"{path} is of another release: build the package again")

    def close(self) -> None:
        """End the threads; nothing may be called afterwards."""
        team, self._team = self._team, None
        if team:
            self._dll.argosy_team_close(team)

    def pack(self, weight: Array, kind: int) -> Array:
        """`weight` [out, in] in the order of the products, aligned to a cache line."""
        out, width = weight.shape
        packed = aligned(self._dll.argosy_packed_bytes(out, width, kind))
        weight = np.ascontiguousarray(weight)
        _raise(self._dll.argosy_pack(packed.ctypes.data, weight.ctypes.data, out, width, kind))
        return packed

    def product(self, matrix: MatrixFields, x: Array, y: Array) -> None:
        """y = x · weightᵀ + bias."""
        data = x.ctypes.data, len(x), y.ctypes.data
        _raise(self._dll.argosy_product(self._team, byref(matrix), *data))

    def step(self, model: ModelFields, batch: Batch) -> None:
        """Compute a step: `batch.logits`, and K and V of its tokens. MemoryError."""
        _raise(self._dll.argosy_step(self._team, byref(model), byref(batch.fields)))

    def draw(self, logits: Array, draws: Array | None) -> list[int]:
        """An id for each row of contiguous float32 `logits` [S, vocab]; -1 where none can follow.

        `draws` [S] of `DRAW`, or None: the largest logit of each row. MemoryError.
        """
        ids = np.empty(len(logits), np.int32)
        drawn = None if draws is None else draws.ctypes.data
        shape = logits.ctypes.data, *logits.shape
        _raise(self._dll.argosy_draw(self._team, *shape, drawn, ids.ctypes.data))
        found: list[int] = ids.tolist()
        return found


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """Uninitialised bytes. numpy asks the kernel for huge pages, which spares misses of the TLB."""
    raw = np.empty(size + _CACHE_LINE, np.uint8)
    skip = -raw.ctypes.data % _CACHE_LINE
    return raw[skip : skip + size]


def _raise(error: int) -> None:
    if error:
        raise MemoryError(f"the native step failed with errno {error}")
