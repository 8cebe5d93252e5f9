"""A matrix that is multiplied often: packed once where that is faster.

`F.linear` on x86 re-orders the weight at every call, which costs 1.3 to 2 times the product itself
at decode's row counts. oneDNN's own order is kept instead. The two torch operators are private
names: a torch that lacks them, or a CPU that cannot use them for the type, falls back.
"""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

__all__ = ["Linear", "Pack", "Product"]

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
