"""Prefill and decode apart give the text that one engine gives, over real sockets."""

import re

import pytest

from local.weights.tiny import write_tiny
from tests.engine_torch.engines import engine

pytestmark = pytest.mark.torch
PROMPTS = ("hello world", "x", "The quick brown fox jumps over the lazy dog, again and again. " * 3)
RECEIVED = 'argosy_kv_transfer_seconds_count{side="receive"}'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """(prefill, decode, colocated) over one tiny model; all three start at once would be faster
    on more cores than tests may assume."""
    folder = tmp_path_factory.mktemp("fleet")
    model = write_tiny(folder / "tiny")
    with (
        engine(model, "prefill", folder / "p.log") as prefill,
        engine(model, "decode", folder / "d.log") as decode,
        engine(model, "colocated", folder / "c.log") as colocated,
    ):
        yield prefill, decode, colocated


def test_t42_greedy_texts_of_64_tokens_are_equal_apart_and_together(fleet):
    prefill, decode, colocated = fleet
    before = decode.metric(RECEIVED)
    apart = [decode.complete(prompt, 64, prefill) for prompt in PROMPTS]
    assert apart == [colocated.complete(prompt, 64) for prompt in PROMPTS]
    assert decode.metric(RECEIVED) - before == len(PROMPTS)


@pytest.mark.parametrize("seed", [1, 7, 2**40])
@pytest.mark.parametrize("more", [{"temperature": 0.8}, {"temperature": 1.5, "top_p": 0.9}])
def test_t43_a_sampled_text_is_equal_apart_and_together(fleet, seed, more):
    """Prefill draws the first token and decode the others, each by seed and position."""
    prefill, decode, colocated = fleet
    apart = decode.complete("again and again", 32, prefill, seed=seed, **more)
    assert apart == colocated.complete("again and again", 32, seed=seed, **more)
    assert apart != colocated.complete("again and again", 32, seed=seed + 1, **more)
    assert apart != colocated.complete("again and again", 32)


def test_t42_a_structured_text_is_equal_apart_and_together(fleet):
    """The first token is drawn by prefill, the others by decode: both hold to the grammar."""
    prefill, decode, colocated = fleet
    wanted = {"regex": "[ab]{3}(c|d)e{2}"}
    more = {"structured_outputs": wanted, "ignore_eos": False}
    apart = decode.complete("again and again", 32, prefill, **more)
    assert re.fullmatch("[ab]{3}(c|d)e{2}", apart)
    assert apart == colocated.complete("again and again", 32, **more)


def test_t42_probabilities_are_equal_apart_and_together(fleet):
    prefill, decode, colocated = fleet
    apart = decode.choice("again and again", 8, prefill, logprobs=3)["logprobs"]
    together = colocated.choice("again and again", 8, logprobs=3)["logprobs"]
    assert apart["tokens"] == together["tokens"]
    assert len(apart["tokens"]) == 8
    assert apart["token_logprobs"] == pytest.approx(together["token_logprobs"], abs=1e-4)


def test_a_salted_prompt_is_computed_by_decode_and_gives_the_same_text(fleet):
    """The prefill engine is not told the salt, and must not share the prompt's blocks."""
    prefill, decode, colocated = fleet
    before = decode.metric(RECEIVED)
    salted = decode.complete(PROMPTS[2], 8, prefill, cache_salt="a")
    assert decode.metric(RECEIVED) == before
    assert salted == colocated.complete(PROMPTS[2], 8)
