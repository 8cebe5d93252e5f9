"""A step's whole numbers on their way to the device: one array, one copy."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

__all__ = ["Copied", "Staging"]

_ALIGNED = 16
"""Elements at whose multiples each array begins: a cache line, so that kernels are compiled for one
alignment only."""


class Copied(Protocol):
    """What `torch.cuda.Event` has of this."""

    def record(self) -> None:
        """Mark the end of the copy just asked for."""

    def synchronize(self) -> None:
        """Return when the copy has ended, or at once if there was none."""


class Staging:
    """A buffer on the host, pinned for a GPU, and one on the device. Both stay and grow.

    The arrays of one `send` are on the device until the next.
    """

    def __init__(self, device: torch.device, copied: Copied | None = None) -> None:
        """`copied` is for tests; a GPU has its own."""
        if copied is None and device.type == "cuda":
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._device = device
        self._copied = copied
        self._grow(1 << 12)

    def _grow(self, size: int) -> None:
        pinned = self._device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=pinned)
        self._there = torch.zeros(size, dtype=torch.int32, device=self._device)

    def send(self, arrays: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Each array as int32 on the device."""
        if self._copied is not None:
            self._copied.synchronize()  # the host buffer may be on its way yet
        sizes = [len(array) for array in arrays]
        starts = [0]
        for size in sizes:
            starts.append(-(-(starts[-1] + size) // _ALIGNED) * _ALIGNED)
        end = starts.pop()
        if end > len(self._host):
            self._grow(max(end, 2 * len(self._host)))
        host = self._host.numpy()
        for start, size, array in zip(starts, sizes, arrays, strict=True):
            host[start : start + size] = np.fromiter(array, np.int32, size)
        self._there[:end].copy_(self._host[:end], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return [self._there[at : at + size] for at, size in zip(starts, sizes, strict=True)]
