"""Which tools a chat may call, and what its text must match so that it does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_engine.server.openai.parameters import bad, flag
from argosy_engine.server.openai.structure import (
    FREE,
    PARTS,
    VALUES,
    Structure,
    adapt,
    compose_grammar,
    structure_of,
)

_MOST_TOOLS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The default: none."""

    shown: tuple[dict[str, Any], ...] = ()
    """As the client wrote them, for the chat template."""

    names: frozenset[str] = frozenset()
    """The functions that may be called."""

    reads: str = ""
    """How calls are found in the text: the name of a parser; `list` of a text that is nothing else,
    `named` of the arguments of one function; empty: they are not."""

    name: str = ""
    """The function, with `named`."""

    structure: Structure = FREE
    """What the text must match, with `list` and `named`."""

    parallel: bool = True
    """An answer may have several calls."""


NO_TOOLS = Tools()
_Functions = Mapping[str, tuple[int, Mapping[str, Any]]]
"""By name: where it stands in `tools`, and what it is."""


def tools_of(body: Mapping[str, Any], parser: str) -> Tools:
    """`parser` is the engine's, empty if it has none. ApiError 400."""
    given, choice = body.get("tools"), body.get("tool_choice")
    if given is None:
        if choice not in (None, "none", "auto"):
            raise bad("tool_choice", "names tools, and there are none in tools")
        return NO_TOOLS
    shown = _check_tools(given)
    if choice == "none":
        return Tools(shown=shown)
    tools = {tool["function"]["name"]: (at, tool["function"]) for at, tool in enumerate(shown)}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice, allowed = _read_allowed_tools(choice, tools)
        tools = {name: tools[name] for name in allowed}
    parallel = flag(body, "parallel_tool_calls", default=True)
    if choice in (None, "auto"):
        if not parser:
            raise bad(
                "tool_choice",
                "this engine reads no calls from free text: start it with --tool-call-parser, or "
                'write "none", "required" or a function\'s name',
            )
        return Tools(shown=shown, names=frozenset(tools), reads=parser, parallel=parallel)
    _refuse_beside(body)
    if choice == "required":
        structure = Structure(_list_of(tools, one_only=not parallel), "tools")
        return Tools(shown=shown, names=frozenset(tools), reads="list", structure=structure)
    name = _read_name(choice)
    if name not in tools:
        raise bad("tool_choice.function.name", f"there is no function {name!r:.80} in tools")
    schema = _parameters(*tools[name])
    field = f"tools[{tools[name][0]}].function.parameters"
    structure = Structure(compose_grammar("json", schema, field), field)
    return Tools(
        shown=shown, names=frozenset({name}), reads="named", name=name, structure=structure
    )


def _read_allowed_tools(choice: Mapping[str, Any], tools: _Functions) -> tuple[str, list[str]]:
    """The mode of OpenAI's `allowed_tools`, and the functions that may be called."""
    field = "tool_choice.allowed_tools"
    given = choice.get("allowed_tools")
    if not isinstance(given, dict) or given.get("mode") not in ("auto", "required"):
        raise bad(field, 'must be {"mode": "auto" or "required", "tools": […]}')
    listed = given.get("tools")
    if not isinstance(listed, list) or not listed:
        raise bad(f"{field}.tools", "must be a list of at least one function")
    names = []
    for at, tool in enumerate(listed):
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or name not in tools:
            place = f"{field}.tools[{at}].function.name"
            raise bad(place, f"there is no function {name!r:.80} in tools")
        names.append(name)
    return given["mode"], names


def shown_tools(body: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """For the chat template. ApiError 400."""
    given = body.get("tools")
    return () if given is None else _check_tools(given)


def _check_tools(given: Any) -> tuple[dict[str, Any], ...]:
    if given == []:
        raise bad("tools", "is empty: write at least one, or leave it out")
    if not isinstance(given, list) or len(given) > _MOST_TOOLS:
        raise bad("tools", f"must be a list of at most {_MOST_TOOLS}")
    for at, tool in enumerate(given):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not _is_name(function.get("name")):
            raise bad(f"tools[{at}]", 'must be {"type": "function", "function": {"name": …}}')
        if not isinstance(function.get("parameters") or {}, dict):
            raise bad(f"tools[{at}].function.parameters", "must be a schema")
    return tuple(given)


def _is_name(given: Any) -> bool:
    return isinstance(given, str) and given != ""


def _read_name(choice: Any) -> str:
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad("tool_choice", 'must be "none", "auto", "required", a function or allowed_tools')
    return str(function["name"])


def _parameters(at: int, function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    field = f"tools[{at}].function.parameters"
    found: dict[str, Any] = adapt(schema, field, strict=function.get("strict") is True)
    return found


def _refuse_beside(body: Mapping[str, Any]) -> None:
    """What does not go with a text that is calls and nothing else."""
    if body.get("ignore_eos"):
        raise bad(
            "ignore_eos", "does not go with this tool_choice, which says where the answer ends"
        )
    if structure_of(body).grammar:
        name = "response_format" if body.get("response_format") else "structured_outputs"
        raise bad(name, "does not go with this tool_choice: the answer is a call of a tool")


def _list_of(tools: _Functions, *, one_only: bool) -> str:
    """Each tool's parameters are a definition: names in them are the tool's own."""
    own = {
        str(at): _move_refs(_parameters(at, function), f"#/$defs/{at}")
        for at, function in tools.values()
    }
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": {"$ref": f"#/$defs/{at}"}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, (at, _) in tools.items()
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if one_only:
        schema["maxItems"] = 1
    return compose_grammar("json", {**schema, "$defs": own}, "tools")


def _move_refs(parameters: Mapping[str, Any], place: str) -> dict[str, Any]:
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
        if name in PARTS and isinstance(value, dict):
            found[name] = {key: _with_refs(each, place) for key, each in value.items()}
        elif name == "$ref" and isinstance(value, str) and (value == "#" or value[:2] == "#/"):
            found[name] = place + value[1:]
        else:
            found[name] = value if name in VALUES else _with_refs(value, place)
    return found
