"""The ranks of one engine as a process group of torch: gloo on a CPU, NCCL on GPUs.

They meet at a store on loopback, at a port that the kernel chooses. gloo and NCCL are kept to
loopback, too, for what they say over sockets: all ranks are on one machine.
"""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from argosy.model_config import ModelSpec
from argosy_engine.core.step import FlatBatch
from argosy_engine.model.attention.paged import PagedPool
from argosy_engine.model.trunk import Trunk
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


class LeadingTrunk:
    """A `Trunk` of several ranks."""

    def __init__(self, trunk: Trunk, spec: ModelSpec, ranks: Ranks, group: RankGroup) -> None:
        self.spec = spec
        """The whole model's."""
        self.ranks = ranks
        self._trunk = trunk
        self._group = group

    def logits(self, flat: FlatBatch, pool: PagedPool) -> torch.Tensor:
        """Logits [S, vocab] of the sampled rows of a step.

        An error ends the engine: the others wait for a sum that does not come.
        """
        self.ranks.send(Kind.STEP, pack_step(flat))
        try:
            return self._trunk.logits(flat, pool)
        except Exception as error:  # whatever it is, the ranks are no longer in step
            self.ranks.fail(error)

    def close(self) -> None:
        """End the other ranks."""
        self.ranks.close()
        self._group.close()
