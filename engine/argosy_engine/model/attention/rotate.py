"""The turn of a head by its position, as `model.rope` orders its pairs and makes the table."""

import torch

__all__ = ["rotate_"]


def rotate_(heads: torch.Tensor, turn: torch.Tensor) -> None:
    """Turn `heads` [N, H, head_dim], pairs side by side, in place; `turn` [N, 1, head_dim / 2]."""
    pairs = heads.view(*heads.shape[:-1], -1, 2)
    if heads.dtype is torch.float32:
        torch.view_as_complex(pairs).mul_(turn)
    else:
        turned = torch.view_as_complex(pairs.float()) * turn
        pairs.copy_(torch.view_as_real(turned))
