"""A block is found again only by the text that its KV was computed for, from the first token on.

KV depends on every token before it. A block that is found by a part of its text gives a request the
KV of another context. Texts are letters here, one token each; a block holds 4.
"""

import pytest

from argosy_engine.core.blocks import Allocator, BlockPool
from argosy_engine.core.request import NewRequest, Sequence
from argosy_engine.core.sampling import SamplingParams

SIZE = 4


def sequence(text, *, max_tokens=4, lease_s=None):
    tokens = list(text) if not isinstance(text, str) else [ord(letter) for letter in text]
    request = NewRequest(
        request_id="r",
        token_ids=tokens,
        sampling=SamplingParams(max_tokens=max_tokens),
        arrival_s=0.0,
        lease_s=lease_s,
    )
    return Sequence(request=request, tokens=list(tokens), arrival_index=1)


def allocator(blocks=16, *, max_model_len=100):
    pool = BlockPool(num_blocks=blocks, block_size=SIZE)
    return Allocator(pool, max_model_len), pool


def compute(blocks, one, *, tokens=None):
    """Admit it without hits and compute its first `tokens`, or all of them."""
    blocks.admit(one, [])
    one.num_computed = len(one.tokens) if tokens is None else tokens
    blocks.commit(one)
    return one


def hits_of(known, asked):
    """How many of its blocks a request finds after another was computed."""
    blocks, _ = allocator()
    first = compute(blocks, sequence(known))
    hits = blocks.prefix_hits(sequence(asked))
    assert hits == list(first.blocks[: len(hits)])
    return len(hits)


@pytest.mark.parametrize(
    ("known", "asked", "hits"),
    [
        pytest.param("aaaabbbbccccd", "aaaabbbbccccd", 3, id="the same text"),
        pytest.param("aaaabbbbccccd", "aaaabbbbccccx", 3, id="another end"),
        pytest.param("aaaabbbbccccd", "aaaabbbbXcccd", 2, id="another third block"),
        pytest.param("aaaabbbbccccd", "aaaaXbbbccccd", 1, id="another second block"),
        pytest.param("aaaabbbbccccd", "aaaXbbbbccccd", 0, id="another end of the first block"),
        pytest.param("aaaabbbbccccd", "Xaaabbbbccccd", 0, id="another first token"),
        pytest.param("aaaabbbbccccd", "bbbbccccd", 0, id="the same text without its beginning"),
        pytest.param("aaaabbbbccccd", "bbbbaaaaccccd", 0, id="the same blocks in another order"),
        pytest.param("aaaabbbbccccd", "aaaaccccbbbbd", 1, id="two blocks exchanged"),
        pytest.param("aaaabbbbccccd", "zaaaabbbbccccd", 0, id="moved by one token"),
        pytest.param("aaaabbbbccccd", "aaaaaaaabbbbd", 1, id="its first block twice"),
        pytest.param("aaaaaaaaaaaad", "aaaaaaaaaaaad", 3, id="one block three times"),
        pytest.param("xxxxaaaaaaaad", "aaaaaaaad", 0, id="a repeated block behind another"),
        pytest.param("abcdabcdabcdd", "abcddcbaabcdd", 1, id="tokens of a block exchanged"),
        pytest.param("aaaabbbb", "aaaabbbbc", 2, id="a longer text"),
        pytest.param("aaaabbbb", "aaaabbbb", 1, id="the last token is always computed"),
        pytest.param("aaaab", "aaaab", 1, id="the last token is in a block of its own"),
        pytest.param("aaaabbb", "aaaabbbbb", 1, id="a block that was not full"),
        pytest.param("aaa", "aaaaa", 0, id="shorter than a block"),
    ],
)
def test_a_request_finds_the_blocks_of_its_own_text_and_no_others(known, asked, hits):
    assert hits_of(known, asked) == hits


