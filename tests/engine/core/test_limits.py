"""Which requests no engine of this size serves, and what their clients read."""

import pytest

from argosy_engine.core.limits import Refusal, refuse_shape
from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import SamplingParams

CONTEXT, VOCABULARY = 16, 100
SHORTEN = "shorten the prompt or lower max_tokens"


def refused(ids: list[int], max_tokens: int = 4, lease_s: float | None = None) -> Refusal | None:
    sampling = SamplingParams(max_tokens=max_tokens)
    request = NewRequest(
        request_id="r", token_ids=ids, sampling=sampling, arrival_s=0.0, lease_s=lease_s
    )
    return refuse_shape(request, CONTEXT, VOCABULARY)


@pytest.mark.parametrize(
    ("ids", "max_tokens", "lease_s"),
    [
        ([0], 1, None),
        ([VOCABULARY - 1], 1, None),
        ([1] * (CONTEXT - 4), 4, None),
        ([1], CONTEXT - 1, None),
        ([1] * CONTEXT, 4, 30.0),  # decode has the room for the answer
    ],
)
def test_what_just_fits_is_served(ids, max_tokens, lease_s):
    assert refused(ids, max_tokens, lease_s) is None


@pytest.mark.parametrize(
    ("ids", "max_tokens", "lease_s", "code", "message"),
    [
        ([], 4, None, "invalid", "the prompt is empty: send at least one token"),
        ([-1], 4, None, "invalid", "this model's token ids are 0 to 99"),
        ([5, VOCABULARY], 4, None, "invalid", "this model's token ids are 0 to 99"),
        ([1], 0, None, "invalid", "max_tokens must be at least 1, got 0"),
        (
            [1] * (CONTEXT - 3),
            4,
            None,
            "context_length_exceeded",
            "this model's context is 16 tokens; the prompt has 13 and 4 tokens are to be "
            f"generated: {SHORTEN}",
        ),
        (
            [1] * (CONTEXT + 1),
            4,
            30.0,
            "context_length_exceeded",
            f"this model's context is 16 tokens; the prompt has 17: {SHORTEN}",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(ids, max_tokens, lease_s, code, message):
    assert refused(ids, max_tokens, lease_s) == Refusal(code, message)
