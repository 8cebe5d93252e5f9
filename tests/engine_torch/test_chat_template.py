"""Chat templates give the text that Hugging Face's renderer gives, and cannot do harm."""

import re

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("jinja2")

from argosy_engine.errors import ChatTemplateError  # noqa: E402
from argosy_engine.text.chat_template import ChatTemplate  # noqa: E402

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Größe? ☃"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "And now?"},
]
TEMPLATES = {
    "generation": "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}\n{% endfor %}",
    "generation hides what it sets": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}"
    "{% endgeneration %}{{ x }}",
    "tojson": "{{ messages[1] | tojson }} {{ messages[1] | tojson(ensure_ascii=True) }}",
    "tojson in lines": "{{ messages | tojson(indent=2, sort_keys=True) }}"
    "{{ messages | tojson(separators=(',', ':')) }}",
    "tools are none": "{% if tools is defined and tools is none %}no tools{% endif %}"
    "{% if tools is not none %}tools{% endif %}{% if documents is not none %}documents{% endif %}",
    "tools by length": "{% if not tools %}none{% else %}{{ tools | length }}{% endif %}",
    "generation prompt": "{{ bos_token }}{% if add_generation_prompt %}assistant:{% endif %}",
    "loop control": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
    "{{ m.content }}{% break %}{% endfor %}",
    "white space": "  {% if true %}\n    a\n  {% endif %}\n b\n",
}


def render(source, messages=MESSAGES, **more):
    return ChatTemplate(source, TOKENS).render(messages, **more)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_hugging_face_renders_it(name):
    from transformers.utils.chat_template_utils import render_jinja_template

    source = TEMPLATES[name]
    (theirs,), _ = render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=True, **TOKENS
    )
    assert render(source) == theirs


def test_todays_date_can_be_asked_for():
    assert re.fullmatch(r"\d\d [A-Z][a-z]{2} 20\d\d", render("{{ strftime_now('%d %b %Y') }}"))


def test_a_clients_arguments_reach_the_template():
    source = "{% if enable_thinking is defined and not enable_thinking %}quick{% endif %}"
    assert render(source) == ""
    assert render(source, arguments={"enable_thinking": False}) == "quick"


def test_the_generation_prompt_can_be_left_out():
    source = TEMPLATES["generation prompt"]
    assert render(source, add_generation_prompt=False) == "<s>"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 1 // (messages | length - 4) }}", "ZeroDivisionError"),
        ("{{ messages[0].content.index('?') }}", "substring not found"),
        ("{{ messages[9].role }}", "no element 9"),
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "RecursionError"),
        ("{{ none + 1 }}", "unsupported operand"),
    ],
)
def test_whatever_a_template_raises_is_the_clients_error_and_says_why(source, reason):
    with pytest.raises(ChatTemplateError, match="do not fit the chat template") as failure:
        render(source)
    assert reason in str(failure.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}{{ ().__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ 'a' * 10**10 }}",
        "{{ 10**9 * [1] }}",
        "{{ 10 ** (10 ** 8) }}",
        "{% for i in range(10**6) %}{% endfor %}",
        "{% for i in range(99999) %}{{ messages[0].content * 1000 }}{% endfor %}",
    ],
)
def test_a_template_can_neither_leave_its_sandbox_nor_fill_the_memory(source):
    with pytest.raises(ChatTemplateError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{% for i in range(2000000) %}{% endfor %}",
    ],
)
def test_a_template_that_loops_without_end_is_ended(source):
    with pytest.raises(ChatTemplateError, match=r"loops more than|[Rr]ange too big"):
        render(source)
    assert render("{% for i in range(3) %}{{ i }}{% endfor %}") == "012"


def test_tools_are_shown_as_the_client_wrote_them():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}]
    assert render("{{ tools | tojson }}", tools=tools).index('"b"') > 0
    assert render("{{ tools[0].function.name }}", tools=tools) == "f"
    assert render("{{ tools is none }}") == "True"