@pytest.mark.parametrize("other", [257, 65_537, (1 << 24) + 1, (1 << 31) + 1, 0])
def test_a_token_id_counts_with_all_of_its_bits(other):
    assert hits_of([1, 1, 1, 1, 5], [1, 1, 1, other, 5]) == 0
    assert hits_of([1, 1, 1, other, 5], [1, 1, 1, other, 5]) == 1


def test_generated_text_is_found_as_if_it_had_been_a_prompt():
    blocks, _ = allocator()
    one = compute(blocks, sequence("aaaabb"))
    for letter in "bbc":
        one.tokens.append(ord(letter))
        if len(one.tokens) > len(one.blocks) * SIZE:
            blocks.grow(one)
        one.num_computed = len(one.tokens)
        blocks.commit(one)
    assert blocks.prefix_hits(sequence("aaaabbbbcd")) == list(one.blocks[:2])
    assert blocks.prefix_hits(sequence("aaaabbXXcd")) == list(one.blocks[:1])


def test_a_text_that_was_computed_twice_keeps_its_first_blocks_and_frees_the_others():
    blocks, pool = allocator(8)
    first, second = sequence("aaaabbbbc"), sequence("aaaabbbbc")
    blocks.admit(first, [])
    blocks.admit(second, [])
    for one in (first, second):
        one.num_computed = 9
        blocks.commit(one)
    assert blocks.prefix_hits(sequence("aaaabbbbc")) == list(first.blocks[:2])
    blocks.release(second)
    assert (pool.free, pool.cached, pool.used) == (5, 0, 3)
    blocks.release(first)
    assert (pool.free, pool.cached, pool.used) == (6, 2, 0)


@pytest.mark.parametrize(
    ("text", "max_tokens", "hits", "takes"),
    [
        pytest.param("xxxx", 4, 0, 1, id="one block"),
        pytest.param("xxxxx", 4, 0, 2, id="a block and a token"),
        pytest.param("aaaabbbbc", 4, 2, 3, id="unused hits are taken from the idle blocks"),
        pytest.param("kkkkllllm", 4, 2, 1, id="hits in use cost nothing"),
    ],
)
def test_a_prompt_takes_the_available_blocks_that_it_announces(text, max_tokens, hits, takes):
    blocks, pool = allocator(12)
    blocks.release(compute(blocks, sequence("aaaabbbbc")))
    compute(blocks, sequence("kkkkllllm"))
    before = pool.available
    one = sequence(text, max_tokens=max_tokens)
    found = blocks.prefix_hits(one)
    assert (len(found), blocks.prompt_blocks(one, found)) == (hits, takes)
    blocks.admit(one, found)
    assert before - pool.available == takes


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "lease_s", "max_model_len", "growth"),
    [
        pytest.param(4, 4, None, 100, 1, id="a whole block more"),
        pytest.param(4, 5, None, 100, 2, id="a block and a token more"),
        pytest.param(3, 1, None, 100, 0, id="the block has room"),
        pytest.param(4, 90, None, 20, 4, id="the context ends before max_tokens"),
        pytest.param(8, 50, 30.0, 100, 0, id="a peer decodes it"),
    ],
)
def test_growth_is_what_the_admitted_may_still_ask_for(
    prompt, max_tokens, lease_s, max_model_len, growth
):
    blocks, pool = allocator(40, max_model_len=max_model_len)
    other = compute(blocks, sequence("ooooo", max_tokens=7))  # 2 blocks, at most 3
    one = sequence("x" * prompt, max_tokens=max_tokens, lease_s=lease_s)
    assert blocks.growth_of(one) == growth
    blocks.admit(one, [])
    assert blocks.growth_blocks == 1 + growth
    if growth:
        blocks.grow(one)
        assert len(one.blocks) == -(-prompt // SIZE) + 1
        assert blocks.growth_blocks == growth
    blocks.release(one)
    assert (list(one.blocks), one.committed, blocks.growth_blocks) == ([], 0, 1)
    blocks.release(one)  # it has none
    assert (blocks.growth_blocks, pool.used) == (1, 2)
    blocks.release(other)
    assert (blocks.growth_blocks, pool.used) == (0, 0)
