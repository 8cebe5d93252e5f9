"""Gives sequences their blocks and takes them back; the prefix cache is `pool.py`'s.

A sequence gets the blocks of all its tokens when it is admitted, and one more whenever a decode
crosses a block's edge.
"""

from collections.abc import Iterable

from argosy_engine.core.blocks.pool import BlockPool
from argosy_engine.core.blocks.prefix import hashes_of
from argosy_engine.core.request import Sequence

__all__ = ["Allocator"]


class Allocator:
    """The blocks of the admitted sequences."""

    def __init__(self, pool: BlockPool, max_model_len: int) -> None:
        self._pool = pool
        self._max_model_len = max_model_len
        self.growth_blocks = 0
        """Blocks that the admitted sequences may still ask for, if each reaches its longest end."""

    def prefix_hits(self, sequence: Sequence) -> list[int]:
        """Blocks with the KV of its text. The last token is never among them: its logits are
        needed, so it is always computed. A request that asks about its prompt's tokens needs all
        of their logits."""
        if sequence.sampling.prompt_logprobs is not None:
            return []
        size = self._pool.block_size
        return self._pool.match(hashes_of(sequence, (len(sequence.tokens) - 1) // size, size))

    def gains_by_waiting(
        self, sequence: Sequence, hit_blocks: int, running: Iterable[Sequence]
    ) -> bool:
        """Whether another sequence computes at least half of what it misses, from its next block
        on: those blocks are hits a few steps later."""
        if sequence.swapped:
            return False
        size = self._pool.block_size
        worth = (len(sequence.tokens) - 1) // size
        need = hit_blocks + max(1, -(-(worth - hit_blocks) // 2))
        if need > worth:
            return False
        last = hashes_of(sequence, need, size)[need - 1]
        for other in running:
            if other.decoding or len(other.tokens) < need * size or other.committed >= need:
                continue
            if hashes_of(other, need, size)[need - 1] == last:
                return True
        return False

    def prompt_blocks(self, sequence: Sequence, hits: list[int]) -> int:
        """Available blocks that `admit` would take, idle hits included."""
        return self._blocks(len(sequence.tokens)) - len(hits) + self._pool.idle_among(hits)

    def growth_of(self, sequence: Sequence) -> int:
        """Blocks between the tokens so far and the sequence's longest possible end."""
        longest = self._blocks(sequence.max_total(self._max_model_len))
        return max(0, longest - self._blocks(len(sequence.tokens)))

    def admit(self, sequence: Sequence, hits: list[int]) -> None:
        """Give it `hits` and new blocks for the rest of its tokens; PoolExhaustedError."""
        self._pool.take(hits)
        total = self._blocks(len(sequence.tokens))
        sequence.blocks = hits + self._pool.allocate(total - len(hits))
        sequence.committed = len(hits)
        sequence.num_computed = len(hits) * self._pool.block_size
        self.growth_blocks += self.growth_of(sequence)

    def grow(self, sequence: Sequence) -> None:
        """One more block; PoolExhaustedError."""
        sequence.blocks.extend(self._pool.allocate(1))
        self.growth_blocks -= 1

    def commit(self, sequence: Sequence) -> None:
        """Make newly full blocks findable. Only after the step: a failed one must leave no hits."""
        size = self._pool.block_size
        full = sequence.num_computed // size
        if full > sequence.committed:
            hashes = hashes_of(sequence, full, size)
            for index in range(sequence.committed, full):
                self._pool.commit(sequence.blocks[index], hashes[index])
            sequence.committed = full

    def release(self, sequence: Sequence) -> None:
        """Take all its blocks back."""
        if not sequence.blocks:
            return
        longest = self._blocks(sequence.max_total(self._max_model_len))
        self.growth_blocks -= max(0, longest - len(sequence.blocks))
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.committed = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._pool.block_size)
