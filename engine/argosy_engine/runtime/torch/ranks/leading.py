"""Rank 0's trunk: has the other ranks compute the step that it computes itself."""

import torch

from argosy_engine.core.step import FlatBatch
from argosy_engine.model.attention.paged import PagedPool
from argosy_engine.model.spec import ModelSpec
from argosy_engine.model.trunk import Trunk
from argosy_engine.runtime.torch.ranks.frames import Kind, pack_step
from argosy_engine.runtime.torch.ranks.group import RankGroup
from argosy_engine.runtime.torch.ranks.processes import Ranks

__all__ = ["LeadingTrunk"]


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
