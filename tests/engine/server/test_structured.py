"""Answers that match a schema, an expression, a choice or a grammar, whatever the model wants."""

import json
import re
import time
from dataclasses import replace

import pytest

pytest.importorskip("llguidance")

from argosy_engine.server.openai.structure import structure_of
from argosy_engine.text.byte_tokenizer import ByteTokenizer
from tests.engine.server.spelling import EOS, Engine, events_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}, "s": {"type": "string", "maxLength": 3}},
    "required": ["n", "s"],
    "additionalProperties": False,
}


def ask(**more) -> dict:
    return {"model": "m", "seed": 1, "max_tokens": 90, "prompt": "so it goes", **more}


def structured(**kind) -> dict:
    return ask(structured_outputs=kind)


async def text_of(body: dict, path: str = COMPLETIONS) -> str:
    response = await Engine().post(path, body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize("seed", range(5))
async def test_a_schema_holds(seed):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for body in (
        ask(response_format=wanted),
        structured(json=SCHEMA),
        structured(json=json.dumps(SCHEMA)),
    ):
        found = json.loads(await text_of({**body, "seed": seed}))
        assert found.keys() == {"n", "s"}
        assert found["n"] in (1, 2)
        assert len(found["s"]) <= 3


def fits(schema: dict, text: str) -> bool:
    """The grammar of `schema` lets an answer be this text."""
    held = structure_of({"structured_outputs": {"json": schema}}).grammar
    grammars = ByteTokenizer(256).grammars(256, [EOS])
    output: list[int] = []
    for byte in (*text.encode(), EOS):
        mask = grammars.mask("r", held, output)
        if not mask[byte // 8] >> byte % 8 & 1:
            return False
        output.append(byte)
    return True


def of(**members) -> dict:
    return {"type": "object", "properties": {"a": {"type": "integer"}}, **members}


def named(names: dict, **members) -> dict:
    value = {"type": "integer"}
    return {"type": "object", "propertyNames": names, "additionalProperties": value, **members}


PATTERN = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"


@pytest.mark.parametrize(
    ("schema", "text", "does"),
    [
        (of(), '{"a": 1}', True),
        (of(), '{"a": 1, "b": 2}', False),
        (of(), "{}", True),
        (of(additionalProperties=True), '{"a": 1, "b": 2}', True),
        (of(additionalProperties={"type": "integer"}), '{"a": 1, "b": 2}', True),
        (of(unevaluatedProperties=True), '{"a": 1, "b": 2}', True),
        (of(required=["b"]), '{"b": 2}', True),
        ({"type": "object"}, '{"b": 2}', True),
        ({"type": "object", "properties": {}}, '{"b": 2}', False),
        ({"type": "object", "properties": {}}, "{}", True),
        ({"properties": {"a": {"type": "integer"}}}, "3", False),
        ({"type": "object", "properties": {"o": of()}}, '{"o": {"b": 1}}', False),
        ({"$ref": "#/$defs/A", "$defs": {"A": of()}}, '{"b": 1}', False),
        ({"anyOf": [of(), {"type": "null"}]}, '{"b": 1}', False),
        ({"anyOf": [of(), {"type": "null"}]}, "null", True),
        (
            {"allOf": [of(), {"type": "object", "properties": {"b": {"type": "integer"}}}]},
            '{"a": 1, "b": 2}',
            True,
        ),
        ({"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": of()}}, '{"b": 1}', False),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, "[1, 2]", False),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, "[1]", True),
        (named({"enum": ["a", "b"]}), '{"b": 1}', True),
        (named({"enum": ["a", "b"]}), '{"c": 1}', False),
        (named({"$ref": "#/$defs/N"}, **{"$defs": {"N": {"enum": ["a"]}}}), '{"c": 1}', False),
        (named({"$ref": "#/$defs/N"}, **{"$defs": {"N": {"enum": ["a"]}}}), '{"a": 1}', True),
        (named({"pattern": "^a+$"}), '{"aa": 1}', True),
        (named({"pattern": "^a+$"}), '{"b": 1}', False),
        (named({"minLength": 2}), '{"b": 1}', True),
        ({"type": "string", "format": "path"}, '"x"', True),
        ({"type": "string", "pattern": PATTERN}, '"-1.5"', True),
        ({"type": "string", "pattern": PATTERN}, '"x"', False),
        ({"type": "string", "pattern": r"^\b[(?=x](?!y(z|[)]))a?$"}, '"("', True),
        ({"type": "string", "pattern": r"^\b[(?=x](?!y(z|[)]))a?$"}, '"b"', False),
        ({"type": "array", "items": {"enum": [1]}, "uniqueItems": True}, "[1]", True),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]}, '"abc"', True),
        (of(default={"properties": 1}, enum=[{"b": 1}]), '{"b": 1}', True),
    ],
    ids=json.dumps,
)
def test_an_object_that_names_properties_has_no_others_as_in_vllm(schema, text, does):
    assert fits(schema, text) is does


async def test_a_chat_is_held_to_its_format_too():
    body = ask(
        messages=[{"role": "user", "content": "hi"}],
        response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    )
    del body["prompt"]
    assert json.loads(await text_of(body, CHAT)).keys() == {"n", "s"}


