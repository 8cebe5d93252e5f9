"""How much of a decode engine the pulls from one prefill engine may hold.

A pull holds its prompt's blocks while a peer computes, and as many may wait as the batch has
places. One peer's pulls get at most half of both, so that a peer which no longer answers cannot
stop this engine.
"""

from collections.abc import Iterable

from argosy_engine.core.handover.pulls import may_pull
from argosy_engine.core.request import Sequence

__all__ = ["PullShare"]

_AT_LEAST = 2
"""Pulls from one peer, in any case: it computes one while it sends another."""


class PullShare:
    """What the pulls from each peer hold during one scheduling round."""

    def __init__(self, pulling: Iterable[Sequence], *, places: int, blocks: int) -> None:
        self._places = max(_AT_LEAST, places // 2)
        self._blocks = blocks // 2
        self._held: dict[str, tuple[int, int]] = {}
        for sequence in pulling:
            self.add(sequence)

    def add(self, sequence: Sequence) -> None:
        """Count a pull."""
        peer = sequence.request.candidates[0]
        count, blocks = self._held.get(peer, (0, 0))
        self._held[peer] = count + 1, blocks + len(sequence.blocks)

    def spent(self, sequence: Sequence, block_size: int) -> bool:
        """Whether its peer's share is used up. A peer without a pull may always get one."""
        if not may_pull(sequence):
            return False  # computed here
        count, blocks = self._held.get(sequence.request.candidates[0], (0, 0))
        need = -(-sequence.n_prompt // block_size)
        return bool(count) and (count >= self._places or blocks + need > self._blocks)
