"""The decoder: Llama, Mistral, Qwen2 and Qwen3 as one lean function over a packed batch.

Called by the torch runner with the flat tokens of one step and the step's paged attention; gives
the logits of the rows that are sampled, and no others.

`Linear` keeps a weight in oneDNN's own order: `F.linear` on x86 re-orders it at every call, which
costs 1.3 to 2 times the product itself at decode's row counts. The two torch operators are private
names: a torch that lacks them, or a CPU that cannot use them for the type, falls back.

Positions turn heads by one complex product. Rows of the q and k weights are re-ordered at load so
that the two numbers of a rotated pair lie side by side: then a head is a vector of complex numbers,
and turning it by its position is one multiplication by e^{i·position·frequency}. Scores do not
change (q and k are re-ordered alike).
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from argosy.model_config import ModelSpec, Rope
from argosy_engine.core.step import FlatBatch
from argosy_engine.model.attention.between import Between, Plain
from argosy_engine.model.attention.paged import HeadNorms, PagedBatch, PagedPool

_PACK_ROWS = 128
"""Row count that oneDNN packs for. The order chosen for 128 rows was the fastest or level at 1, 8,
32, 128 and 512 rows on AVX2, where orders chosen for fewer rows lost at more."""


class Product(Protocol):
    """x · weightᵀ + bias; the weight is held in whatever order suits the product."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Pack(Protocol):
    """Makes a `Product` of `weight` [out, in] and `bias` [out]."""

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, /) -> Product: ...


class Linear:
    """y = x · weightᵀ + bias. `weight` [out, in]; holds the only copy of it."""

    __slots__ = ("_bias", "_packed", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._bias = bias
        self._packed = _pack(weight)
        self._weight = weight if self._packed is None else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._weight is not None:
            return F.linear(x, self._weight, self._bias)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._packed, self._bias, "none", [], ""
        )
        return product


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
    if weight.device.type != "cpu":
        return None
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
        probe = weight.new_zeros(1, weight.shape[1])
        torch.ops.mkldnn._linear_pointwise(probe, packed, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return None
    return packed


def pair_order(head_dim: int) -> torch.Tensor:
    """Index [head_dim]: (0, d/2, 1, d/2 + 1, …), from Hugging Face's halves to pairs."""
    half = head_dim // 2
    return torch.arange(head_dim).view(2, half).t().reshape(-1)


def frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Radians per token of each pair, float64 [head_dim / 2]."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    plain = rope.theta**-exponent
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":  # linear in turns
        turns = rope.original_positions * plain / (2 * math.pi)
        kept = (turns - rope.slow_turns) / (rope.fast_turns - rope.slow_turns)
    else:  # yarn: linear in the pair's number, with Hugging Face's bounds
        first = _pair_that_turns(rope, rope.fast_turns, head_dim)
        last = _pair_that_turns(rope, rope.slow_turns, head_dim)
        if rope.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        pairs = torch.arange(head_dim // 2, dtype=torch.float64)
        kept = 1 - (pairs - first) / (last - first or 0.001)
    kept = kept.clamp(0, 1)
    return plain * (kept + (1 - kept) / rope.factor)


def _pair_that_turns(rope: Rope, turns: float, head_dim: int) -> float:
    """The number of the pair that turns so often in the original context, as a fraction."""
    wave = rope.original_positions / (turns * 2 * math.pi)
    return head_dim * math.log(wave) / (2 * math.log(rope.theta))


def rotation_table(rope: Rope, head_dim: int, positions: int, device: torch.device) -> torch.Tensor:
    """complex64 [positions, 1, head_dim / 2]; of length 1, but for yarn."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies(rope, head_dim))
    table = torch.polar(torch.full_like(angles, rope.length), angles)
    return table.to(torch.complex64).unsqueeze(1).to(device)


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

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        *,
        max_positions: int,
        between: Between | None = None,
    ) -> None:
        """`between` computes norms and gates; None: torch does."""
        self.spec = spec
        self.weights = weights
        self._between = between or Plain()
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
        weights, eps, between = self.weights, self.spec.norm_eps, self._between
        hidden = F.embedding(token_ids, weights.embedding)
        turn = self._rotations[positions]
        added: torch.Tensor | None = None
        for index, layer in enumerate(weights.layers):
            x = between.add_rms_norm(hidden, added, layer.attention_norm, eps)
            added = self._attention(index, layer, x, turn, batch, pool)
            x = between.add_rms_norm(hidden, added, layer.mlp_norm, eps)
            added = layer.down(between.silu_and_mul(layer.gate_up(x)))
        if added is not None:
            added = added[sample_rows]
        last = between.add_rms_norm(hidden[sample_rows], added, weights.norm, eps)
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
        norms = None
        if layer.q_norm is not None and layer.k_norm is not None:
            norms = HeadNorms(layer.q_norm, layer.k_norm, spec.norm_eps)
        pool.turn_and_write(index, batch, heads, turn, norms)
        attended = pool.attend(index, batch, heads[:, : spec.heads], spec.windows[index])
        return layer.out(attended.view(-1, spec.q_size))
