"""Chat templates give the text that Hugging Face's renderer gives, and cannot do harm."""

import resource

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("jinja2")

from jinja2.exceptions import SecurityError  # noqa: E402

from argosy_engine.errors import ChatTemplateError  # noqa: E402
from argosy_engine.text import sandbox  # noqa: E402
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


ENDLESS = {
    "texts": "{% set s = 'a' * 1000000 %}{% for c in s %}{% for d in s %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "searches": "{% set s = 'ab' * 9000000 %}{% for i in range(99999) %}"
    "{{ s.count('b') }}{% endfor %}",
}
DOUBLED = "{%% set ns = namespace(s='a' * 1000) %%}{%% for i in range(40) %%}%s{%% endfor %%}"
HUGE = {
    "concatenation": DOUBLED % "{% set ns.s = ns.s ~ ns.s %}",
    "sum": DOUBLED % "{% set ns.s = ns.s + ns.s %}",
    "sum of lists": DOUBLED.replace("'a'", "[1]") % "{% set ns.s = ns.s + ns.s %}",
    "block": DOUBLED % "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}",
    "fixed text": "{% set x %}{% for i in range(99999) %}"
    + "a" * 9999
    + "{% endfor %}{% endset %}",
    "lists in lists": "{% set ns = namespace(s=['a' * 99]) %}{% for i in range(40) %}"
    "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
    "numbers": "{% set ns = namespace(x=10 ** 1000) %}{% for i in range(40) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "ljust": "{{ 'a'.ljust(10 ** 10) }}",
    "zfill": "{{ '1'.zfill(10 ** 10) }}",
    "expandtabs": "{{ ('\\t' * 100000).expandtabs(100000) }}",
    "to_bytes": "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "center": "{{ 'a' | center(10 ** 10) }}",
    "indent": "{{ ('a\\n' * 100000) | indent(100000) }}",
    "wordwrap": "{{ ('a ' * 100000) | wordwrap(1, true, 'x' * 10000) }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent of a width": "{{ '%*d' % (10 ** 10, 1) }}",
    "format": "{{ '{:>10000000000}'.format('a') }}",
    "format of a width": "{{ '{:>{}}'.format('a', 10 ** 10) }}",
    "format filter": "{{ '%10000000000s' | format('a') }}",
    "replace": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "replace filter": "{{ ('a' * 100000) | replace('', 'b' * 100000) }}",
    "join": "{{ ('b' * 100000).join('a' * 100000) }}",
    "join filter": "{{ ('a' * 100000) | join('b' * 100000) }}",
    "joined references": "{{ (['a' * 100000] * 100000) | join }}",
    "map": "{{ ('a' * 100000) | map('center', 100000) | list | length }}",
    "slice": "{{ [1] | slice(10 ** 9) | list | length }}",
    "sum of references": "{{ ([[1] * 100000] * 10000) | sum(start=[]) }}",
    "tojson": "{{ [1, 2] | tojson(indent=10 ** 10) }}",
    "list": "{{ ('a' * 30000000) | list | length }}",
    "translate": "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
    "date": "{{ strftime_now('%Y' * 1000000) }}",
}


def render(source, messages=MESSAGES, **more):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "_MOST_S", 0.05)  # for what the template reads, which is no matter
        template = ChatTemplate(source, TOKENS)
    return template.render(messages, **more)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_hugging_face_renders_it(name):
    from transformers.utils.chat_template_utils import render_jinja_template

    source = TEMPLATES[name]
    (theirs,), _ = render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=True, **TOKENS
    )
    assert render(source) == theirs


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
def test_a_template_that_loops_without_end_is_ended(source, monkeypatch):
    monkeypatch.setattr(sandbox, "_MOST_S", 600.0)  # turns are counted, however slow they are
    with pytest.raises(ChatTemplateError, match=r"loops more than|[Rr]ange too big"):
        render(source)
    assert render("{% for i in range(3) %}{{ i }}{% endfor %}") == "012"


@pytest.mark.parametrize("name", ENDLESS)
def test_loops_over_anything_and_calls_of_calls_end(name, monkeypatch):
    monkeypatch.setattr(sandbox, "_MOST_S", 0.2)
    with pytest.raises(ChatTemplateError, match=r"computes for more than 0\.2 s"):
        render(ENDLESS[name])
    assert render("{{ messages[0].role }}") == "system"  # with a budget of its own