async def test_an_expression_a_choice_and_a_grammar_hold():
    assert re.fullmatch("[xy]{3,5}z", await text_of(structured(regex="[xy]{3,5}z")))
    assert await text_of(structured(choice=["ja", "nein", "vielleicht é\n"])) in (
        "ja", "nein", "vielleicht é\n",
    )  # fmt: skip
    assert (
        await text_of(
            structured(
                grammar='start: "a" start "b" | "c"',
            )
        )
        is not None
    )
    assert await text_of(structured(grammar='root ::= "yes" | "no"')) in ("yes", "no")


async def test_a_stream_that_goes_on_elsewhere_goes_on_in_the_grammar():
    body = {**structured(json=SCHEMA), "stream": True}
    headers = {"x_argosy_token_ids": "1", "x_request_id": "r"}
    whole = events_of((await Engine().post(COMPLETIONS, body, **headers)).text)
    texts = [event.text for event in whole]
    for cut in range(1, len(whole) - 1):
        ids = [i for event in whole[:cut] for i in event.ids or ()]
        closed = any(event.closing for event in whole[:cut])
        sent = {"token_ids": ids, "closed": closed, "created": 1}
        again = {**body, "argosy_resume": sent}
        rest = await Engine().post(COMPLETIONS, again, x_argosy_resume="1", **headers)
        assert rest.status_code == 200, rest.text
        found = [event.text for event in events_of(rest.text)]
        assert "".join(texts[:cut] + found) == "".join(texts)
    json.loads("".join(texts))


NESTED: dict = {}
for _ in range(300):
    NESTED = {"type": "object", "properties": {"a": NESTED}}


@pytest.mark.parametrize(
    "kind",
    [
        {"regex": "(a"},
        {"regex": r"(a)\1"},
        {"regex": "(" * 20_000},
        {"regex": "a" * 70_000},
        {"regex": 5},
        {"choice": []},
        {"choice": [""]},
        {"choice": "yes"},
        {"grammar": 'start: "a'},
        {"grammar": "(" * 20_000},
        {"json": NESTED},
        {"json": "{"},
        {"json": 5},
        {"json": {"enum": []}},
        {"json": {"$ref": "#"}},
        {"json": {"$ref": "http://127.0.0.1:9/schema"}},
        {"json": {"type": "number", "multipleOf": 1e-9, "maximum": 1e300}},
        {"json": {"anyOf": [{"properties": {f"k{i}": {"type": "string"}}} for i in range(2500)]}},
        {"json": {"anyOf": [{"properties": {f"k{i}": {}}, "type": "object"} for i in range(1200)]}},
        {"regex": "a", "choice": ["b"]},
        {"whitespace_pattern": "x", "regex": "a"},
        {"structural_tag": "x"},
    ],
    ids=lambda kind: json.dumps(kind)[:40],
)
async def test_what_no_answer_can_match_is_refused_and_leaves_nothing(kind):
    engine = Engine()
    began = time.process_time()
    response = await engine.post(COMPLETIONS, structured(**kind))
    assert time.process_time() - began < 30
    assert response.status_code == 400, response.text
    (name,) = kind if len(kind) == 1 and "structural_tag" not in kind else ("",)
    field = f"structured_outputs.{name}".rstrip(".")
    assert response.json()["error"]["param"] == field
    assert len(response.json()["error"]["message"]) < 500
    assert "<non-verbose/>" not in response.text
    assert not engine.loop.scheduler.sequences
    assert engine.loop.scheduler.pool.used == 0
    assert (await engine.post(COMPLETIONS, ask())).status_code == 200


async def test_a_grammar_that_cannot_be_read_is_refused_with_the_place():
    response = await Engine().post(COMPLETIONS, structured(grammar="root ::= ("))
    assert response.status_code == 400
    assert "Expected ')' at line 1" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema",
        ),
        ({"response_format": "json"}, "response_format"),
        ({"structured_outputs": ["regex"]}, "structured_outputs"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
        ),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    ],
)
async def test_a_format_that_makes_no_sense_is_named(more, param):
    response = await Engine().post(COMPLETIONS, ask(**more))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_after_a_match_only_the_end_may_follow():
    from argosy_engine.errors import GrammarError
    from argosy_engine.text.grammars import compose

    grammars = ByteTokenizer(256).grammars(256, [EOS])

    def allowed(name, output):
        mask = grammars.mask(name, compose("regex", "ab|ac"), output)
        return [b for b in range(256) if mask[b // 8] >> b % 8 & 1]

    assert allowed("r", []) == [ord("a")]
    assert allowed("r", list(b"a")) == [ord("b"), ord("c")]
    assert allowed("r", list(b"ab")) == [EOS]
    assert allowed("s", list(b"ac")) == [EOS]  # not seen before
    assert allowed("r", []) == [ord("a")]  # and from its beginning again
    with pytest.raises(GrammarError, match="cannot go on"):
        allowed("t", list(b"zz"))


async def test_an_answer_that_its_grammar_ends_is_the_clients_error():
    """A gateway would ask another engine after a 500, and count this one as failing."""
    engine = Engine()
    execute = engine.runner.execute

    def ends(plan):
        (chunk,) = plan.chunks
        failed = {chunk.request_id: "the answer cannot go on: too many states"}
        return replace(execute(plan), failed=failed, excluded=frozenset(failed))

    engine.runner.execute = ends
    answer = await engine.post(COMPLETIONS, structured(regex="a+"))
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "the answer cannot go on: too many states",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid",
    }
    assert engine.loop.scheduler.pool.used == 0
