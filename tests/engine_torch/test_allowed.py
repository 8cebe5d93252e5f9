"""What a request asks of its logits: biases, bad words, penalties, and what must not follow."""

import random

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.runtime.torch.logits import Exclusions, Penalties, may_end, penalise_  # noqa: E402  # noqa: E402
from argosy_engine.runtime.torch.sampler import lost_rows, sample  # noqa: E402

NEVER = float("-inf")
EOS = frozenset({0})


def after(tokens, n_prompt, **options):
    """The logits, all 1 before, of a request with these tokens."""
    logits = torch.ones(1, 6)
    params = SamplingParams(max_tokens=9, **options)
    Exclusions(EOS).apply_(logits, [params], [tokens], [n_prompt])
    penalise_(logits, [params], [tokens], [n_prompt])
    return logits[0].tolist()


def test_biases_are_added_and_only_allowed_tokens_stay():
    assert after([1], 1, logit_bias=((2, 3.0), (5, -4.0))) == [1, 1, 4, 1, 1, -3]
    kept = after([1], 1, allowed_token_ids=(4, 2), logit_bias=((4, 1.0),))
    assert kept == [NEVER, NEVER, 1, NEVER, 2, NEVER]
    beyond = after([1], 1, allowed_token_ids=(6, 2), logit_bias=((6, 1.0), (5, 1.0)))
    assert beyond == [NEVER, NEVER, 1, NEVER, NEVER, NEVER]  # there are six tokens


def test_the_last_token_of_a_bad_word_never_follows_the_others():
    words = ((3,), (1, 2), (4, 4, 5))
    assert after([1], 1, bad_words=words) == [1, 1, 1, NEVER, 1, 1]  # 1 is the prompt's
    assert after([9, 1], 1, bad_words=words) == [1, 1, NEVER, NEVER, 1, 1]
    assert after([9, 4, 4], 1, bad_words=words) == [1, 1, 1, NEVER, 1, NEVER]
    assert after([4, 4], 1, bad_words=words) == [1, 1, 1, NEVER, 1, 1]


def test_no_end_is_drawn_before_min_tokens():
    ends = {"min_tokens": 2, "stop_token_ids": (5,)}
    assert after([1, 1], 1, **ends) == [NEVER, 1, 1, 1, 1, NEVER]
    assert after([1, 1, 1], 1, **ends) == [1] * 6
    assert after([1, 1], 1, ignore_eos=True, **ends) == [1, 1, 1, 1, 1, NEVER]
    none = {"min_tokens": 2, "ignore_eos": True, "bad_words": ((3,),)}
    assert after([1, 1], 1, **none) == [1, 1, 1, NEVER, 1, 1]


def test_penalties_count_the_output_and_not_the_prompt():
    tokens = [1, 1, 2, 2, 3]
    assert after(tokens, 2, presence_penalty=0.5) == [1, 1, 0.5, 0.5, 1, 1]
    assert after(tokens, 2, frequency_penalty=0.5) == [1, 1, 0, 0.5, 1, 1]
    assert after(tokens, 2, repetition_penalty=2.0) == [1, 0.5, 0.5, 0.5, 1, 1]
    both = after(tokens, 2, repetition_penalty=2.0, frequency_penalty=1.0, presence_penalty=0.25)
    assert both == [1, 0.5, -1.75, -0.75, 1, 1]


def test_a_resumed_stream_is_penalised_for_what_was_sent_before():
    whole = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "bad_words": ((2, 4),)}
    tokens = [1, 3, 2]
    assert after(tokens, 1, **whole) == after(tokens, 3, sent=2, **whole)
    assert after(tokens, 1, **whole) != after(tokens, 3, **whole)


def test_min_p_keeps_tokens_that_reach_their_share_of_the_likeliest():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(400, 1)

    def drawn(**options):
        params = SamplingParams(max_tokens=1, **options)
        return set(sample(logits, [params] * 400, list(range(400))))

    assert drawn() == {0, 1, 2, 3}
    assert drawn(min_p=0.5) == {0, 1}
    assert drawn(min_p=0.25) == {0, 1, 2}
    assert drawn(min_p=1.0) == {0}
    assert drawn(min_p=0.25, top_k=2) == {0, 1}
    assert drawn(min_p=0.5, temperature=0.1) == {0}


def test_a_row_without_any_token_is_named_and_the_others_are_drawn():
    rows = torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [NEVER, NEVER], [NEVER, 0.0]])
    assert lost_rows(rows) == [1, 2]
    assert lost_rows(rows[:0]) == []


PENALTY = st.sampled_from([0.0, 0.5, -0.25])


def plainly(logits, params, tokens, n_prompt):
    """A row's logits after its penalties, token by token."""
    row = logits.clone()
    output = tokens[n_prompt - params.sent :]
    for token in set(tokens if params.repetition_penalty != 1.0 else output):
        less, count = torch.tensor(params.repetition_penalty), output.count(token)
        row[token] = row[token] / less if row[token] > 0 else row[token] * less
        row[token] -= count * params.frequency_penalty + bool(count) * params.presence_penalty
    return row


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 16),
    asked=st.lists(
        st.tuples(st.sampled_from([1.0, 1.5]), PENALTY, PENALTY), min_size=1, max_size=5
    ),
)
def test_penalties_of_sequences_that_grow_are_those_of_the_whole_sequences(seed, asked):
    """Steps with some of the sequences, a token or more longer each time; one begins anew."""
    rng = random.Random(seed)
    penalties, sequences = Penalties(), []
    for repetition, presence, frequency in asked:
        params = SamplingParams(
            max_tokens=9,
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            sent=rng.choice([0, 2]),
        )
        n_prompt = rng.randint(2, 100)
        sequences.append((params, [rng.randrange(90) for _ in range(n_prompt)], n_prompt))
    for step in range(6):
        if step == 3:
            params, tokens, n_prompt = sequences[0]
            sequences[0] = (params, tokens[:n_prompt], n_prompt)
        rows = [index for index in range(len(sequences)) if rng.random() < 0.8]
        logits = torch.randn(len(rows), 90, generator=torch.Generator().manual_seed(seed + step))
        right = [plainly(logits[at], *sequences[row]) for at, row in enumerate(rows)]
        params, tokens, prompts = ([sequences[row][part] for row in rows] for part in range(3))
        penalties.apply_(logits, params, tokens, prompts, [str(row) for row in rows])
        assert torch.allclose(logits, torch.stack(right) if rows else logits, rtol=1e-6, atol=1e-6)
        for _, tokens, _ in sequences:
            tokens.extend(rng.randrange(90) for _ in range(rng.choice([1, 1, 40])))


def test_min_tokens_gives_way_where_a_grammar_lets_nothing_follow_but_the_end():
    asked = SamplingParams(max_tokens=9, min_tokens=5, stop_token_ids=(4,))
    masks = {0: bytes([0b1000]), 1: bytes([0b11000]), 2: bytes([0b1001])}
    found = may_end([asked] * 4, masks, {3})
    assert [params.min_tokens for params in found] == [0, 0, 5, 5]