@pytest.mark.parametrize("name", HUGE)
def test_what_makes_much_of_little_is_refused_before_it_is_made(name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ChatTemplateError, match=r"too l|makes more|above|most|not allowed|only"):
        render(HUGE[name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


NESTED = "{%% set ns = namespace(a=[1], b=[1]) %%}%s{%% for i in range(60) %%}%s{%% endfor %%}"
SHARED = {
    "lists": NESTED % ("", "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}")
    + "{{ ns.a == ns.b }}",
    "objects": NESTED % ("", "{% set ns.a = {'x': ns.a, 'y': ns.a} %}") + "{{ ns.a in [ns.b] }}",
    "tuples": NESTED % ("", "{% set ns.a = (ns.a, ns.a) %}") + "{{ {ns.a: 1} | length }}",
    "calls of dict": NESTED % ("", "{% set ns.a = dict(x=ns.a, y=ns.a) %}") + "{{ [ns.a] | sort }}",
    "cyclers": NESTED % ("", "{% set ns.a = cycler(ns.a, ns.a).items %}") + "{{ ns.a | string }}",
    "arguments": NESTED
    % (
        "{% macro f() %}{% set ns.a = varargs %}{% endmacro %}",
        "{% set x %}{{ f(ns.a, ns.a) }}{% endset %}",
    ),
    "named arguments": NESTED
    % (
        "{% macro f() %}{% set ns.a = kwargs %}{% endmacro %}",
        "{% set x %}{{ f(x=ns.a, y=ns.a) }}{% endset %}",
    ),
    "batches": NESTED % ("", "{% set ns.a = (ns.a + ns.a) | batch(9 ** 5) | list %}"),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_value_that_shares_its_parts_is_refused_before_it_is_compared_or_hashed(
    name, monkeypatch
):
    monkeypatch.setattr(sandbox, "_MOST_S", 0.2)
    with pytest.raises(ChatTemplateError, match=r"too long|makes more|computes for more"):
        render(SHARED[name])


# A text of as many characters as are allowed, and one that is longer by the least.
AT_THE_BOUND = {
    "sum of texts": ("'a' * 60 + 'b' * 40", "'a' * 60 + 'b' * 41"),
    "sum of lists": ("[1] * 8 + [1] * 4", "[1] * 8 + [1] * 5"),
    "product of a text": ("'ab' * 50", "'ab' * 51"),
    "product from the right": ("50 * 'ab'", "51 * 'ab'"),
    "product of a list": ("[1] * 12", "[1] * 13"),
    "a width in the form": ("'%68d' % 1", "'%100d' % 1"),
    "widths that are given": ("'%*d' % (97, 1)", "'%*d' % (98, 1)"),
    "one number that is given": ("'%c' % 98", "'%c' % 99"),
}


@pytest.mark.parametrize("name", AT_THE_BOUND)
def test_what_is_made_may_be_as_long_as_the_bound_and_no_longer(name, monkeypatch):
    monkeypatch.setattr(sandbox, "MOST_CHARACTERS", 100)
    allowed, refused = AT_THE_BOUND[name]
    assert render(f"{{% set made = {allowed} %}}{{{{ made | length }}}}")
    with pytest.raises(ChatTemplateError, match="is too long"):
        render(f"{{% set made = {refused} %}}{{{{ made | length }}}}")


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [("2 ** 2048", "2 ** 2049"), ("ones * ones", "ones * ones * 2")],
)
def test_a_whole_number_may_have_so_many_bits_and_no_more(allowed, refused, monkeypatch):
    monkeypatch.setattr(sandbox, "_MOST_BITS", 4096)
    arguments = {"ones": (1 << 2048) - 1}
    assert render(f"{{{{ ({allowed}) > 0 }}}}", arguments=arguments) == "True"
    with pytest.raises(ChatTemplateError, match="of numbers is too large"):
        render(f"{{{{ ({refused}) > 0 }}}}", arguments=arguments)


def test_a_clients_tools_cannot_be_indented_without_end():
    """Llama 3.1's template indents them; each element has a line, as far in as it is nested."""
    nested = [0] * 100_000
    for _ in range(300):
        nested = [nested]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"a": nested}}}]
    with pytest.raises(ChatTemplateError, match="an indented object is too long"):
        render("{% for t in tools %}{{ t | tojson(indent=4) }}{% endfor %}", tools=tools)


def test_templates_may_do_what_people_do_with_texts_and_lists():
    source = (
        "{% set ns = namespace(text='', seen=[]) %}"
        "{% for m in messages[::-1] if m.role != 'system' %}"
        "{% set ns.seen = ns.seen + [m.role ~ loop.index ~ '/' ~ loop.length] %}{% endfor %}"
        "{% set block %}{{ ns.seen | join(',') }}{% endset %}"
        "{{ block.replace('user', 'u').split(',') | list | length }} {{ block | upper }} "
        "{{ '%s of %d' | format('a', 3) }} {{ '{:>3}'.format('x') }} {{ 'ab'.center(4) }}| "
        "{{ [[1, 2], [3]] | map('sum') | list }} {{ [1, 2] | sum(start=3) }} {{ 7 % 4 }}"
    )
    assert render(source) == ("3 USER1/3,ASSISTANT2/3,USER3/3 a of 3   x  ab | [3, 3] 6 3")


def test_a_rendering_may_make_as_many_characters_as_are_said_and_no_more():
    with sandbox.over():
        sandbox._spend(sandbox._MOST_MADE)
        with pytest.raises(SecurityError, match=f"more than {sandbox._MOST_MADE} characters"):
            sandbox._spend(1)
