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


async def test_a_number_of_thousands_of_digits_is_no_json():
    assert (await refused(CHAT, chat('"n": 1' + "0" * 5000)))["code"] == "invalid_json"


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
