"""What the gateway reads of a request, what it refuses and in which words, and what it adds."""

import json
import re

import pytest

from argosy_gateway.errors import RequestError
from argosy_gateway.wire.openai import read_completion, request_id_of

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


def read(path=CHAT, **fields):
    return read_completion(path, json.dumps({"model": "m", **fields}).encode(), served_names=("m",))


def chat(*contents, **fields):
    return read(messages=[{"role": "user", "content": content} for content in contents], **fields)


def refusal(path, body):
    """Status, message, parameter and code of the error that these bytes are answered with."""
    with pytest.raises(RequestError) as refused:
        read_completion(path, body, served_names=("the-model",))
    error = refused.value
    assert (error.type, error.headers) == ("invalid_request_error", {})
    return error.status, error.message, error.param, error.code


MODEL = b'{"model":"the-model",'
NO_MODEL = (400, "'model' must be a string; this fleet serves 'the-model'.", "model", None)
NO_LIST = (400, "'messages' must be a list of objects.", "messages", None)
NO_FLAG = (400, "'stream' must be true or false.", "stream", None)
NO_OPTIONS = (400, "'stream_options' must be an object.", "stream_options", None)
STREAM = MODEL + b'"messages":[],"stream":true,"stream_options":'


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b"[1]", (400, "The request body must be a JSON object.", None, None)),
        (MODEL + b'"n":NaN}', (400, "NaN is not JSON; numbers must be finite.", None, None)),
        (
            MODEL + b'"n":-Infinity}',
            (400, "-Infinity is not JSON; numbers must be finite.", None, None),
        ),
        (
            b'{"model"}',
            (
                400,
                "The request body is not JSON: Expecting ':' delimiter: line 1 column 9 (char 8).",
                None,
                None,
            ),
        ),
        (b"[" * 100_000, (400, "The request body is nested too deeply.", None, None)),
        (b'{"model":7,"messages":[]}', NO_MODEL),
        (b'{"model":false,"messages":[]}', NO_MODEL),
        (b'{"model":["the-model"],"messages":[]}', NO_MODEL),
        (MODEL + b'"x":1}', (400, "'messages' is required.", "messages", None)),
        (MODEL + b'"messages":null}', (400, "'messages' is required.", "messages", None)),
        (MODEL + b'"messages":"hi"}', NO_LIST),
        (MODEL + b'"messages":{}}', NO_LIST),
        (MODEL + b'"messages":[{},"hi"]}', NO_LIST),
        (MODEL + b'"messages":[],"stream":1}', NO_FLAG),
        (MODEL + b'"messages":[],"stream":"true"}', NO_FLAG),
        (STREAM + b'"x"}', NO_OPTIONS),
        (STREAM + b"[1]}", NO_OPTIONS),
        (STREAM + b"true}", NO_OPTIONS),
    ],
)
def test_a_wrong_request_is_refused_with_what_is_wrong(body, answer):
    assert refusal(CHAT, body) == answer


@pytest.mark.parametrize("given", [b"", b'"model":null,', b'"model":"",'])
@pytest.mark.parametrize("stream", [b"true", b"false"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_body_without_a_model_asks_for_the_first_one_and_names_it(given, stream, encoding):
    text = b"{" + given + b'"messages":[],"stream":' + stream + b"}\n"
    body = text.decode().encode(encoding)
    request = read_completion(CHAT, body, served_names=("base", "other"))
    assert request.model == "base"
    assert json.loads(request.body)["model"] == "base"


@pytest.mark.parametrize(("length", "shown"), [(128, 128), (129, 128)])
def test_another_model_is_not_found_and_named_by_128_characters_at_most(length, shown):
    assert refusal(CHAT, json.dumps({"model": "x" * length, "messages": []}).encode()) == (
        404,
        f"The model '{'x' * shown}' does not exist here; this fleet serves 'the-model'.",
        "model",
        "model_not_found",
    )


@pytest.mark.parametrize("given", [b"a", b"A.z_9-0", b"x" * 128])
def test_a_request_keeps_the_id_that_its_client_gave(given):
    assert request_id_of(given) == given.decode()


@pytest.mark.parametrize("given", [None, b"", b"x" * 129, b"a b", b"a\nb", b"\xe9", b"a/b"])
def test_an_id_that_is_none_is_replaced_by_a_new_one(given):
    new = request_id_of(given)
    assert re.fullmatch(r"[0-9a-f]{32}", new)
    assert request_id_of(given) != new


@pytest.mark.parametrize(
    ("content", "chars"),
    [
        ("héllo", 5),
        ("", 0),
        (7, 4),
        ([1, 2, 3], 12),
        (["ab", "c"], 3),
        ([{"type": "text", "text": "abc"}, {"type": "image_url", "image_url": {"url": "x"}}], 3),
        ({"text": {"text": "ab"}}, 2),
        (None, 0),
        (1.0, 4),
    ],
)
def test_the_characters_of_a_prompt_are_those_of_its_texts_and_four_for_a_token_id(content, chars):
    assert chat(content).prompt_chars == chars
    assert chat("seven..", content).prompt_chars == 7 + chars


@pytest.mark.parametrize(
    ("contents", "start"),
    [
        (["hello", "world"], b"hello world"),
        ([["a", {"text": "b"}], 7, None, 1.5, {"image": "x"}], b"a b 7 1.5"),
        (["é" * 3], "ééé".encode()),
        (["\ud800"], b"\\ud800"),
        ([], b""),
        (["", "x"], b" x"),
    ],
)
def test_the_start_of_a_prompt_is_its_texts_in_their_order(contents, start):
    assert chat(*contents).prompt_start == start


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ({"include_usage": True}, False),
        ({"include_usage": False}, True),
        ({"include_usage": 1}, True),
        ({}, True),
        (None, True),
    ],
)
def test_usage_is_hidden_from_a_client_that_did_not_ask_for_it(options, hidden):
    request = chat("hi", stream=True, seed=1, stream_options=options)
    assert request.stream is True
    assert request.hide_usage is hidden
    assert json.loads(request.body)["stream_options"] == {**(options or {}), "include_usage": True}


def test_the_usage_of_each_chunk_goes_only_with_that_of_the_end():
    alone, both = {"continuous_usage_stats": True}, {"include_usage": True}
    request = chat("hi", stream=True, seed=1, stream_options=alone)
    assert json.loads(request.body)["stream_options"] == both
    request = chat("hi", stream=True, seed=1, stream_options={**alone, **both})
    assert json.loads(request.body)["stream_options"] == {**alone, **both}
