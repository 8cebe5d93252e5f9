"""What a layer computes between its products: sums with their norms, and gates.

`Plain` is torch, on every device. `Fused` reads and writes each number once, by Triton kernels of
our own: on a GPU these steps cost what their bytes cost. `attention.trial` compares the two before
an engine uses `Fused`.
"""

import importlib
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention


class Between(Protocol):
    """The steps between products; tensors are contiguous."""

    def add_rms_norm(
        self, hidden: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add `added` to `hidden` [N, size] in place; return the norm of the sum.

        The norm of a row is the row over its root mean square, times `weight` [size].
        """

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[N, inner]: SiLU of the first half of `gate_up` [N, 2 · inner], times the second half."""


class Plain:
    """By torch."""

    def add_rms_norm(
        self, hidden: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        if added is not None:
            hidden += added
        return F.rms_norm(hidden, weight.shape, weight, eps)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


_COLUMNS = 1024
"""Of one program of the gate."""
_COLUMNS_OF_A_WARP = 512
"""Of a norm's row: 16 numbers a thread."""
_MOST_WARPS = 16


class Fused:
    """By Triton, in float32 and rounded once."""

    def __init__(self) -> None:
        """ImportError without triton."""
        self._kernels: Any = importlib.import_module(
            "argosy_engine.model.attention.between_kernels"
        )

    def add_rms_norm(
        self, hidden: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        rows, size = hidden.shape
        out = torch.empty_like(hidden)
        if rows:
            width = 1 << (size - 1).bit_length()
            self._kernels.fused_add_rms_norm[rows,](
                hidden,
                hidden if added is None else added,
                weight,
                out,
                eps,
                SIZE=size,
                WIDTH=width,
                ADD=added is not None,
                num_warps=min(_MOST_WARPS, max(1, width // _COLUMNS_OF_A_WARP)),
            )
        return out

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, inner)
        if rows:
            self._kernels.silu_and_mul[rows, -(-inner // _COLUMNS)](
                gate_up, out, INNER=inner, WIDTH=_COLUMNS
            )
        return out
