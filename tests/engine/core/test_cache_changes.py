"""Who follows the pool's changes knows what is in the prefix cache."""

from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.core.blocks.changes import Removed, Stored
from argosy_engine.core.blocks.pool import BlockPool
from argosy_engine.core.blocks.prefix import hash_block
from argosy_engine.errors import PoolExhaustedError
from tests.engine.core.test_prefix_cache import SIZE, allocator, sequence


def compute(blocks, tokens):
    """A sequence with these tokens is admitted, computed and ends."""
    one = sequence(tokens)
    blocks.admit(one, blocks.prefix_hits(one))
    one.num_computed = len(tokens)
    blocks.commit(one)
    blocks.release(one)


def test_a_prompt_is_noted_block_by_block_and_its_open_end_is_not():
    blocks, pool = allocator(4)
    pool.changes = []
    tokens = list(range(1, 2 * SIZE + 2))
    compute(blocks, tokens)
    first = hash_block(b"", tokens[:SIZE])
    second = hash_block(first, tokens[SIZE : 2 * SIZE])
    assert pool.changes == [
        Stored(first, None, tuple(tokens[:SIZE])),
        Stored(second, first, tuple(tokens[SIZE : 2 * SIZE])),
    ]


def test_what_is_known_already_is_not_noted_again():
    blocks, pool = allocator(4)
    compute(blocks, list(range(SIZE + 1)))
    pool.changes = []
    compute(blocks, list(range(SIZE + 1)))
    assert pool.changes == []


def test_a_block_that_is_given_to_another_text_is_noted_before_that_text():
    blocks, pool = allocator(2)
    pool.changes = []
    old, new = list(range(SIZE + 1)), list(range(100, 101 + SIZE))
    compute(blocks, old)
    compute(blocks, new)
    assert pool.changes == [
        Stored(hash_block(b"", old[:SIZE]), None, tuple(old[:SIZE])),
        Removed(hash_block(b"", old[:SIZE])),
        Stored(hash_block(b"", new[:SIZE]), None, tuple(new[:SIZE])),
    ]


def test_nothing_is_kept_when_nobody_asks():
    blocks, pool = allocator(2)
    for start in (0, 100, 200):
        compute(blocks, list(range(start, start + SIZE + 1)))
    assert pool.changes is None
    assert BlockPool(num_blocks=1, block_size=1).changes is None


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5 * SIZE), max_size=12))
def test_the_changes_in_order_give_what_the_cache_holds(prompts):
    blocks, pool = allocator(5)
    pool.changes = []
    known = set()
    for tokens in prompts:
        try:
            compute(blocks, tokens)
        except PoolExhaustedError:
            continue
        taken, pool.changes = pool.changes, []
        for change in taken:
            if isinstance(change, Stored):
                assert change.digest not in known
                assert len(change.token_ids) == SIZE
                assert change.digest == hash_block(change.parent or b"", change.token_ids)
                known.add(change.digest)
            else:
                known.remove(change.digest)
        assert len(known) == pool.cached
        assert all(pool.match([digest]) for digest in known)
