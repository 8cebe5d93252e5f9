"""The floor: the least time that a step can take on this machine with these weights.

It is the time of the step's matrix products, each by whichever product was the fastest in this run
(torch's with packed weights, or the native library's), plus the bytes of KV that it reads over the
bandwidth that this run measured. Attention's products, norms and sampling are left out, so no
engine of this type reaches it. The products take turns in the model's order of matrices, so that
weights come from where they come from in a step.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from argosy_bench.engine.loads import SEQUENCES
from argosy_bench.engine.table import ROWS, Floor
from argosy_engine.config import EngineConfig
from argosy_engine.model.native.library import Library
from argosy_engine.model.native_trunk import NativeLinear, NativeTrunk
from argosy_engine.model.trunk import Linear, Trunk
from argosy_engine.runtime.torch.sources import open_library

_REPEATS = {1: 12, 8: 12, SEQUENCES: 8, 512: 3, 1536: 2}
_READ_BYTES = 512 << 20
_KINDS = ("qkv", "out", "gate_up", "down", "head")


def measure_floor(plain: Trunk, native: NativeTrunk) -> Floor:
    """Time the products of both trunks, in turn; each is the best of its repeats."""
    trunks: dict[str, Trunk | NativeTrunk] = {"torch": plain, "native": native}
    opened = open_library(EngineConfig(model="", served_name=""), torch.device("cpu"))
    assert opened is not None
    try:
        best = _best_s(trunks, opened.library)
    finally:
        opened.library.close()
    keys = [(kind, rows) for rows in ROWS for kind in _KINDS]
    of = {key: min(best[*key, name] for name in trunks) for key in keys}
    return Floor(
        trunk_s={rows: sum(of[kind, rows] for kind in _KINDS[:-1]) for rows in ROWS},
        head_s={rows: of["head", rows] for rows in ROWS if rows <= SEQUENCES},
        products=[
            {"matrix": kind, "rows": rows}
            | {f"{name}_ms": round(best[kind, rows, name] * 1e3, 3) for name in trunks}
            for kind, rows in keys
        ],
        read_bytes_per_s=_read_bytes_per_s(),
        kv_bytes=plain.spec.kv_bytes_per_token(2),
    )


def _best_s(
    trunks: dict[str, Trunk | NativeTrunk], library: Library
) -> dict[tuple[str, int, str], float]:
    """Seconds by kind, rows and trunk."""
    best: dict[tuple[str, int, str], float] = {}
    with torch.inference_mode():
        for rows in ROWS:
            passes = {name: _Pass(trunk, rows, library) for name, trunk in trunks.items()}
            for _ in range(_REPEATS[rows]):
                for name, one in passes.items():
                    for kind, seconds in one.run().items():
                        key = kind, rows, name
                        best[key] = min(best.get(key, seconds), seconds)
    return best


class _Pass:
    """All products of a step in the model's order, without fresh memory where ours needs none."""

    def __init__(self, trunk: Trunk | NativeTrunk, rows: int, library: Library) -> None:
        weights, spec = trunk.weights, trunk.spec
        widths = (spec.hidden, spec.q_size, spec.hidden, spec.inner)
        of_layers = [
            (kind, getattr(layer, kind), torch.ones(rows, width))
            for layer in weights.layers
            for kind, width in zip(_KINDS, widths, strict=False)
        ]
        head = "head", weights.head, torch.ones(min(rows, SEQUENCES), spec.hidden)
        self._products = [
            (kind, _product(linear, x, library)) for kind, linear, x in (*of_layers, head)
        ]

    def run(self) -> dict[str, float]:
        """Seconds by kind."""
        took = dict.fromkeys(_KINDS, 0.0)
        for kind, product in self._products:
            began = time.perf_counter()
            product()
            took[kind] += time.perf_counter() - began
        return took


def _product(linear: object, x: torch.Tensor, library: Library) -> Callable[[], object]:
    if isinstance(linear, NativeLinear):
        fields, rows = linear.matrix.fields, x.numpy()
        written = np.zeros((len(rows), fields.out), np.float32)
        return lambda: library.product(fields, rows, written)
    assert isinstance(linear, Linear)
    narrow = x.to(torch.bfloat16)
    return lambda: linear(narrow)


def _read_bytes_per_s() -> float:
    """Bandwidth of reading memory that no cache holds, with all threads; the best of several."""
    memory = torch.ones(_READ_BYTES // 4, dtype=torch.int32)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        memory.max()
        best = min(best, time.perf_counter() - began)
    return _READ_BYTES / best
