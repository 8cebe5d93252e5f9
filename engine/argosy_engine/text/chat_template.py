"""A model's chat template, rendered in jinja2's immutable sandbox: the folder is not trusted."""

import json
from collections.abc import Sequence
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from argosy_engine.core.text import ChatTemplateError

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """Compiled once; `render` gives the prompt text with the generation prompt at its end."""

    def __init__(self, source: str, tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise
        environment.filters["tojson"] = _to_json
        self._template = environment.from_string(source)
        self._tokens = tokens

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """ChatTemplateError when the template refuses the messages."""
        plain = [_with_plain_text(message) for message in messages]
        try:
            return self._template.render(messages=plain, add_generation_prompt=True, **self._tokens)
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError) as error:
            raise ChatTemplateError(
                f"the messages do not fit the chat template: {error}"
            ) from error


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _with_plain_text(message: dict[str, Any]) -> dict[str, Any]:
    """`content` as a list of text parts becomes one string: templates of text models want that."""
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": "" if content is None else content}
    if any(part.get("type", "text") != "text" for part in content):
        raise ChatTemplateError("this model reads text only: content parts must be of type text")
    return {**message, "content": "".join(str(part.get("text", "")) for part in content)}
