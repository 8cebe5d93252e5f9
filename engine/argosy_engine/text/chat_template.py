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
from argosy_engine.text.sandbox import MOST_CHARACTERS, Sandbox, over

__all__ = ["ChatTemplate"]

_LONGEST_TIME = 1000
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

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> str:
        """The prompt of `messages`; `arguments` are the client's own for the template.

        ChatTemplateError when the template refuses them, fails, or writes without end.
        """
        names = {
            **(arguments or {}),
            **self._tokens,
            "messages": [_with_plain_text(message) for message in messages],
            "tools": list(tools) or None,  # and not undefined: templates ask `is not none`
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "range": _bounded_range(),
        }
        parts: list[str] = []
        size = 0
        try:
            with over():
                for part in self._template.generate(names):
                    parts.append(part)
                    size += len(part)
                    if size > MOST_CHARACTERS:
                        raise SecurityError(f"it writes more than {MOST_CHARACTERS} characters")
        except Exception as error:  # a template may raise anything
            raise ChatTemplateError(
                f"the messages do not fit the chat template: {_reason(error)}"
            ) from error
        return "".join(parts)


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


def _with_plain_text(message: dict[str, Any]) -> dict[str, Any]:
    """`content` as a list of text parts becomes one string: templates of text models want that."""
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": "" if content is None else content}
    if any(part.get("type", "text") != "text" for part in content):
        raise ChatTemplateError("this model reads text only: content parts must be of type text")
    return {**message, "content": "".join(str(part.get("text", "")) for part in content)}
