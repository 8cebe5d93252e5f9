"""Draws from the shortest head of a distribution that holds top_p, on a GPU, without a sort.

A Triton kernel looks for the cut, and then for the drawn token, by counting the mass of all tokens
that have more than some weight. Each row is one program: its token depends on no other row. Nothing
asks the device, so a launch can be part of a CUDA graph. `attention.trial` tries it at the start.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import torch

_WIDTH = 4096
"""Logits of a row that a program reads at a time …"""
_WARPS = 16
"""… by that many warps: eight logits a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What n rows ask, on their device."""

    points: torch.Tensor
    """[n] float64 in [0, 1): where in the mass of the head the token is drawn, from the likeliest
    one down, equal ones by id."""
    temperatures: torch.Tensor
    """[n] float32, above 0."""
    top_p: torch.Tensor
    """[n] float32."""
    min_p: torch.Tensor
    """[n] float32: lighter tokens than this share of the likeliest are left out; 0: none."""


class TopP:
    """The kernel."""

    def __init__(self) -> None:
        """ImportError without triton."""
        self._kernel: Any = importlib.import_module("argosy_engine.model.top_p_kernels")

    def draw_(
        self, ids: torch.Tensor, logits: torch.Tensor, rows: torch.Tensor, draws: Draws
    ) -> None:
        """Write the tokens of `rows` [n] of `logits` [S, vocab] to these rows of `ids` [S] int64.

        A row whose largest logit is no finite number gets any id.
        """
        assert logits.stride(1) == 1
        if not len(rows):
            return
        self._kernel.draw_top_p[len(rows),](
            logits,
            logits.stride(0),
            logits.shape[1],
            rows,
            draws.points,
            draws.temperatures,
            draws.top_p,
            draws.min_p,
            ids,
            WIDTH=_WIDTH,
            num_warps=_WARPS,
        )
