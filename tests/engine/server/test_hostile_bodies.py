"""Bodies that are meant to do harm: a 400 that names the field, and an engine that goes on."""

import json

import pytest

pytest.importorskip("llguidance")

from tests.engine.server.spelling import Engine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ALONE = {"model": "m", "prompt": "so it goes", "max_tokens": 9, "seed": 1}
NUMBERS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "n", "max_tokens", "min_tokens", "top_logprobs", "prompt_logprobs",
    "truncate_prompt_tokens", "seed",
)  # fmt: skip
NOT_NUMBERS = ("NaN", "-Infinity", '"1"', "[]", "{}", "true", "-1e999")
DEEP = "[" * 100_000 + "]" * 100_000


def chat(member: str) -> bytes:
    return b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], %s}' % member.encode()


def held_to(schema: object) -> bytes:
    kind = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return chat(f'"response_format": {json.dumps(kind)}')


async def refused(path: str, body: bytes) -> dict:
    """The error; the engine is empty afterwards and answers as a new one does."""
    engine = Engine()
    answer = await engine.post(path, body)
    assert answer.status_code == 400, answer.text[:300]
    assert len(answer.content) < 2000
    assert not engine.loop.scheduler.sequences
    assert engine.loop.scheduler.pool.used == 0
    after = (await engine.post(COMPLETIONS, ALONE)).json()["choices"]
    assert after == (await Engine().post(COMPLETIONS, ALONE)).json()["choices"]
    return answer.json()["error"]


@pytest.mark.parametrize("name", NUMBERS)
async def test_what_is_no_number_is_refused_by_name(name):
    for value in NOT_NUMBERS:
        assert (await refused(CHAT, chat(f'"{name}": {value}')))["param"] == name


@pytest.mark.parametrize("name", ["n", "best_of"])
async def test_a_number_of_thousands_of_choices_is_refused(name):
    for count in (10_000, 10**30):
        assert (await refused(CHAT, chat(f'"{name}": {count}')))["param"] == name


async def test_a_number_of_thousands_of_digits_is_no_json():
    assert (await refused(CHAT, chat('"n": 1' + "0" * 5000)))["code"] == "invalid_json"


async def test_a_hundred_stops_are_refused_with_how_many_there_may_be():
    error = await refused(CHAT, chat(f'"stop": {json.dumps([str(i) for i in range(100)])}'))
    assert "at most 64" in error["message"]


@pytest.mark.parametrize(
    "member",
    [
        '"metadata": %s',
        '"stop": %s',
        '"chat_template_kwargs": {"a": %s}',
        '"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": %s}}}',
        '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": %s}}}]',
    ],
)
async def test_a_body_that_is_nested_without_end_is_no_json(member):
    assert (await refused(CHAT, chat(member % DEEP)))["code"] == "invalid_json"


async def test_a_prompt_that_is_nested_is_refused():
    body = b'{"model": "m", "prompt": %s}'
    for depth in (3, 500):
        nested = b"[" * depth + b"5" + b"]" * depth
        assert (await refused(COMPLETIONS, body % nested))["param"] == "prompt[0]"


@pytest.mark.parametrize("role", ["null", "5", '["user"]', "{}"])
async def test_a_role_that_is_no_text_is_refused(role):
    body = b'{"model": "m", "messages": [{"role": %s, "content": "hi"}]}' % role.encode()
    assert (await refused(CHAT, body))["param"] == "messages[0].role"


async def test_an_unknown_role_is_for_the_chat_template_to_refuse():
    messages = [{"role": "a stranger", "content": "hi"}]
    answer = await Engine().post(CHAT, {"model": "m", "messages": messages, "max_tokens": 2})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "content",
    ["5", "{}", "[null]", "[{}]", '[{"type": "image_url", "image_url": {"url": "x"}}]',
     '[{"type": "text", "text": 5}]', '"\\ud800"'],
)  # fmt: skip
async def test_content_that_is_no_text_is_refused(content):
    body = b'{"model": "m", "messages": [{"role": "user", "content": %s}]}' % content.encode()
    await refused(CHAT, body)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "file"])
async def test_a_part_that_is_no_text_is_refused_with_the_scope(kind):
    content = json.dumps([{"type": "text", "text": "what is this?"}, {"type": kind, kind: {}}])
    body = b'{"model": "m", "messages": [{"role": "user", "content": %s}]}' % content.encode()
    assert "SCOPE.md" in (await refused(CHAT, body))["message"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"$ref": "file:///etc/passwd"},
        {"type": "string", "minLength": 10**12},
        {"enum": list(range(20_000))},
        {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {"type": "string"}}} for j in range(10)]}
                   for i in range(12)]},
        False,
    ],
    ids=["itself", "a circle", "a url", "a file", "long", "many", "products", "nothing"],
)  # fmt: skip
async def test_a_schema_that_means_harm_is_refused(schema):
    field = "response_format.json_schema.schema"
    assert (await refused(CHAT, held_to(schema)))["param"] == field


@pytest.mark.parametrize("expression", ["(?=a)b", "[", "a{1000000}", "\\1(a)", "a" * 70_000])
async def test_an_expression_that_means_harm_is_refused(expression):
    member = f'"structured_outputs": {json.dumps({"regex": expression})}'
    assert (await refused(CHAT, chat(member)))["param"] == "structured_outputs.regex"


async def test_a_model_of_a_long_name_is_not_repeated():
    answer = await Engine().post(COMPLETIONS, {**ALONE, "model": "x" * 100_000})
    assert answer.status_code == 404
    assert len(answer.content) < 1000
