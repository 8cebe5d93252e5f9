"""KV blocks in the host's memory, for preempted requests: copies out of the pool and back."""

import torch

from argosy_engine.core.step import Copies
from argosy_engine.model.attention.paged import PagedPool

__all__ = ["HostKv"]


class HostKv:
    """Slots of one pool's blocks; none until `reserve`."""

    def __init__(self, pool: PagedPool) -> None:
        self._pool = pool
        self._slots = torch.empty(0)

    def reserve(self, slots: int) -> None:
        """Pages come as slots are first used, but on a GPU, whose copies need pinned memory.

        MemoryError or RuntimeError when the memory is not there.
        """
        cuda = self._pool.device.type == "cuda"
        width = self._pool.shape.block_elements
        self._slots = torch.empty(slots, width, dtype=self._pool.memory.dtype, pin_memory=cuda)

    def take(self, copies: Copies) -> None:
        """Blocks to slots; returns when the blocks may be written to."""
        blocks, slots = _columns(copies)
        with torch.inference_mode():
            self._slots[slots] = self._pool.memory[blocks.to(self._pool.device)].cpu()

    def give(self, copies: Copies) -> None:
        """Slots to blocks, before the step that reads them."""
        blocks, slots = _columns(copies)
        device = self._pool.device
        with torch.inference_mode():
            self._pool.memory[blocks.to(device)] = self._slots[slots].to(device)


def _columns(copies: Copies) -> tuple[torch.Tensor, torch.Tensor]:
    """(blocks, slots)."""
    blocks, slots = torch.tensor(copies).unbind(1)
    return blocks, slots
