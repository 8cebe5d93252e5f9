"""Blocks of a pool as bytes that the host reads or fills, for transfers between engines.

On a CPU they are the pool itself. Between a GPU and the host they are copied through pinned memory,
by a stream of their own: in the stream of the steps each copy would wait for the step that runs and
for the one launched after it. Blocks are copied as they lie, without a kernel, so a copy takes no
room from the steps either.

No event orders the two streams. The blocks that leave were computed by steps whose end the host has
seen, and no step is launched that reads blocks which are still to land.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from argosy_engine.core.runner import HostBlocks, InPlace


def neighbors(block_ids: Iterable[int]) -> list[tuple[int, int]]:
    """(first, end) of each run of ids that follow each other."""
    runs: list[list[int]] = []
    for block in block_ids:
        if runs and block == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([block, block + 1])
    return [(first, end) for first, end in runs]


_ROOM_BYTES = 4 << 20
"""A run of blocks is about as large."""
_ROOMS = 16
"""Four connections have three runs under way each, and some more."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""(where to, where from), of the same size."""


class Lane(Protocol):
    """Copies between a device and the host, which run beside the steps."""

    def room(self, blocks: int, block_bytes: int) -> torch.Tensor:
        """[blocks, block_bytes] of the host's memory that the device can read and write."""
        ...

    def copy(self, pairs: Iterable[Pair]) -> Callable[[], object]:
        """Begin copies; what is returned waits for their end."""
        ...


class CudaLane:
    """A stream of its own, and pinned memory from torch's cache, which gets it back with the last
    view of it."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # To pin memory stops the device, so the first transfers find some in the cache.
        _pinned = [self.room(1, _ROOM_BYTES) for _ in range(_ROOMS)]

    def room(self, blocks: int, block_bytes: int) -> torch.Tensor:
        return torch.empty(blocks, block_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, pairs: Iterable[Pair]) -> Callable[[], object]:
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for into, source in pairs:
                into.copy_(source, non_blocking=True)
            # Blocking: a thread that spins would take a core from the engine's.
            ended = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            ended.record()
        wait: Callable[[], object] = ended.synchronize
        return wait


class Carrier(Protocol):
    """How a pool's blocks reach the host. Called on KV threads, on blocks that no step writes."""

    def outgoing(self, block_ids: Sequence[int]) -> HostBlocks: ...

    def incoming(self, block_ids: Sequence[int]) -> HostBlocks: ...


def carrier_of(blocks: torch.Tensor) -> Carrier:
    """For a pool's memory, [blocks, bytes of one] uint8."""
    if blocks.device.type == "cpu":
        return PoolCarrier(blocks)
    return LaneCarrier(blocks, CudaLane(blocks.device))


class PoolCarrier:
    """The pool itself. Without torch: the KV threads must not get an OpenMP team."""

    def __init__(self, blocks: torch.Tensor) -> None:
        self._numpy = blocks.numpy()

    def outgoing(self, block_ids: Sequence[int]) -> HostBlocks:
        return InPlace([self._numpy[at:end].data.cast("B") for at, end in neighbors(block_ids)])

    incoming = outgoing


class LaneCarrier:
    """Copies, one for each run of neighbors."""

    def __init__(self, blocks: torch.Tensor, lane: Lane) -> None:
        self._blocks = blocks
        self._lane = lane

    def outgoing(self, block_ids: Sequence[int]) -> HostBlocks:
        copies = _Copies(self._lane, self._blocks, block_ids)
        copies.leave()
        return copies

    def incoming(self, block_ids: Sequence[int]) -> HostBlocks:
        return _Copies(self._lane, self._blocks, block_ids)


class _Copies:
    """A `HostBlocks` in memory of its own."""

    def __init__(self, lane: Lane, blocks: torch.Tensor, block_ids: Sequence[int]) -> None:
        self._lane = lane
        room = lane.room(len(block_ids), blocks.shape[1])
        self._pairs: list[Pair] = []
        at = 0
        for first, end in neighbors(block_ids):
            self._pairs.append((room[at : at + end - first], blocks[first:end]))
            at += end - first
        self._wait: Callable[[], object] | None = None
        self.views = (room.numpy().data.cast("B"),)

    def leave(self) -> None:
        """Begin to bring the blocks here."""
        self._wait = self._lane.copy(self._pairs)

    def land(self) -> None:
        self._wait = self._lane.copy((block, part) for part, block in self._pairs)

    def wait(self) -> None:
        if self._wait is not None:
            self._wait()
