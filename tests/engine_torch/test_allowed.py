"""What a request asks of its logits: biases, bad words, penalties, and what must not follow."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.runtime.torch.allowed import forbid_  # noqa: E402
from argosy_engine.runtime.torch.penalty import penalise_  # noqa: E402
from argosy_engine.runtime.torch.sampler import lost_rows, sample  # noqa: E402

NEVER = float("-inf")
EOS = frozenset({0})


def after(tokens, n_prompt, **options):
    """The logits, all 1 before, of a request with these tokens."""
    logits = torch.ones(1, 6)
    params = SamplingParams(max_tokens=9, **options)
    forbid_(logits, [params], [tokens], [n_prompt], EOS)
    penalise_(logits, [params], [tokens], [n_prompt])
    return logits[0].tolist()


def test_a_request_that_asks_for_nothing_keeps_its_logits():
    assert after([1, 2], 1) == [1.0] * 6
    assert SamplingParams(max_tokens=1).plain


def test_biases_are_added_and_only_allowed_tokens_stay():
    assert after([1], 1, logit_bias=((2, 3.0), (5, -4.0))) == [1, 1, 4, 1, 1, -3]
    kept = after([1], 1, allowed_token_ids=(4, 2), logit_bias=((4, 1.0),))
    assert kept == [NEVER, NEVER, 1, NEVER, 2, NEVER]


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


def test_rows_do_not_touch_each_other():
    logits = torch.ones(3, 6)
    rows = [
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=1, logit_bias=((1, 1.0),), frequency_penalty=1.0),
        SamplingParams(max_tokens=1, repetition_penalty=2.0),
    ]
    histories, prompts = [[5, 5], [4, 3, 3], [2]], [1, 1, 1]
    forbid_(logits, rows, histories, prompts, EOS)
    penalise_(logits, rows, histories, prompts)
    assert logits.tolist() == [[1] * 6, [1, 2, 1, -1, 1, 1], [1, 1, 0.5, 1, 1, 1]]


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
