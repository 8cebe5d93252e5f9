"""Matrices of FP8 checkpoints, and their products on GPUs that multiply FP8.

A checkpoint has codes in float8_e4m3fn and scales in float: one for each tensor, each row, or each
block, as a rule of 128 × 128. A number is its code times its scale.

Where the device multiplies FP8, a matrix stays as it is, with a scale for each row: rows of q, k
and v, whose tensors have scales of their own, can then be one matrix, be re-ordered and be shared
among ranks. What it is multiplied with is rounded for each token by itself, whatever the checkpoint
says of activations (`input_scale`): a token's answer does not depend on those beside it, and no
number is cut off.

Elsewhere `widening` has each matrix widened as it is loaded. Widened in every product instead it
would stay small, but a decode would read and write each weight several times. Blocks are widened
everywhere.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from argosy_engine.model.trunk import Linear, Pack, Product

E4M3 = torch.float8_e4m3fn
_LARGEST = 448.0
_LEAST = 1e-12
"""Of the largest number of a row, so that a row of zeros has a scale."""
_STEP = 16
"""A product in FP8 wants multiples of it in both dimensions of the matrix."""
_CLOSE = 1e-2
"""Of the trial's largest result; the result is rounded to 8 or 11 bits."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A matrix in FP8."""

    codes: torch.Tensor
    """[out, in] float8_e4m3fn."""

    scales: torch.Tensor
    """[out, 1] float32."""

    def widen(self, dtype: torch.dtype) -> torch.Tensor:
        """[out, in]."""
        return (self.codes.float() * self.scales).to(dtype)

    def move_rows(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "Scaled":
        """`move` is called with codes as bytes, since torch indexes few tensors of FP8."""
        return Scaled(move(self.codes.view(torch.uint8)).view(E4M3), move(self.scales))


Matrix = torch.Tensor | Scaled


def round_rows(x: torch.Tensor) -> Scaled:
    """The nearest codes, with the largest number of each row as the largest code."""
    wide = x.float()
    scales = wide.abs().amax(-1, keepdim=True).clamp_(min=_LEAST) / _LARGEST
    return Scaled((wide / scales).to(E4M3), scales)


def widen_blocks(
    codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int], begin: tuple[int, int]
) -> torch.Tensor:
    """`codes` [m, n] as float32; they begin at row and column `begin` of a matrix whose blocks have
    `scales` [blocks of rows, blocks of columns]."""
    row, column = (
        (torch.arange(size, device=codes.device) + first) // step
        for size, first, step in zip(codes.shape, begin, block, strict=True)
    )
    return codes.float().mul_(scales.float()[row][:, column])


def stack(parts: Sequence[Matrix]) -> Matrix:
    """Below each other; in FP8 if all are."""
    scaled = [part for part in parts if isinstance(part, Scaled)]
    if len(scaled) == len(parts):
        codes = torch.cat([part.codes.view(torch.uint8) for part in scaled])
        return Scaled(codes.view(E4M3), torch.cat([part.scales for part in scaled]))
    dtype = next(part.dtype for part in parts if isinstance(part, torch.Tensor))
    return torch.cat([widen(part, dtype) for part in parts])


def widen(matrix: Matrix, dtype: torch.dtype) -> torch.Tensor:
    """As a tensor."""
    return matrix.widen(dtype) if isinstance(matrix, Scaled) else matrix


PackMatrix = Callable[[Matrix, torch.Tensor | None], Product]


def widening(pack: Pack, dtype: torch.dtype) -> PackMatrix:
    """`pack` of what is widened to `dtype`."""

    def pack_widened(weight: Matrix, bias: torch.Tensor | None = None) -> Product:
        return pack(widen(weight, dtype), bias)

    return pack_widened


def holding(dtype: torch.dtype) -> PackMatrix:
    """Products in FP8; of `dtype` where the checkpoint has a matrix in another type."""

    def pack_held(weight: Matrix, bias: torch.Tensor | None = None) -> Product:
        if isinstance(weight, Scaled) and not any(size % _STEP for size in weight.codes.shape):
            return Fp8Linear(weight, bias)
        return Linear(widen(weight, dtype), bias)

    return pack_held


class Fp8Linear:
    """y = x · weightᵀ + bias with both rounded to FP8, summed in float32."""

    __slots__ = ("_bias", "_codes", "_scales")

    def __init__(self, weight: Scaled, bias: torch.Tensor | None = None) -> None:
        self._bias = bias
        self._codes = weight.codes.contiguous().t()
        self._scales = weight.scales.t().contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rounded = round_rows(x)
        product = torch._scaled_mm(
            rounded.codes,
            self._codes,
            scale_a=rounded.scales,
            scale_b=self._scales,
            out_dtype=x.dtype,
        )
        return product if self._bias is None else product + self._bias


@functools.cache
def why_not(device: torch.device, dtype: torch.dtype) -> str:
    """Why products with results in `dtype` are not in FP8 on this device; empty: they are."""
    # torch has them on a CPU, too, but few CPUs have instructions for them.
    return "a CPU computes faster so" if device.type == "cpu" else end_of_trial(device, dtype)


def end_of_trial(device: torch.device, dtype: torch.dtype) -> str:
    """Empty if the device multiplies FP8, else what it does instead."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, 256, generator=generator).to(device) for rows in (17, 64))
    held = round_rows(weight)
    try:
        found = Fp8Linear(held)(x.to(dtype)).float()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    right = round_rows(x.to(dtype)).widen(torch.float32) @ held.widen(torch.float32).t()
    wrong = float((found - right).abs().max() / right.abs().max())
    return "" if wrong < _CLOSE else f"a product in FP8 is wrong by {wrong:.2g}"  # also if NaN
