"""The decoder: Llama, Mistral, Qwen2 and Qwen3 as one lean function over a packed batch.

Called by the torch runner with the flat tokens of one step and the step's paged attention; gives
the logits of the rows that are sampled, and no others.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from argosy_engine.core.step import FlatBatch
from argosy_engine.model.attention.paged import PagedBatch, PagedPool
from argosy_engine.model.linear import Product
from argosy_engine.model.rope import rotation_table
from argosy_engine.model.spec import ModelSpec

__all__ = ["Layer", "Trunk", "Weights"]


@dataclass(slots=True, kw_only=True)
class Layer:
    """One block's weights; q and k rows are in pair order (see `rope`)."""

    attention_norm: torch.Tensor
    """[hidden]."""
    qkv: Product
    """hidden → (heads + 2 · kv_heads) · head_dim."""
    q_norm: torch.Tensor | None
    """[head_dim]; only Qwen3 has it."""
    k_norm: torch.Tensor | None
    """[head_dim]; only Qwen3 has it."""
    out: Product
    """heads · head_dim → hidden."""
    mlp_norm: torch.Tensor
    """[hidden]."""
    gate_up: Product
    """hidden → 2 · inner: gate rows, then up rows."""
    down: Product
    """inner → hidden."""


@dataclass(slots=True, kw_only=True)
class Weights:
    """All weights of a model, in the order in which the trunk uses them."""

    embedding: torch.Tensor
    """[vocab, hidden]."""
    layers: list[Layer]
    norm: torch.Tensor
    """[hidden]."""
    head: Product
    """hidden → vocab."""


class Trunk:
    """Weights plus the rotation table for `max_positions` positions."""

    def __init__(self, spec: ModelSpec, weights: Weights, *, max_positions: int) -> None:
        self.spec = spec
        self.weights = weights
        device = weights.embedding.device
        self._rotations = rotation_table(spec.rope, spec.head_dim, max_positions, device)

    def logits(self, flat: FlatBatch, pool: PagedPool) -> torch.Tensor:
        """Logits [S, vocab] of the sampled rows of a step; writes its K and V into `pool`."""
        batch = pool.prepare(flat)
        return self.forward(batch.token_ids, batch.positions, batch, pool, batch.sample_rows)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: PagedBatch,
        pool: PagedPool,
        sample_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Logits [S, vocab] of `sample_rows` [S]; `token_ids` and `positions` are [N].

        Writes K and V of all N tokens into `pool`.
        """
        weights, eps = self.weights, self.spec.norm_eps
        hidden = F.embedding(token_ids, weights.embedding)
        turn = self._rotations[positions]
        size = (self.spec.hidden,)
        for index, layer in enumerate(weights.layers):
            x = F.rms_norm(hidden, size, layer.attention_norm, eps)
            hidden += self._attention(index, layer, x, turn, batch, pool)
            x = F.rms_norm(hidden, size, layer.mlp_norm, eps)
            gate, up = layer.gate_up(x).chunk(2, dim=-1)
            hidden += layer.down(F.silu(gate).mul_(up))
        last = F.rms_norm(hidden[sample_rows], size, weights.norm, eps)
        return weights.head(last)

    def _attention(
        self,
        index: int,
        layer: Layer,
        x: torch.Tensor,
        turn: torch.Tensor,
        batch: PagedBatch,
        pool: PagedPool,
    ) -> torch.Tensor:
        spec = self.spec
        heads = layer.qkv(x).view(-1, spec.heads + 2 * spec.kv_heads, spec.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = heads[:, : spec.heads], heads[:, spec.heads : spec.heads + spec.kv_heads]
            q.copy_(F.rms_norm(q, (spec.head_dim,), layer.q_norm, spec.norm_eps))
            k.copy_(F.rms_norm(k, (spec.head_dim,), layer.k_norm, spec.norm_eps))
        pool.turn_and_write(index, batch, heads, turn)
        attended = pool.attend(index, batch, heads[:, : spec.heads], spec.windows[index])
        return layer.out(attended.view(-1, spec.q_size))
