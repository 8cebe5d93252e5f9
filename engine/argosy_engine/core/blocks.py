"""The KV blocks: which are used, which hold known text, and which sequence has which.

Blocks are numbers from 1 to `total`; their bytes belong to the runner. A block is *used* (n ≥ 1
sequences hold a reference), *cached* (no reference, but its text is known and may be hit again) or
*free*. When free blocks run out, the oldest cached ones are allocated. The key of the prefix cache
is a chained hash of each full block.

A sequence gets the blocks of all its tokens when it is admitted, and one more whenever a decode
crosses a block's edge. The KV of a swapped sequence lies in slots of the host pool, numbers from 0.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Reversible
from collections.abc import Sequence as Tokens
from hashlib import blake2b

from argosy_engine.core.request import Sequence, to_table
from argosy_engine.errors import PoolExhaustedError


def root(salt: str, adapter: str = "") -> bytes:
    """What the first block of a text is chained over; empty without both.

    `adapter` is the place for the name of a LoRA adapter, which computes other KV of the same
    text. The engine serves none yet. BLAKE2's `person` keeps the two apart: no salt gives the root
    of an adapter.
    """
    if not adapter:
        return blake2b(salt.encode(), digest_size=16).digest() if salt else b""
    named = blake2b(adapter.encode(), digest_size=16, person=b"adapter").digest()
    return blake2b(salt.encode(), digest_size=16, key=named, person=b"adapter").digest()


def hash_block(parent: bytes, token_ids: Tokens[int]) -> bytes:
    """16 bytes that name a full block's text *and* everything before it (chained over `parent`)."""
    return blake2b(array("I", token_ids).tobytes(), digest_size=16, key=parent).digest()


def hashes_of(sequence: Sequence, full_blocks: int, block_size: int) -> list[bytes]:
    """Hashes of the first `full_blocks` blocks; each is computed once and kept."""
    hashes = sequence.hashes
    for index in range(len(hashes), full_blocks):
        parent = hashes[-1] if hashes else root(sequence.request.cache_salt)
        start = index * block_size
        hashes.append(hash_block(parent, sequence.tokens[start : start + block_size]))
    return hashes[:full_blocks]


class HostPool:
    """Slots of one block each."""

    __slots__ = ("_free", "total")

    def __init__(self, slots: int) -> None:
        self.total = slots
        self._free = list(range(slots - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used_share(self) -> float:
        """0 to 1; 0 for a pool without slots."""
        return (self.total - self.free) / max(1, self.total)

    def allocate(self, count: int) -> list[int]:
        """`count` slots, or none of them if fewer are free."""
        if count > len(self._free):
            return []
        return [self._free.pop() for _ in range(count)]

    def release(self, slots: list[int]) -> None:
        self._free.extend(reversed(slots))


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

    def release(self, blocks: Reversible[int]) -> None:
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
        sequence.blocks = to_table(hits + self._pool.allocate(total - len(hits)))
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
        sequence.blocks = to_table(())
        sequence.committed = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._pool.block_size)
