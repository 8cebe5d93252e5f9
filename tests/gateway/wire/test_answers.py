"""Whole answers of engines: what they say, and that no bytes of theirs raise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_gateway.wire.openai import error_code, json_or_none, longest_share


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"error": {"code": "kv_transfer_failed"}}', "kv_transfer_failed"),
        (b'{"error": {"code": null}}', None),
        (b'{"error": {"code": 7}}', None),
        (b'{"error": {}}', None),
        (b'{"error": "kv_transfer_failed"}', None),
        (b'[{"error": {"code": "x"}}]', None),
        (b"", None),
        (b"[" * 100_000, None),
    ],
)
def test_the_code_of_an_error_is_a_text_in_its_place(body, code):
    assert error_code(body) == code


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value(body):
    json_or_none(body)
    assert error_code(body) is None


@pytest.mark.parametrize("part", ["content", "reasoning", "tool_calls"])
def test_all_parts_of_a_message_count_for_the_longest_choice(part):
    choices = [{"message": {part: "a" * 30}}, {"message": {"content": "a" * 10}}]
    assert longest_share({"choices": choices}, 2) == 0.75
