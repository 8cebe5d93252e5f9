"""Bookkeeping of the paged KV pool: which blocks are used, and which hold known text.

Blocks are numbers from 1 to `total`; their bytes belong to the runner. A block is *used* (n ≥ 1
sequences hold a reference), *cached* (no reference, but its text is known and may be hit again) or
*free*. When free blocks run out, the oldest cached ones are allocated.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from argosy_engine.errors import PoolExhaustedError

__all__ = ["BlockPool"]


class BlockPool:
    """Reference-counted blocks with an index from chained hashes to blocks."""

    __slots__ = (
        "_blank",
        "_cached",
        "_fresh",
        "_hash_of",
        "_index",
        "_refs",
        "block_size",
        "total",
    )

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"need at least one block of one token, got {num_blocks}×{block_size}")
        self.total = num_blocks
        self.block_size = block_size
        self._refs: dict[int, int] = {}  # of used blocks
        self._hash_of: dict[int, bytes] = {}
        self._index: dict[bytes, int] = {}
        self._blank: list[int] = []  # free ones that were used before; last in, first out
        self._fresh = 1  # lowest block that was never used
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first

    @property
    def free(self) -> int:
        return len(self._blank) + self.total - self._fresh + 1

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that `allocate` can give: free and cached ones."""
        return self.free + len(self._cached)

    @property
    def used(self) -> int:
        return len(self._refs)

    def refs(self, block: int) -> int:
        return self._refs.get(block, 0)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one reference each; PoolExhaustedError, then none is taken."""
        if count > self.available:
            raise PoolExhaustedError(f"{count} blocks asked, {self.available} available")
        return [self._allocate_one() for _ in range(count)]

    def _allocate_one(self) -> int:
        if self._blank:
            block = self._blank.pop()
        elif self._fresh <= self.total:
            block = self._fresh
            self._fresh += 1
        else:
            block, _ = self._cached.popitem(last=False)
            del self._index[self._hash_of.pop(block)]
        self._refs[block] = 1
        return block

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Blocks that hold the longest known prefix; takes no references."""
        hits: list[int] = []
        for digest in hashes:
            block = self._index.get(digest)
            if block is None:
                break
            hits.append(block)
        return hits

    def idle_among(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are cached, not used: taking them lowers `available`."""
        return sum(1 for block in blocks if block not in self._refs)

    def take(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of these used or cached blocks."""
        for block in blocks:
            held = self._refs.get(block, 0)
            if not held:
                del self._cached[block]
            self._refs[block] = held + 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference each; the tail of a text is reused before its head."""
        for block in reversed(blocks):
            held = self._refs[block] - 1
            if held:
                self._refs[block] = held
                continue
            del self._refs[block]
            if block in self._hash_of:
                self._cached[block] = None
            else:
                self._blank.append(block)

    def reset(self) -> bool:
        """Forget all text; False, and nothing is forgotten, while a block is used."""
        if self._refs:
            return False
        self._blank.extend(self._hash_of)
        self._cached.clear()
        self._hash_of.clear()
        self._index.clear()
        return True

    def commit(self, block: int, digest: bytes) -> None:
        """Make a full, computed block findable. If its text is known already, that block stays."""
        if digest in self._index or block in self._hash_of:
            return
        self._index[digest] = block
        self._hash_of[block] = digest
