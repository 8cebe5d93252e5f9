"""The ranks of one engine as a process group of torch: gloo on a CPU, NCCL on GPUs.

They meet at a store on loopback, at a port that the kernel chooses. gloo and NCCL are kept to
loopback, too, for what they say over sockets: all ranks are on one machine.
"""

import os
import socket
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from argosy.model_config import ModelSpec
from argosy_engine.core.step import FlatBatch
from argosy_engine.model.attention.paged import PagedPool
from argosy_engine.model.attention.triton_pool import TritonPool
from argosy_engine.model.trunk import Trunk
from argosy_engine.runtime.torch.graphs import Capture, DecodeGraphs, capture_decodes
from argosy_engine.runtime.torch.ranks.processes import Kind, Ranks, pack_step

_PATIENCE = timedelta(minutes=30)
"""How long a rank waits for the others, such as for one that reads its weights more slowly. A rank
that has died is noticed at once, by its socket."""
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def listen() -> socket.socket:
    """Where the store of rank 0 listens."""
    return socket.create_server(("127.0.0.1", 0))


class RankGroup:
    """A `model.share.Group`."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        device: torch.device,
        *,
        port: int,
        listener: socket.socket | None = None,
    ) -> None:
        """Returns when all ranks are there; `listener`: rank 0's, at that port.

        RuntimeError if they do not come.
        """
        for name in _INTERFACES:
            os.environ.setdefault(name, "lo")
        self._rank, self._ranks, self._device = rank, ranks, device
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1",
            port,
            is_master=listener is not None,
            wait_for_workers=False,
            timeout=_PATIENCE,
            master_listen_fd=None if listener is None else listener.detach(),
        )
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=ranks,
            timeout=_PATIENCE,
            device_id=device if device.type == "cuda" else None,
        )

    def sum_(self, x: torch.Tensor) -> None:
        dist.all_reduce(x)

    def gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self._ranks)] if self._rank == 0 else []
        dist.gather(x, parts or None, dst=0)
        return parts

    def least(self, number: int) -> int:
        """The least of all ranks' numbers; returns when all have come here."""
        held = torch.tensor([number], dtype=torch.int64, device=self._device)
        dist.all_reduce(held, op=dist.ReduceOp.MIN)
        return int(held.item())

    def close(self) -> None:
        """Leave; the others end on their own."""
        dist.destroy_process_group()


class PartTrunk:
    """One rank's part of each step, by a graph where one is captured for it."""

    def __init__(self, trunk: Trunk, group: RankGroup, *, draws: bool) -> None:
        """`draws`: of rank 0, which gets the whole logits."""
        self._trunk = trunk
        self._group = group
        self._draws = draws
        self._graphs: DecodeGraphs | None = None

    def capture(self, pool: TritonPool, rows: int, capture: Capture) -> None:
        """Have graphs compute steps of up to `rows` decodes from now on, in all ranks or in none.

        All ranks do this together: what they capture has their sums in it.
        """
        graphs = capture_decodes(self._trunk, pool, rows, capture, draws=self._draws)
        self._graphs = graphs if self._group.least(int(graphs is not None)) else None

    def logits(self, flat: FlatBatch, pool: PagedPool) -> torch.Tensor:
        """As of a `Trunk`; on other ranks than 0 of no use. A graph's are overwritten by the next
        step."""
        logits = None if self._graphs is None else self._graphs.compute(flat)
        return self._trunk.logits(flat, pool) if logits is None else logits


class LeadingTrunk:
    """A `Trunk` of several ranks."""

    def __init__(self, trunk: Trunk, spec: ModelSpec, ranks: Ranks, group: RankGroup) -> None:
        self.spec = spec
        """The whole model's."""
        self.ranks = ranks
        self._part = PartTrunk(trunk, group, draws=True)
        self._group = group

    def capture(self, pool: TritonPool, rows: int, capture: Capture) -> None:
        """As of `PartTrunk`, in all ranks."""
        self.ranks.send(Kind.CAPTURE, np.array([rows], np.int32))
        try:
            self._part.capture(pool, rows, capture)
        except Exception as error:  # as in `logits`
            self.ranks.fail(error)

    def logits(self, flat: FlatBatch, pool: PagedPool) -> torch.Tensor:
        """Logits [S, vocab] of the sampled rows of a step.

        An error ends the engine: the others wait for a sum that does not come.
        """
        self.ranks.send(Kind.STEP, pack_step(flat))
        try:
            return self._part.logits(flat, pool)
        except Exception as error:  # whatever it is, the ranks are no longer in step
            self.ranks.fail(error)

    def close(self) -> None:
        """End the other ranks."""
        self.ranks.close()
        self._group.close()
