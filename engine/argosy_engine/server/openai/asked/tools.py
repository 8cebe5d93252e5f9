"""Which tools a chat may call, and what its text must match so that it does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_engine.server.openai.asked.fields import flag
from argosy_engine.server.openai.asked.structure import FREE, Structure, composed, structure_of
from argosy_engine.server.openai.parameters import bad

__all__ = ["NO_TOOLS", "Tools", "shown_tools", "tools_of"]

_MOST_TOOLS = 128
_MAPS = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
"""Members of a schema whose members have names of the client's and are schemas."""
_VALUES = {"const", "enum", "default", "examples"}
"""Members that hold any JSON, where "$ref" is a word like others."""


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

    structure: Structure = FREE
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
    _refuse_beside(body)
    functions = {tool["function"]["name"]: tool["function"] for tool in shown}
    if choice == "required":
        one_only = not flag(body, "parallel_tool_calls", default=True)
        grammar = _list_of(functions, one_only=one_only)
        return Tools(shown=shown, reads="list", structure=Structure(grammar, "tools"))
    name = _named(choice)
    if name not in functions:
        raise bad("tool_choice", f"there is no function {name!r:.80} in tools")
    field = f"tools[{list(functions).index(name)}].function.parameters"
    structure = Structure(composed("json", _parameters(functions[name]), field), field)
    return Tools(shown=shown, reads="named", name=name, structure=structure)


def shown_tools(body: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """For the chat template. ApiError 400."""
    given = body.get("tools") or []
    return _checked(given) if given else ()


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


def _refuse_beside(body: Mapping[str, Any]) -> None:
    """What does not go with a text that is calls and nothing else."""
    for name in ("ignore_eos", "min_tokens"):
        if body.get(name):
            raise bad(name, "does not go with this tool_choice, which says where the answer ends")
    if structure_of(body).grammar:
        name = "response_format" if body.get("response_format") else "structured_outputs"
        raise bad(name, "does not go with this tool_choice: the answer is a call of a tool")


def _list_of(functions: Mapping[str, Mapping[str, Any]], *, one_only: bool) -> str:
    """Each tool's parameters are a definition: names in them are the tool's own."""
    try:
        own = {
            str(index): _moved(_parameters(function), f"#/$defs/{index}")
            for index, function in enumerate(functions.values())
        }
    except RecursionError as error:
        raise bad("tools", "the parameters are nested too deep") from error
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": {"$ref": f"#/$defs/{index}"}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for index, name in enumerate(functions)
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if one_only:
        schema["maxItems"] = 1
    return composed("json", {**schema, "$defs": own}, "tools")


def _moved(parameters: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A whole schema as the part of another one that stands at `place`."""
    # With an address of its own, "#" would mean the part. The dialect is said at the root only.
    part = {name: each for name, each in parameters.items() if name not in ("$id", "$schema")}
    moved: dict[str, Any] = _with_refs(part, place)
    return moved


def _with_refs(schema: Any, place: str) -> Any:
    if isinstance(schema, list):
        return [_with_refs(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, dict):
            found[name] = {key: _with_refs(each, place) for key, each in value.items()}
        elif name == "$ref" and isinstance(value, str) and (value == "#" or value[:2] == "#/"):
            found[name] = place + value[1:]
        else:
            found[name] = value if name in _VALUES else _with_refs(value, place)
    return found
