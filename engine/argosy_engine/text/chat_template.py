"""A model's chat template, rendered in a sandbox with bounds: the folder is not trusted.

The names, filters and tags are those of Hugging Face's renderer, for which templates are written.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import safe_range

from argosy_engine.errors import ChatTemplateError
from argosy_engine.text.messages import Message, find_reads, prepare, prepare_tools
from argosy_engine.text.sandbox import MOST_CHARACTERS, Sandbox, over, refuse_late

_LONGEST_TIME = 1000
_MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # as transformers has it
_MOST_TURNS = 1_000_000  # of all loops over `range` in one rendering: some tenths of a second


class ChatTemplate:
    """Compiled once; `render` gives the prompt text. Safe to share by threads."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        environment = Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _strftime_now
        environment.bound_filter("tojson", _to_json)
        self._template = environment.from_string(source)
        self._tokens = tokens
        literals = environment.parse(source).find_all(nodes.Const)
        with over():
            self._reads = find_reads(
                self._try, names_developer=any(one.value == "developer" for one in literals)
            )

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        arguments: Mapping[str, Any] | None = None,
        tools: Sequence[Message] = (),
    ) -> str:
        """The prompt of `messages`; `arguments` are the client's own for the template.

        With `continue_final_message` it ends within the last message. ChatTemplateError when the
        template refuses them, fails, or writes without end.
        """
        try:
            shown = prepare(messages, self._reads)
            last = _mark_end(shown) if continue_final_message else None
            with over():
                text = self._write(
                    shown,
                    prepare_tools(tools, self._reads),
                    {**(arguments or {}), "add_generation_prompt": add_generation_prompt},
                )
        except Exception as error:  # a template may raise anything
            raise ChatTemplateError(
                f"the messages do not fit the chat template: {_reason(error)}"
            ) from error
        return text if last is None else _cut_at_mark(text, last)

    def _try(self, messages: Sequence[Message], tools: Sequence[Message]) -> str:
        try:
            refuse_late()  # all that is tried has one rendering's time
            return self._write(messages, tools, {"add_generation_prompt": True})
        except Exception:
            return ""

    def _write(
        self, messages: Sequence[Message], tools: Sequence[Message], names: Mapping[str, Any]
    ) -> str:
        names = {
            **names,
            **self._tokens,
            "messages": list(messages),
            "tools": list(tools) or None,  # and not undefined: templates ask `is not none`
            "documents": None,
            "range": _bounded_range(),
        }
        parts: list[str] = []
        size = 0
        for part in self._template.generate(names):
            parts.append(part)
            size += len(part)
            if size > MOST_CHARACTERS:
                raise SecurityError(f"it writes more than {MOST_CHARACTERS} characters")
        return "".join(parts)


def _mark_end(messages: list[Message]) -> str:
    """Mark where the last message's content ends; the content."""
    last = messages[-1]
    content = last["content"]
    if content is None or (content == "" and last.get("tool_calls")):
        raise jinja2.TemplateError("continue_final_message: the last message has no content")
    *before, text = [part["text"] for part in content] if isinstance(content, list) else [content]
    marked = text + _MARK
    if isinstance(content, list):
        marked = [{"type": "text", "text": each} for each in (*before, marked)]
    messages[-1] = {**last, "content": marked}
    return str(text)


def _cut_at_mark(text: str, content: str) -> str:
    at = text.rfind(_MARK.strip())
    if at < 0 or content.strip() not in text:
        raise ChatTemplateError(
            "continue_final_message: the chat template does not show the last message's content"
        )
    # A template that strips the content takes the mark's end away with it.
    stripped = not text.startswith(_MARK, at)
    return text[:at].rstrip() if stripped else text[:at]


class _Generation(Extension):
    """`{% generation %}` marks what a model said, which only training asks for."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """The body unchanged; variables set in it are local, as in a call block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _bounded_range() -> Callable[..., range]:
    """`range` for one rendering: nested loops over it come to an end, too."""
    left = _MOST_TURNS

    def bounded(*limits: int) -> range:
        nonlocal left
        numbers = safe_range(*limits)
        left -= len(numbers)
        if left < 0:
            raise SecurityError(f"it loops more than {_MOST_TURNS} times")
        return numbers

    return bounded


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    if len(form) > _LONGEST_TIME:
        raise SecurityError(f"a form of time has at most {_LONGEST_TIME} characters")
    return datetime.now(UTC).astimezone().strftime(form)  # local time, as Hugging Face has it


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes for HTML, which is not what a prompt wants."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _reason(error: Exception) -> str:
    return (
        str(error)
        if isinstance(error, jinja2.TemplateError)
        else f"{type(error).__name__}: {error}"
    )
