"""Calls of tools and reasoning in a chat's answer, whole and as it comes."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llguidance")

from argosy_engine.runtime.sim import SimTokenizer
from argosy_engine.server.openai.errors import ApiError
from argosy_engine.server.openai.request import parse_chat
from argosy_engine.server.openai.tool_calls import (
    PARSERS,
    Shaper,
    thinks_at_its_end,
)
from argosy_engine.text.byte_tokenizer import ByteTokenizer
from tests.engine.server.spelling import EOS, Engine

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bonn", "Rom"]}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}


def ask(**more) -> dict:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "m", "seed": 1, "max_tokens": 120, "messages": messages, **more}


async def answer(body: dict) -> dict:
    response = await Engine().post(CHAT, body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


async def streamed(body: dict) -> tuple[list[dict], str]:
    """The calls that a client puts together, and the finish reason."""
    response = await Engine().post(CHAT, {**body, "stream": True})
    assert response.status_code == 200, response.text
    calls: list[dict] = []
    reasons = []
    for part in response.text.split("\n\n"):
        if not part.startswith("data: {"):
            continue
        (choice,) = json.loads(part.removeprefix("data: "))["choices"]
        assert not choice["delta"].get("content")
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        for delta in choice["delta"].get("tool_calls", ()):
            if "id" in delta:
                assert delta["index"] == len(calls)
                calls.append({"name": delta["function"]["name"], "arguments": ""})
            calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    (reason,) = reasons
    return calls, reason


@pytest.mark.parametrize("seed", range(4))
async def test_a_required_call_is_one_of_the_tools_with_its_parameters(seed):
    body = ask(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, seed=seed)
    choice = await answer(body)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"]["name"] == "weather"
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["city"] in ("Bonn", "Rom")
    assert set(arguments) <= {"city", "days"}
    found, reason = await streamed(body)
    assert (found, reason) == ([call["function"]], "tool_calls")


async def test_a_named_call_has_the_arguments_alone():
    named = {"type": "function", "function": {"name": "weather"}}
    body = ask(tools=[TIME, WEATHER], tool_choice=named)
    choice = await answer(body)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Bonn", "Rom")
    assert choice["finish_reason"] == "stop"
    assert await streamed(body) == ([call["function"]], "stop")


def parsed(parser="", **more):
    return parse_chat(
        ask(**more), SimTokenizer(), served_name="m", max_model_len=1000, tool_parser=parser
    )


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [WEATHER]}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        ({"tools": []}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [TIME, {"type": "function", "function": {"name": ""}}]}, "tools[1]"),
        ({"tools": "weather"}, "tools"),
        ({"tools": [WEATHER] * 129}, "tools"),
        (
            {"tools": [{"function": {"name": "f", "parameters": 5}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"function": {"name": ""}}], "tool_choice": "required"}, "tools[0]"),
        (
            {"tools": [{"function": {"name": ""}}], "tool_choice": {"function": {"name": ""}}},
            "tools[0]",
        ),
    ],
)
def test_tools_that_make_no_sense_are_named(more, param):
    with pytest.raises(ApiError) as refused:
        parsed(**more)
    assert refused.value.param == param


@pytest.mark.parametrize("choice", ["required", {"function": {"name": "weather"}}])
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"ignore_eos": True}, "ignore_eos"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
def test_what_does_not_go_with_a_required_call_is_refused_by_name(choice, more, param):
    with pytest.raises(ApiError) as refused:
        parsed(tools=[WEATHER], tool_choice=choice, **more)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert "does not go with this tool_choice" in refused.value.message
    assert parsed(tools=[WEATHER], tool_choice=choice, response_format={"type": "text"})


DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
"""pydantic writes it for a Decimal."""
UNSAID = {
    "uniqueItems": ({"type": "array", "items": {"enum": [1]}, "uniqueItems": True}, "uniqueItems"),
    "propertyNames": ({"type": "object", "propertyNames": {"minLength": 1}}, "propertyNames"),
    "Decimal": ({"anyOf": [{"type": "string", "pattern": DECIMAL}]}, "anyOf[0].pattern"),
}


@pytest.mark.parametrize("name", UNSAID)
@pytest.mark.parametrize("choice", ["required", {"function": {"name": "f"}}])
async def test_what_no_grammar_says_is_left_to_the_model_and_refused_by_a_strict_tool(name, choice):
    schema, field = UNSAID[name]
    loose = takes(
        "f", **OBJECT, properties={"x": schema, "y": {"type": "string", "format": "path"}}
    )
    body = ask(tools=[TIME, loose], tool_choice=choice, max_tokens=2)
    assert (await Engine().post(CHAT, body)).status_code == 200
    strict = {**loose, "function": {**loose["function"], "strict": True}}
    answered = await Engine().post(CHAT, {**body, "tools": [TIME, strict]})
    assert answered.status_code == 400
    error = answered.json()["error"]
    assert error["param"] == f"tools[1].function.parameters.properties.x.{field}"
    assert error["message"].startswith(error["param"])


def takes(name: str, **parameters) -> dict:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


async def arguments_of(tools: list[dict], seed: int) -> tuple[str, dict]:
    body = ask(tools=tools, tool_choice="required", parallel_tool_calls=False, seed=seed)
    (call,) = (await answer(body))["message"]["tool_calls"]
    return call["function"]["name"], json.loads(call["function"]["arguments"])


OBJECT = {"type": "object", "required": ["x"], "additionalProperties": False}


@pytest.mark.parametrize("part", ["$defs", "definitions"])
async def test_each_tool_is_held_to_its_own_definitions(part):
    shared = {**OBJECT, "properties": {"x": {"$ref": f"#/{part}/T"}}}
    a, b = (takes(name, **shared, **{part: {"T": {"const": name}}}) for name in ("a", "b"))
    for tools in ([a, b], [b, a], [b, TIME]):
        name, arguments = await arguments_of(tools, 1)
        assert arguments == ({} if name == "time" else {"x": name})


def test_several_calls_may_be_required_unless_they_are_to_be_one():
    required = {"tools": [WEATHER], "tool_choice": "required"}
    some, one = parsed(**required), parsed(**required, parallel_tool_calls=False)
    assert some.form.tools.reads == one.form.tools.reads == "list"
    (of_some, of_one) = (
        json.loads(asked.sampling.grammar)["grammars"][0]["json_schema"] for asked in (some, one)
    )
    assert of_one == of_some | {"maxItems": 1}
    assert "maxItems" not in of_some
    assert parsed(**required, parallel_tool_calls=True).sampling.grammar == some.sampling.grammar


def read(parser, text, cuts=()):
    """Content and (name, arguments) of each call, if the text comes in these parts."""
    content, calls = "", []
    edges = [0, *sorted(cuts), len(text)]
    deltas = [d for a, b in pairwise(edges) for d in parser.push(text[a:b])]
    for delta in [*deltas, *parser.finish()]:
        if delta.name:
            assert delta.call_id
            assert delta.index == len(calls)
            calls.append([delta.name, ""])
        if delta.arguments:
            calls[delta.index][1] += delta.arguments
        content += delta.content
    return content, [(name, arguments) for name, arguments in calls]


ARGUMENTS = '{"city": "Bonn {\\"x\\"}", "list": [1, {"a": "],;"}]}'
CALLS = {
    "hermes": (
        f'So: <tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {}, "name": "time"}\n</tool_call>',
        "So: ",
        [("weather", ARGUMENTS), ("time", "{}")],
    ),
    "llama3_json": (
        f'{{"name": "weather", "parameters": {ARGUMENTS}}}; {{"name": "time", "parameters": {{}}}}',
        "",
        [("weather", ARGUMENTS), ("time", "{}")],
    ),
    "mistral": (
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}, '
        '{"name": "time", "arguments": {}}]',
        "",
        [("weather", ARGUMENTS), ("time", "{}")],
    ),
}


NAMES = ("weather", "time")


def reader(name):
    return PARSERS[name](NAMES)


@pytest.mark.parametrize("name", PARSERS)
@given(cuts=st.lists(st.integers(0, 150), max_size=8))
def test_calls_are_found_however_the_text_is_cut(name, cuts):
    text, content, calls = CALLS[name]
    found = read(reader(name), text, [cut for cut in cuts if cut <= len(text)])
    assert found == (content, calls)


@pytest.mark.parametrize(
    "head", ["{}", "{}[ARGS]", "{}[CALL_ID]xyz123456[ARGS]", " {} [ARGS] ", "{}[CALL_ID]x"]
)
def test_mistrals_newer_forms_are_a_name_and_its_arguments(head):
    text = f"[TOOL_CALLS]{head.format('weather')}{ARGUMENTS}[TOOL_CALLS]{head.format('time')}{{}}"
    for cuts in ((), range(1, len(text))):
        found = read(reader("mistral"), f"So: {text}", cuts)
        assert found == ("So: ", [("weather", ARGUMENTS), ("time", "{}")])


NO_CALLS = [
    "[see](http://x)",
    "[1] See",
    ";; a",
    " \n[",
    '{"name": "Bob", "age": 5}',
    '{"name": "Bob", "arguments": {"age": 5}}',
    '[{"name": "weather"}]',
    '{"name": "weather", "arguments": "Bonn"}; a',
    '{"name": "weather", "arguments": ',
    '<tool_call>{"name": "Bob", "arguments": {}}\n</tool_call>',
    "<tool_call>no</tool_call> <tool_call><tool_",
    "[TOOL_CALLS]whether[ARGS]{}",
    "[TOOL_CALLS]weather[ARGS]",
    "[TOOL_CALLS]weather [CALL_ID",
    "[TOOL_CALLS] [1]",
    "[TOOL_CALLS]weather is {fine}",
]
PIECES = st.sampled_from(
    [
        *NO_CALLS,
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "weather", "time"),
        *("Bob", '{"name": "', '", ', '"arguments": ', '"parameters": {', "}", "[", " ", "\n"),
        *('{"a": [1, "}"]}', ",", ";", '"', "\\", "ab"),
    ]
)


@pytest.mark.parametrize("name", PARSERS)
@given(pieces=st.lists(PIECES, max_size=8), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_a_text_without_a_call_is_the_content_however_it_is_cut(name, pieces, cuts):
    text = "".join(pieces)
    content, calls = whole = read(reader(name), text)
    if not calls:
        assert content == text
    assert read(reader(name), text, [cut for cut in cuts if cut <= len(text)]) == whole
    assert read(reader(name), text, range(1, len(text))) == whole


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("text", NO_CALLS)
def test_what_only_looks_like_a_call_is_content(name, text):
    for cuts in ((), range(1, len(text))):
        assert read(reader(name), text, cuts) == (text, [])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=6,
)
ASKED = st.tuples(
    st.sampled_from(NAMES),
    st.dictionaries(st.text(max_size=4), VALUES, max_size=3).map(json.dumps),
)


def written(name, form, calls):
    """The calls as a model writes them for the parser `name`."""
    key = "parameters" if name == "llama3_json" else "arguments"
    objects = [f'{{"name": "{called}", "{key}": {arguments}}}' for called, arguments in calls]
    if name == "hermes":
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
    if form:
        return (
            ("; " if form == 1 else "\n").join(objects)
            if name == "llama3_json"
            else "".join(
                f"[TOOL_CALLS]{called}{'[ARGS]' if form == 1 else ''}{arguments}"
                for called, arguments in calls
            )
        )
    return ("[TOOL_CALLS]" if name == "mistral" else "") + "[" + ", ".join(objects) + "]"


@pytest.mark.parametrize("name", PARSERS)
@given(
    calls=st.lists(ASKED, min_size=1, max_size=3),
    form=st.integers(0, 2),
    cuts=st.lists(st.integers(0, 300), max_size=8),
)
def test_names_and_arguments_of_calls_survive_any_cut(name, calls, form, cuts):
    text = written(name, form, calls)
    cuts = [cut for cut in cuts if cut <= len(text)]
    assert read(reader(name), text, cuts) == ("", calls)
    assert read(reader(name), text, range(1, len(text))) == ("", calls)
    if name != "llama3_json":  # whose calls stand at the text's beginning
        assert read(reader(name), f"So:\n{text}", cuts) == ("So:\n", calls)
    assert read(reader(name), f"{text}\nThat is all.", cuts) == ("\nThat is all.", calls)


def shaped(text, cuts=(), **options):
    shaper = Shaper(None, reasons=True, **options)
    edges = [0, *sorted(cuts), len(text)]
    deltas = [d for a, b in pairwise(edges) for d in shaper.push(text[a:b])]
    deltas += shaper.finish()
    content, more = shaper.message()
    assert "".join(d.get("content", "") for d in deltas) == content
    assert "".join(d.get("reasoning", "") for d in deltas) == more.get("reasoning", "")
    return more.get("reasoning"), content


@given(cuts=st.lists(st.integers(0, 30), max_size=6))
def test_reasoning_stands_apart_from_the_content(cuts):
    text = "<think>\n1 < 2\n</think>\n\nYes."
    cuts = [cut for cut in cuts if cut <= len(text)]
    assert shaped(text, cuts)[1] == "Yes."
    assert shaped(text, cuts)[0] == "1 < 2\n"
    begun = text.removeprefix("<think>\n")
    assert shaped(begun, [c for c in cuts if c <= len(begun)], thinks=True)[1] == "Yes."


def test_a_text_without_reasoning_is_content_and_one_without_its_end_is_reasoning():
    assert shaped("Yes.") == (None, "Yes.")
    assert shaped("<thin") == (None, "<thin")
    assert shaped("<think>so </thin") == ("so </thin", "")
    assert shaped("Yes.\n\nNo.", [4]) == (None, "Yes.\n\nNo.")
    assert shaped("<think>so</think>\nYes.\n\nNo.", [22]) == ("so", "Yes.\n\nNo.")
    assert thinks_at_its_end("<think>\n")
    assert not thinks_at_its_end("<think>\n\n</think>\n\n")
    assert not thinks_at_its_end("hi")


BONN = '{"city": "Bonn"}'
ENGINES = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {BONN}}}\n</tool_call>',
    "llama3_json": f'{{"name": "weather", "parameters": {BONN}}}',
    "mistral": f"[TOOL_CALLS]weather[ARGS]{BONN}",
}
THOUGHT = "<think>\nRain?\n</think>\n\n"


async def both_ways(says: str, parser: str, **more) -> tuple[dict, str]:
    """Message and finish reason of an engine with both parsers; its stream says the same."""
    body = ask(tools=[WEATHER, TIME], **more)
    options = {"tool_call_parser": parser, "reasoning_parser": "think", "says": says}
    response = await Engine(**options).post(CHAT, body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    stream = await Engine(**options).post(CHAT, {**body, "stream": True})
    text = {"reasoning": "", "content": ""}
    calls: list[dict] = []
    for part in stream.text.split("\n\n"):
        if not part.startswith("data: {"):
            continue
        (told,) = json.loads(part.removeprefix("data: "))["choices"]
        for key in text:
            text[key] += told["delta"].get(key) or ""
        for delta in told["delta"].get("tool_calls", ()):
            if "id" in delta:
                calls.append({"name": delta["function"]["name"], "arguments": ""})
            calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
        reason = told["finish_reason"]
    message = choice["message"]
    assert text["content"] == (message["content"] or "")
    assert text["reasoning"] == message.get("reasoning", "")
    assert calls == [call["function"] for call in message.get("tool_calls", ())]
    assert reason == choice["finish_reason"]
    return message, reason


@pytest.mark.parametrize("name", PARSERS)
async def test_an_engine_with_both_parsers_tells_reasoning_and_calls(name):
    message, reason = await both_ways(THOUGHT + ENGINES[name], name)
    assert message["reasoning"] == "Rain?\n"
    assert message["content"] is None
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "weather", "arguments": BONN}
    ]
    assert reason == "tool_calls"


async def test_an_answer_whose_prompt_ends_with_think_begins_with_its_reasoning():
    asked = [{"role": "user", "content": "<think>"}]  # as the templates of such models end
    said = THOUGHT.removeprefix("<think>\n") + "Yes."
    message, _ = await both_ways(said, "hermes", messages=asked)
    assert (message["reasoning"], message["content"]) == ("Rain?\n", "Yes.")


async def test_a_call_in_the_reasoning_is_no_call():
    said = f"<think>{ENGINES['hermes']}</think>No."
    message, reason = await both_ways(said, "hermes")
    assert (message["reasoning"], message["content"]) == (ENGINES["hermes"], "No.")
    assert reason == "stop"


async def test_one_call_alone_is_told_of_where_the_client_wants_one():
    says = '<tool_call>{"name":"time","arguments":{}}</tool_call>' * 2
    both, _ = await both_ways(says, "hermes")
    assert len(both["tool_calls"]) == 2
    one, reason = await both_ways(says, "hermes", parallel_tool_calls=False)
    assert [call["function"]["name"] for call in one["tool_calls"]] == ["time"]
    assert reason == "tool_calls"


class Thinking(ByteTokenizer):
    """Its chat template begins the reasoning."""

    def chat_text(self, messages, **options):
        return super().chat_text(messages, **options) + "<think>\n"


@pytest.mark.parametrize(
    ("held", "whole"),
    [
        ({"response_format": {"type": "json_object"}}, '{"a": 1}'),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "no"),
        ({"structured_outputs": {"regex": "[ab]+"}}, "ba"),
        ({"tools": [WEATHER], "tool_choice": {"function": {"name": "weather"}}}, BONN),
    ],
)
def test_where_the_template_has_begun_reasoning_the_grammar_begins_after_it(held, whole):
    asked = parse_chat(
        ask(**held), Thinking(256), served_name="m", max_model_len=1000, reasons=True
    )
    assert asked.form.reasons
    grammars = ByteTokenizer(256).grammars(256, [EOS])

    def allows(text: str, then: int) -> bool:
        mask = grammars.mask(text, asked.sampling.grammar, list(text.encode()))
        return bool(mask[then // 8] >> then % 8 & 1)

    assert allows("any {text] </thin", ord("!"))
    assert not allows("any {text]", EOS)
    for gap in ("", "\n\n"):
        assert not allows(f"so.</think>{gap}", ord("!"))
        assert allows(f"so.</think>{gap}{whole}", EOS)
    without = parse_chat(ask(**held), Thinking(256), served_name="m", max_model_len=1000)
    assert not without.form.reasons
    assert not grammars.mask("r", without.sampling.grammar, [])[ord("!") // 8] >> ord("!") % 8 & 1
