"""What clients send reaches templates of each kind as transformers' renderer shows it to them."""

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("transformers")

from transformers.utils.chat_template_utils import render_jinja_template  # noqa: E402

from argosy_engine.errors import ChatTemplateError  # noqa: E402
from argosy_engine.text.chat_template import ChatTemplate  # noqa: E402

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ENDS = "{% if add_generation_prompt %}assistant:{% endif %}"
# Each has what some public templates have.
KNOWN_ROLES = (
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ m.role }}: {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}" + ENDS
)
ANY_ROLE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}" + ENDS
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system stands first') }}{% endif %}"
    "{% if m.role != 'developer' %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}" + ENDS
)
DEVELOPER_FIRST = (
    "{% if messages[0].role in ['developer', 'system'] %}<dev>{{ messages[0].content }}</dev>"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest if m.role in ['user', 'assistant'] %}{{ m.role }}: {{ m.content }}\n"
    "{% endfor %}" + ENDS
)
CALLS_BY_LENGTH = (
    "{% for m in messages %}{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}"
    "{{ m.tool_calls[0].function.arguments | tojson }}"
    "{% else %}{{ m.role }}: {{ m.content }}{% endif %}\n{% endfor %}" + ENDS
)
CALLS_BY_ARGUMENT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}"
    "<{{ call.function.name }}>{% for name, value in call.function.arguments.items() %}"
    "{{ name }}={{ value }};{% endfor %}{% endfor %}\n{% endfor %}" + ENDS
)
CALLS_OF_TEXT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ '<' + call.function.name + '>' + call.function.arguments }}{% endfor %}\n{% endfor %}"
    + ENDS
)
SHORT_IDS = (
    "{% for m in messages %}{% for call in m.tool_calls or [] %}{% if call.id | length != 9 %}"
    "{{ raise_exception('ids have nine characters') }}{% endif %}"
    "{{ call.function.arguments | tojson }} {{ call.id }}{% endfor %}"
    "{{ m.role }}: {{ m.content }} {{ m.tool_call_id }}\n{% endfor %}" + ENDS
)
PARTS = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}\n{% endfor %}" + ENDS
)
SAME_PARTS = PARTS.replace("[{{ part.text }}]", "{{ part.text }}")
REASONING = (
    "{% for m in messages %}{% if m.NAME %}<think>{{ m.NAME }}</think>{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}" + ENDS
)
WHOLE_TOOLS = (
    "{% for tool in tools or [] %}{{ tool.function.name + ': ' + tool.function.description }}"
    "{% for name, value in tool.function.parameters.properties.items() %}{{ name }}{% endfor %}"
    "{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}" + ENDS
)
TOOLS_AS_JSON = "{{ tools | tojson }}" + ENDS


def system(content):
    return {"role": "system", "content": content}


def user(content):
    return {"role": "user", "content": content}


