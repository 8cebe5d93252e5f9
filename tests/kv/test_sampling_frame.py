"""How a prompt's first token is to be drawn reaches the prefill engine unchanged."""

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.core.sampling import SamplingParams
from argosy_engine.transfer.messages import decode_message
from argosy_engine.transfer.wire import HEADER_BYTES, Kind, WireError, encode_control

PREFILL = {
    "request_id": "r", "attempt": 1, "fingerprint": "f", "tp": 1, "n_tokens": 3, "lease_s": 9.0,
}  # fmt: skip
# What every release knows.
OLDEST = {
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "seed",
    "ignore_eos", "stop_token_ids",
}  # fmt: skip
TOKENS = st.integers(0, 1 << 20)


def taken(sampling):
    frame = encode_control(Kind.PREFILL, {**PREFILL, "sampling": sampling})
    return decode_message(Kind.PREFILL, frame[HEADER_BYTES:]).sampling


@given(
    st.builds(
        SamplingParams,
        max_tokens=st.integers(1, 1 << 20),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        min_p=st.floats(0, 1),
        logit_bias=st.lists(st.tuples(TOKENS, st.floats(-100, 100)), max_size=3).map(tuple),
        allowed_token_ids=st.lists(TOKENS, max_size=3).map(tuple),
        bad_words=st.lists(st.lists(TOKENS, max_size=3).map(tuple), max_size=3).map(tuple),
        sent=st.integers(0, 3),
        stop_token_ids=st.lists(TOKENS, max_size=3).map(tuple),
    )
)
def test_every_parameter_arrives_as_it_was(params):
    assert taken(params.to_json()) == params


def test_a_request_that_asks_for_nothing_new_is_understood_by_every_release():
    assert SamplingParams(max_tokens=1).to_json().keys() == OLDEST
    assert {field.name for field in fields(SamplingParams)} >= OLDEST


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3),
        ("min_p", 1.5),
        ("logit_bias", [[1]]),
        ("logit_bias", [[1, 101]]),
        ("logit_bias", [[-1, 1]]),
        ("logit_bias", {"1": 2}),
        ("allowed_token_ids", ["a"]),
        ("bad_words", [1]),
        ("bad_words", "no"),
        ("sent", -1),
    ],
)
def test_a_value_that_makes_no_sense_is_named(name, value):
    said = json.loads(json.dumps({**SamplingParams(max_tokens=1).to_json(), name: value}))
    with pytest.raises(WireError, match=name):
        taken(said)
