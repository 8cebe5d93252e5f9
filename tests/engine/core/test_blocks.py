"""The pool of KV blocks: who has which, in which order they are given away, and none is lost."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from argosy_engine.core.blocks import BlockPool
from tests.engine.core.test_prefix_cache import SIZE, allocator, sequence
from tests.support.stateful import run_sequences


def counts(pool):
    return {"free": pool.free, "cached": pool.cached, "used": pool.used}


def test_blocks_are_numbered_from_1_and_each_is_given_once():
    pool = BlockPool(num_blocks=4, block_size=SIZE)
    assert counts(pool) == {"free": 4, "cached": 0, "used": 0}
    assert pool.allocate(3) == [1, 2, 3]
    assert counts(pool) == {"free": 1, "cached": 0, "used": 3}
    assert pool.allocate(1) == [4]
    assert pool.available == 0
    assert [pool.refs(block) for block in (0, 1, 2, 3, 4, 5)] == [0, 1, 1, 1, 1, 0]


def test_a_block_is_free_when_its_last_holder_lets_go():
    pool = BlockPool(num_blocks=2, block_size=SIZE)
    (block,) = pool.allocate(1)
    pool.take([block])
    assert pool.refs(block) == 2
    pool.release([block])
    assert counts(pool) == {"free": 1, "cached": 0, "used": 1}
    pool.release([block])
    assert counts(pool) == {"free": 2, "cached": 0, "used": 0}


def cached(pool, *names):
    """Compute a text of these blocks and let go of it."""
    blocks = pool.allocate(len(names))
    for block, name in zip(blocks, names, strict=True):
        pool.commit(block, name)
    pool.release(blocks)
    return blocks


def test_known_text_is_given_away_last_and_the_tail_of_the_oldest_text_first():
    pool = BlockPool(num_blocks=6, block_size=SIZE)
    cached(pool, b"old head", b"old tail")
    cached(pool, b"new head", b"new tail")
    assert counts(pool) == {"free": 2, "cached": 4, "used": 0}
    known = [b"old head", b"old tail", b"new head", b"new tail"]
    left = []
    for _ in range(6):
        pool.allocate(1)
        left.append([name for name in known if pool.match([name])])
    assert left == [
        known,
        known,
        [b"old head", b"new head", b"new tail"],
        known[2:],
        known[2:3],
        [],
    ]


def test_text_that_was_used_again_is_the_newest():
    pool = BlockPool(num_blocks=2, block_size=SIZE)
    first = cached(pool, b"first")
    cached(pool, b"second")
    assert (pool.idle_among(first), pool.available) == (1, 2)
    pool.take(first)
    assert (pool.idle_among(first), pool.available) == (0, 1)
    pool.release(first)
    pool.allocate(1)
    assert pool.match([b"second"]) == []
    assert pool.match([b"first"]) == first


class Blocks(RuleBasedStateMachine):
    """Requests that come, compute, decode and leave, beside what a GPU's memory would hold."""

    def __init__(self):
        super().__init__()
        self.blocks, self.pool = allocator(12, max_model_len=40)
        self.alive = []
        self.longest = {}  # by id of the sequence: blocks at its longest possible end
        self.memory = {}  # block → the whole text that its KV was computed for

    @rule(prompt=st.lists(st.integers(1, 2), min_size=1, max_size=18), more=st.integers(1, 12))
    def admit(self, prompt, more):
        one = sequence(prompt, max_tokens=more)
        hits = self.blocks.prefix_hits(one)
        for index, block in enumerate(hits):
            assert self.memory[block] == tuple(prompt[: (index + 1) * SIZE])
        assert len(hits) * SIZE < len(prompt)
        if self.blocks.prompt_blocks(one, hits) > self.pool.available:
            return
        self.blocks.admit(one, hits)
        assert len(one.blocks) == -(-len(prompt) // SIZE)
        self.longest[id(one)] = -(-min(len(prompt) + more, 40) // SIZE)
        self.alive.append(one)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), count=st.integers(1, 9))
    def compute(self, data, count):
        """A step writes the KV of the next tokens; only its own sequence may hold the blocks."""
        one = data.draw(st.sampled_from(self.alive))
        end = min(len(one.tokens), one.num_computed + count)
        for position in range(one.num_computed, end):
            block = one.blocks[position // SIZE]
            assert self.pool.refs(block) == 1
            begin = position - position % SIZE
            self.memory[block] = tuple(one.tokens[: min(begin + SIZE, position + 1)])
        one.num_computed = end
        if data.draw(st.booleans()):  # else the next step commits it
            self.blocks.commit(one)

    @precondition(lambda self: any(not one.remaining for one in self.alive))
    @rule(data=st.data(), token=st.integers(1, 2))
    def decode(self, data, token):
        one = data.draw(st.sampled_from([one for one in self.alive if not one.remaining]))
        if -(-(len(one.tokens) + 1) // SIZE) > self.longest[id(one)]:
            return
        if len(one.tokens) == len(one.blocks) * SIZE:
            if not self.pool.available:
                return
            self.blocks.grow(one)
        one.tokens.append(token)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave(self, data):
        one = data.draw(st.sampled_from(self.alive))
        self.alive.remove(one)
        self.blocks.release(one)
        assert not one.blocks

    @invariant()
    def every_block_is_free_cached_or_held_as_often_as_it_has_holders(self):
        held = [block for one in self.alive for block in one.blocks]
        assert set(held) <= set(range(1, 13))
        assert self.pool.used == len(set(held))
        assert all(self.pool.refs(block) == held.count(block) for block in range(1, 13))
        assert self.pool.free + self.pool.cached + self.pool.used == 12
        assert self.pool.free >= 0

    @invariant()
    def two_requests_share_a_block_only_for_the_same_computed_text(self):
        for one in self.alive:
            for index, block in enumerate(one.blocks):
                if self.pool.refs(block) > 1:
                    text = tuple(one.tokens[: (index + 1) * SIZE])
                    assert len(text) == (index + 1) * SIZE
                    assert self.memory[block] == text

    @invariant()
    def growth_is_what_is_missing_to_the_longest_ends(self):
        missing = sum(self.longest[id(one)] - len(one.blocks) for one in self.alive)
        assert self.blocks.growth_blocks == missing

    def teardown(self):
        for one in self.alive:
            self.blocks.release(one)
        assert counts(self.pool)["used"] == self.blocks.growth_blocks == 0
        assert self.pool.available == 12


def test_any_sequence_of_requests_leaves_the_memory_that_a_gpu_would_have() -> None:
    run_sequences(Blocks, examples=20, steps=25)
