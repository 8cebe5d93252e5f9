"""The decoder as one native call a step, with the weights that `loader` read.

Stands in for `trunk.Trunk` where a library of `argosy_engine.model.native` works: the same
weights, the same pool, the same `logits(flat, pool)`. Activations are float32 throughout; weights
and KV have the type of the pool, and matrices may be 8-bit integers (`--quantization int8`).
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from argosy.model_config import ModelSpec
from argosy_engine.core.step import FlatBatch
from argosy_engine.model.attention.paged import PagedPool
from argosy_engine.model.native.library import (
    BF16,
    F32,
    INT8,
    Batch,
    LayerFields,
    Library,
    Matrix,
    MatrixFields,
    ModelFields,
)
from argosy_engine.model.trunk import Weights, rotation_table

_TYPES = {torch.float32: F32, torch.bfloat16: BF16}


class NativeLinear:
    """A `linear.Linear` in the library's order. `weight` [out, in] is not kept."""

    def __init__(
        self,
        library: Library,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        int8: bool = False,
    ) -> None:
        """`int8`: the weight is rounded to 8-bit integers, and so are the inputs of products."""
        kind = INT8 if int8 else _TYPES[weight.dtype]
        values = _wide(weight) if int8 else _array(weight)
        self.matrix = Matrix(library, values, kind, None if bias is None else _wide(bias))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.matrix(x.float().numpy())).to(x.dtype)


class NativeTrunk:
    """Weights, the rotation table for `max_positions` positions, and the pool, as C sees them."""

    def __init__(
        self,
        library: Library,
        spec: ModelSpec,
        weights: Weights,
        pool: PagedPool,
        *,
        max_positions: int,
    ) -> None:
        """`weights` has NativeLinears, and the embedding in the type of `pool`, which is on the
        CPU."""
        self.spec, self.weights = spec, weights
        self._library, self._pool, self._max_positions = library, pool, max_positions
        self._kept: list[npt.NDArray[Any]] = []
        layers = (LayerFields * spec.layers)()
        for fields, layer, window in zip(layers, weights.layers, spec.windows, strict=True):
            fields.attention_norm = self._keep(layer.attention_norm)
            fields.q_norm = self._keep(layer.q_norm)
            fields.k_norm = self._keep(layer.k_norm)
            fields.mlp_norm = self._keep(layer.mlp_norm)
            fields.window = window
            for name in ("qkv", "out", "gate_up", "down"):
                setattr(fields, name, _fields(getattr(layer, name)))
        turns = rotation_table(spec.rope, spec.head_dim, max_positions, torch.device("cpu"))
        self._model = ModelFields(
            layers=spec.layers,
            hidden=spec.hidden,
            inner=spec.inner,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            vocab=spec.vocab,
            block_size=pool.shape.block_size,
            type=_TYPES[pool.memory.dtype],
            eps=spec.norm_eps,
            embedding=weights.embedding.data_ptr(),
            norm=self._keep(weights.norm),
            rotations=self._keep(torch.view_as_real(turns)),
            layer=layers,
            head=_fields(weights.head),
            pool=pool.memory.data_ptr(),
        )
        self._layers = layers
        self._logits = torch.empty(0, spec.vocab)

    def logits(self, flat: FlatBatch, pool: PagedPool) -> torch.Tensor:
        """Logits [S, vocab] of the sampled rows, valid until the next step.

        IndexError for a token or a position that the tables do not have: the library reads there
        unasked.
        """
        assert pool is self._pool
        if not 0 <= min(flat.token_ids) <= max(flat.token_ids) < self.spec.vocab:
            raise IndexError(f"token ids are 0 to {self.spec.vocab - 1}")
        if not 0 <= min(flat.positions) <= max(flat.positions) < self._max_positions:
            raise IndexError(f"positions are 0 to {self._max_positions - 1}")
        logits = self._room(len(flat.sample_rows))
        batch = Batch(
            ids=flat.token_ids,
            positions=flat.positions,
            slots=flat.slot_mapping,
            first=flat.cu_q,
            lengths=flat.kv_lens,
            tables=flat.joined_tables(),
            table_starts=flat.table_starts,
            sampled=flat.sample_rows,
            logits=logits.numpy(),
        )
        self._library.step(self._model, batch)
        return logits

    def draw(self, logits: torch.Tensor, draws: npt.NDArray[np.void] | None) -> list[int]:
        """As `Library.draw`, of what `logits` returned."""
        return self._library.draw(logits.numpy(), draws)

    def close(self) -> None:
        """End the threads."""
        self._library.close()

    def _room(self, rows: int) -> torch.Tensor:
        """The same memory at every step: fresh pages cost as much as the head's product."""
        if rows > len(self._logits):
            self._logits = torch.empty(rows, self.spec.vocab)
        return self._logits[:rows]

    def _keep(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._kept.append(_wide(tensor))
        return int(self._kept[-1].ctypes.data)


def _fields(linear: Any) -> MatrixFields:
    assert isinstance(linear, NativeLinear)
    return linear.matrix.fields


def _wide(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(tensor.float().numpy())


def _array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The tensor's own memory; bfloat16 as 16-bit integers, which numpy lacks otherwise."""
    tensor = tensor.contiguous()
    bits: npt.NDArray[Any] = (
        tensor.view(torch.int16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()
    )
    return bits
