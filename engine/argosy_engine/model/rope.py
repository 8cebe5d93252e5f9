"""Rotary position embedding as one complex product.

Rows of the q and k weights are re-ordered at load so that the two numbers of a rotated pair lie
side by side: then a head is a vector of complex numbers, and turning it by its position is one
multiplication by e^{i·position·frequency} (`attention.rotate`). Scores do not change (q and k are
re-ordered alike).
"""

import math

import torch

from argosy_engine.model.spec import Rope

__all__ = ["pair_order", "rotation_table"]


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
