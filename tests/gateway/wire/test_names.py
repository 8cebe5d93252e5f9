"""The model's name in bodies: what the engine takes, and what the client asked for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.wire.openai import rename_model, restore_model

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,20}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | names,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["model", "a", '"model":"m"']) | st.text(), inner, max_size=3
        )
    ),
    max_leaves=4,
)
bodies = st.dictionaries(st.sampled_from(["messages", "tools", "x"]), values, max_size=3)


@given(names, names, bodies, st.booleans(), st.sampled_from(["utf-8", "utf-16", "utf-8-sig"]))
def test_a_body_asks_for_the_other_model_and_is_the_same_otherwise(asked, name, body, ascii_, code):
    whole = {**body, "model": asked}
    sent = json.dumps(whole, ensure_ascii=ascii_).encode(code, errors="surrogatepass")
    assert json.loads(rename_model(sent, asked, name)) == {**whole, "model": name}


@given(names, names, st.text())
def test_an_answer_has_the_name_that_was_asked_for_and_its_text_is_the_same(own, asked, text):
    for spaces in ((",", ":"), (", ", ": ")):
        event = {"id": "x", "model": own, "choices": [{"index": 0, "text": text}]}
        data = b"data: " + json.dumps(event, separators=spaces).encode() + b"\n\n"
        found = json.loads(restore_model(data, own, asked).removeprefix(b"data: "))
        assert found == {**event, "model": asked}


@pytest.mark.parametrize("text", ['"model":"own"', '{"model": "own"}', '\\"model\\":\\"own\\"'])
def test_text_of_the_model_that_looks_like_the_member_stays(text):
    event = json.dumps({"model": "own", "text": text}).encode()
    assert json.loads(restore_model(event, "own", "asked"))["text"] == text
