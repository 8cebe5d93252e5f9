"""The child process of `native.choose`: one step with a library, beside the base library's.

    python -m argosy_engine.model.native.trial LIBRARY BASE

A random decoder of two layers computes a prompt and a decode, in float32, in bfloat16 (multiplied
in pairs and as float32) and with 8-bit matrices, and tokens are drawn. That executes every kernel
of the library. Exit status 0 if logits, KV and tokens agree; a difference is the last line of
stderr.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from argosy_engine.model.native.library import (
    BF16,
    DRAW,
    F32,
    INT8,
    Batch,
    LayerFields,
    Library,
    Matrix,
    ModelFields,
)

_HIDDEN, _INNER, _HEADS, _KV_HEADS, _DIM, _VOCAB, _BLOCK = 96, 112, 4, 2, 64, 75, 16
_LAYERS, _BLOCKS, _PROMPT = 2, 6, 40
_DRAWS = [(0, 0, 1, 0, 0), (0.3, 1, 1, 0, 0), (0.6, 1, 0.9, 0, 0), (0.7, 2, 0.95, 0.01, 200)]
"""Points, temperatures, top_p, min_p and top_k of rows."""
_CLOSE = {F32: 1e-3, BF16: 0.1, INT8: 0.1}  # of logits with a spread of about 1


def main(words: list[str]) -> int:
    """Compare the two libraries."""
    for kind, pairs in ((F32, True), (BF16, True), (BF16, False), (INT8, True)):
        results = [_run(Path(word), kind, pairs=pairs) for word in words[1:]]
        for found, right in zip(*results, strict=True):
            error = float(np.abs(found - right).max())
            if not error < _CLOSE[kind]:  # also if it is NaN
                sys.stderr.write(f"wrong by {error:.3g} with type {kind}\n")
                return 1
    return 0


def _run(path: Path, kind: int, *, pairs: bool) -> list[npt.NDArray[np.float32]]:
    """Logits of both steps, and the pool; `kind` is the type of the matrices, `pairs` as `Library`
    has it."""
    stored = BF16 if kind == BF16 else F32
    library = Library(path, threads=2, spins=1000, pairs=pairs)
    rng = np.random.default_rng(0)
    kept: list[Any] = []

    def numbers(*shape: int) -> npt.NDArray[np.float32]:
        return rng.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)

    def matrix(out: int, width: int) -> Any:
        kept.append(Matrix(library, _stored(numbers(out, width), stored), kind, None))
        return kept[-1].fields

    def row(size: int) -> int:
        kept.append(np.ones(size, np.float32))
        return int(kept[-1].ctypes.data)

    heads = _HEADS * _DIM
    layers = (LayerFields * _LAYERS)()
    for layer in layers:
        layer.attention_norm, layer.mlp_norm = row(_HIDDEN), row(_HIDDEN)
        layer.q_norm, layer.k_norm = row(_DIM), row(_DIM)
        layer.qkv = matrix(heads + 2 * _KV_HEADS * _DIM, _HIDDEN)
        layer.out = matrix(_HIDDEN, heads)
        layer.gate_up, layer.down = matrix(2 * _INNER, _HIDDEN), matrix(_HIDDEN, _INNER)
    embedding = _stored(numbers(_VOCAB, _HIDDEN), stored)
    angles = np.outer(np.arange(_PROMPT + 1), np.ones(_DIM // 2))
    turns = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    elements = _BLOCKS * _LAYERS * 2 * _KV_HEADS * _BLOCK * _DIM
    pool = np.zeros(elements, np.float32 if stored == F32 else np.uint16)
    model = ModelFields(_LAYERS, _HIDDEN, _INNER, _HEADS, _KV_HEADS, _DIM, _VOCAB, _BLOCK, stored)
    model.eps, model.embedding, model.norm = 1e-5, embedding.ctypes.data, row(_HIDDEN)
    model.rotations, model.layer = turns.ctypes.data, layers
    model.head, model.pool = matrix(_VOCAB, _HIDDEN), pool.ctypes.data
    results = [_step(library, model, 0, _PROMPT), _step(library, model, _PROMPT, 1)]
    results.append(_draw(library, numbers(len(_DRAWS), 300)))
    library.close()
    return [*results, _values(pool, stored)]


def _draw(library: Library, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Ids of a greedy row, and of one for each way to draw."""
    return np.array(library.draw(logits, np.array(_DRAWS, DRAW)), np.float32)


def _step(library: Library, model: ModelFields, start: int, count: int) -> npt.NDArray[np.float32]:
    """Logits of the last of `count` tokens of one sequence."""
    logits = np.empty((1, _VOCAB), np.float32)
    positions = range(start, start + count)
    table = np.array([3, 1, 4, 2], np.int32)
    batch = Batch(
        ids=[position % _VOCAB for position in positions],
        positions=positions,
        slots=[table[position // _BLOCK] * _BLOCK + position % _BLOCK for position in positions],
        first=[0, count],
        lengths=[start + count],
        tables=table.tobytes(),
        table_starts=[0, len(table)],
        sampled=[count - 1],
        logits=logits,
    )
    library.step(model, batch)
    return logits


def _stored(values: npt.NDArray[np.float32], kind: int) -> npt.NDArray[Any]:
    """As the type has it; bfloat16 is cut off."""
    if kind == F32:
        return np.ascontiguousarray(values)
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)


def _values(stored: npt.NDArray[Any], kind: int) -> npt.NDArray[np.float32]:
    if kind == F32:
        return np.asarray(stored, np.float32)
    return (stored.astype(np.uint32) << 16).view(np.float32)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