def developer(content):
    return {"role": "developer", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def texts(*contents):
    return [{"type": "text", "text": text} for text in contents]


def calling(arguments, content="", id_="call_1"):
    """A conversation with a call and its result."""
    call = {"id": id_, "type": "function", "function": {"name": "w", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": id_, "content": "sunny"}
    return [user("a"), assistant(content, tool_calls=[call]), result, assistant("b"), user("c")]


def ours(source, messages, **more):
    return ChatTemplate(source, TOKENS).render(messages, **more)


def theirs(source, messages, tools=None, **more):
    more = {"add_generation_prompt": True, **TOKENS, **more}
    (text,), _ = render_jinja_template([messages], tools=tools, chat_template=source, **more)
    return text


# As `message.model_dump()` of the openai package writes a message without calls.
DUMPED = {"refusal": None, "annotations": [], "audio": None, "function_call": None}


@pytest.mark.parametrize("source", [KNOWN_ROLES, CALLS_BY_LENGTH, PARTS])
@pytest.mark.parametrize("more", [{}, {"tool_calls": None}, {"tool_calls": []}])
def test_members_that_are_null_or_empty_do_not_reach_the_template(source, more):
    sent = [user("a"), assistant("b", **DUMPED, **more), user("c")]
    assert ours(source, sent) == theirs(source, [user("a"), assistant("b"), user("c")])


@pytest.mark.parametrize("source", [CALLS_BY_LENGTH, CALLS_BY_ARGUMENT, CALLS_OF_TEXT])
@pytest.mark.parametrize("content", ["", None])
def test_a_call_is_shown_with_its_arguments_in_the_form_that_the_template_reads(source, content):
    text = '{"city": "Rom"}'
    shown = text if source is CALLS_OF_TEXT else {"city": "Rom"}
    assert ours(source, calling(text, content)) == theirs(source, calling(shown))


@pytest.mark.parametrize("source", [CALLS_BY_LENGTH, CALLS_BY_ARGUMENT])
@pytest.mark.parametrize(
    "arguments", ['{"city": "Par', "", None, "[1]", "5", "null", "Rom", "[" * 100_000]
)
def test_a_call_whose_arguments_are_cut_or_no_object_has_none_for_the_template(source, arguments):
    assert ours(source, calling(arguments)) == theirs(source, calling({}))


@pytest.mark.parametrize("half", ["\\ud800", "\\udc00x"])
def test_half_a_surrogate_pair_in_earlier_arguments_is_shown_as_a_question_mark(half):
    sent = calling(f'{{"a": "{half}", "b": "c"}}')
    shown = calling({"a": "?" + half[6:], "b": "c"})
    assert ours(CALLS_BY_ARGUMENT, sent) == theirs(CALLS_BY_ARGUMENT, shown)


def test_ids_of_calls_fit_a_template_that_takes_nine_characters():
    text = ours(SHORT_IDS, calling('{"a": 1}', id_="call_0123456789abcdef"))
    id_ = text.splitlines()[1].partition("assistant: ")[0].split()[-1]
    assert len(id_) == 9
    assert f"tool: sunny {id_}" in text
    assert "A1b2C3d4E" in ours(SHORT_IDS, calling('{"a": 1}', id_="A1b2C3d4E"))


@pytest.mark.parametrize("source", [KNOWN_ROLES, ANY_ROLE, SYSTEM_FIRST, DEVELOPER_FIRST])
@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ([developer("d"), user("a")], [system("d"), user("a")]),
        ([system("s"), developer("d"), user("a")], [system("s\n\nd"), user("a")]),
        (
            [system("s"), user("a"), assistant("b"), developer("d"), user("c")],
            [system("s\n\nd"), user("a"), assistant("b"), user("c")],
        ),
        (
            [user("a"), assistant("b"), developer(texts("d", "e")), user("c")],
            [system("d\ne"), user("a"), assistant("b"), user("c")],
        ),
    ],
)
def test_developers_are_shown_as_the_system_where_the_template_does_not_know_them(
    source, sent, shown
):
    assert ours(source, sent) == theirs(source, shown)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
@pytest.mark.parametrize("read", ["reasoning", "reasoning_content", "thinking"])
def test_earlier_reasoning_is_shown_under_the_name_that_the_template_reads(name, read):
    source = REASONING.replace("NAME", read)
    sent = [user("a"), assistant("b", **{name: "why"}), user("c")]
    shown = [user("a"), assistant("b", **{read: "why"}), user("c")]
    assert "<think>why</think>" in ours(source, sent)
    assert ours(source, sent) == theirs(source, shown)


@pytest.mark.parametrize("source", [KNOWN_ROLES, PARTS])
def test_parts_of_a_text_are_lines_where_the_template_takes_one_text(source):
    sent = [system(texts("Be", "brief")), user(texts("Hello", "there")), assistant(texts("b")),
            {"role": "tool", "content": texts("it is", "sunny")}, user("c")]  # fmt: skip
    shown = [system("Be\nbrief"), user("Hello\nthere"), assistant("b"),
             {"role": "tool", "content": "it is\nsunny"}, user("c")]  # fmt: skip
    assert ours(source, sent) == theirs(source, shown)


BARE = {"type": "function", "function": {"name": "f"}}
NULLS = {
    "type": "function",
    "function": {"name": "f", "description": None, "parameters": None, "strict": None},
}


@pytest.mark.parametrize("tool", [BARE, NULLS])
def test_a_tool_without_description_or_parameters_fits_every_template(tool):
    nothing = {"type": "object", "properties": {}}
    whole = {**BARE, "function": {"name": "f", "description": "", "parameters": nothing}}
    assert ours(WHOLE_TOOLS, [user("a")], tools=[tool]) == theirs(
        WHOLE_TOOLS, [user("a")], tools=[whole]
    )
    assert ours(TOOLS_AS_JSON, [user("a")], tools=[tool]) == theirs(
        TOOLS_AS_JSON, [user("a")], tools=[BARE]
    )


STRIPPING = KNOWN_ROLES.replace("m.content", "m.content | trim")


@pytest.mark.parametrize("source", [KNOWN_ROLES, STRIPPING, SAME_PARTS])
@pytest.mark.parametrize("begun", ["The answer is", "The answer is ", "", texts("The", "answer ")])
def test_a_prompt_can_end_within_the_last_message(source, begun):
    sent = [user("a"), assistant(begun)]
    shown = sent if source is SAME_PARTS or isinstance(begun, str) else [
        user("a"), assistant("The\nanswer ")]  # fmt: skip
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert ours(source, sent, **options) == theirs(source, shown, **options)


@pytest.mark.parametrize(
    ("source", "last", "reason"),
    [
        (KNOWN_ROLES, calling("{}")[1], "the last message has no content"),
        ("{{ messages[0].content }}", assistant("b"), "does not show the last message's content"),
        (
            "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}",
            assistant("why</think>b"),
            "does not show the last message's content",
        ),
    ],
)
def test_a_last_message_that_the_prompt_cannot_end_within_is_refused(source, last, reason):
    with pytest.raises(ChatTemplateError, match=reason):
        ours(source, [user("a"), last], add_generation_prompt=False, continue_final_message=True)


def test_a_template_that_computes_without_end_is_tried_for_a_bounded_time(monkeypatch):
    from argosy_engine.text import sandbox

    monkeypatch.setattr(sandbox, "_MOST_S", 0.1)
    source = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    template = ChatTemplate(source + "{{ f(60) }}", TOKENS)
    with pytest.raises(ChatTemplateError, match="computes for more than"):
        template.render([user("a")])
