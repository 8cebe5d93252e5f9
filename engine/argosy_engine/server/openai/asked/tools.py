"""Which tools a chat may call, and what its text must match so that it does."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from argosy_engine.errors import GrammarError
from argosy_engine.server.openai.asked.fields import flag
from argosy_engine.server.openai.parameters import bad
from argosy_engine.text.grammars import compose

__all__ = ["NO_TOOLS", "Tools", "shown_calls", "tools_of"]

_MOST_TOOLS = 128
_LONGEST = 64 << 10
"""Characters of the parameters' schemas that a text is held to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The default: none."""

    shown: tuple[dict[str, Any], ...] = ()
    """As the client wrote them, for the chat template."""

    reads: str = ""
    """How calls are found in the text: the name of a parser; `list` of a text that is nothing else,
    `named` of the arguments of one function; empty: they are not."""

    name: str = ""
    """The function, with `named`."""

    grammar: str = ""
    """What the text must match, with `list` and `named`."""

    @property
    def names(self) -> frozenset[str]:
        """The functions that may be called."""
        return frozenset(tool["function"]["name"] for tool in self.shown)


NO_TOOLS = Tools()


def tools_of(body: Mapping[str, Any], parser: str) -> Tools:
    """`parser` is the engine's, empty if it has none. ApiError 400."""
    given, choice = body.get("tools") or [], body.get("tool_choice")
    if not given:
        if choice not in (None, "none", "auto"):
            raise bad("tool_choice", "names tools, and there are none in tools")
        return NO_TOOLS
    shown = _checked(given)
    if choice == "none":
        return Tools(shown=shown)
    if choice in (None, "auto"):
        if not parser:
            raise bad(
                "tool_choice",
                "this engine reads no calls from free text: start it with --tool-call-parser, or "
                'write "none", "required" or a function\'s name',
            )
        return Tools(shown=shown, reads=parser)
    functions = {tool["function"]["name"]: tool["function"] for tool in shown}
    if choice == "required":
        one_only = not flag(body, "parallel_tool_calls", default=True)
        return Tools(shown=shown, reads="list", grammar=_list_of(functions, one_only=one_only))
    name = _named(choice)
    if name not in functions:
        raise bad("tool_choice", f"there is no function {name!r:.80} in tools")
    grammar = _grammar(_parameters(functions[name]))
    return Tools(shown=shown, reads="named", name=name, grammar=grammar)


def shown_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages for the chat template: arguments of earlier calls as objects, as templates want."""
    return [
        {**message, "tool_calls": [_opened(call) for call in message["tool_calls"]]}
        if isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
    ]


def _opened(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _checked(given: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(given, list) or len(given) > _MOST_TOOLS:
        raise bad("tools", f"must be a list of at most {_MOST_TOOLS}")
    for tool in given:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not _is_name(function.get("name")):
            raise bad("tools", 'each must be {"type": "function", "function": {"name": …}}')
        if not isinstance(function.get("parameters") or {}, dict):
            raise bad("tools", f"the parameters of {function['name']!r:.80} must be a schema")
    return tuple(given)


def _is_name(given: Any) -> bool:
    return isinstance(given, str) and given != ""


def _named(choice: Any) -> str:
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad("tool_choice", 'must be "none", "auto", "required" or a function')
    return str(function["name"])


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    return function.get("parameters") or {"type": "object", "properties": {}}


def _list_of(functions: Mapping[str, Mapping[str, Any]], *, one_only: bool) -> str:
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": _parameters(function)},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, function in functions.items()
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    for part in ("$defs", "definitions"):  # what "#/$defs/…" means stands at the root
        shared = [_parameters(function).get(part) for function in functions.values()]
        merged = {
            name: each for one in shared if isinstance(one, dict) for name, each in one.items()
        }
        if merged:
            schema[part] = merged
    if one_only:
        schema["maxItems"] = 1
    return _grammar(schema)


def _grammar(schema: dict[str, Any]) -> str:
    try:
        grammar = compose("json", schema)
    except GrammarError as error:
        raise bad("tools", str(error)) from error
    if len(grammar) > _LONGEST:
        raise bad("tools", f"their schemas have {len(grammar)} characters, of {_LONGEST} at most")
    return grammar
