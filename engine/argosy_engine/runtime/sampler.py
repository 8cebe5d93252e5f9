"""Logits to token ids. Greedy rows together, sampled rows one by one.

The draw for position p of a request is a function of (seed, p) and the distribution alone: not of
the device, the batch, or how often the request was preempted or handed over.
"""

import hashlib
from collections.abc import Sequence

import torch

from argosy_engine.core.sampling import SamplingParams

__all__ = ["sample", "uniform"]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, from a hash of the key."""
    key = f"{seed}:{position}".encode()
    bits = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    return (bits >> 11) / 2**53


def sample(
    logits: torch.Tensor, sampling: Sequence[SamplingParams], positions: Sequence[int]
) -> list[int]:
    """One id for each row of `logits` [S, vocab]; `positions` are those of the drawn tokens."""
    if not sampling:
        return []
    ids: list[int] = logits.argmax(dim=-1).tolist()
    for row, (params, position) in enumerate(zip(sampling, positions, strict=True)):
        if not params.greedy:
            ids[row] = _draw(logits[row], params, uniform(params.seed, position))
    return ids


def _draw(logits: torch.Tensor, params: SamplingParams, point: float) -> int:
    """Inverse of the cumulative distribution at `point`, in float64 so that 10⁵ terms add up.

    Order of the filters as in common engines: temperature, top-k, top-p.
    """
    # From the largest on down: a quotient that overflows is then a weight of 0, and never NaN.
    scaled = (logits.double() - logits.max()) / params.temperature
    order: torch.Tensor | None = None
    if params.top_k or params.top_p < 1.0:
        kept = min(params.top_k or scaled.numel(), scaled.numel())
        scaled, order = torch.topk(scaled, kept)
    mass = scaled.softmax(-1).cumsum(-1)
    total = mass[-1]
    if params.top_p < 1.0:
        # The smallest head of the list that holds at least top_p: never empty.
        last = min(int((mass < params.top_p).sum()), mass.numel() - 1)
        mass, total = mass[: last + 1], mass[last]
    index = min(int(torch.searchsorted(mass, point * total, right=True)), mass.numel() - 1)
    return int(order[index]) if order is not None else index
