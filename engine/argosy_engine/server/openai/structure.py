"""What an answer must match, from `response_format` or vLLM's `structured_outputs`.

A grammar is compiled before its request is submitted: no step waits for one (`Compiler`). As in
vLLM, an object of a JSON schema that names its properties has no others unless its schema says so:
small models would go on with names of their own. What a grammar cannot say is left to the model, or
refused with its place where the client asks for strictness.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive

from argosy_engine.core.tokenizer import Grammars
from argosy_engine.errors import GrammarError
from argosy_engine.server.openai.errors import overloaded
from argosy_engine.server.openai.parameters import bad
from argosy_engine.server.openai.text_threads import while_connected
from argosy_engine.text.grammar_process import GrammarProcess
from argosy_engine.text.grammars import after_thought, compose

PARTS = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
"""Members of a schema whose members have names of the client's and are schemas."""
VALUES = {"const", "enum", "default", "examples"}
"""Members that hold any JSON, where "$ref" is a word like others."""
_UNSAID = {
    "contains", "minContains", "maxContains", "uniqueItems", "propertyNames", "not", "if", "then",
    "else", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems",
    "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
}  # fmt: skip
_MIXED = ("$ref", "allOf", "anyOf", "oneOf", "if")
"""Beside properties they may add others."""
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")


def adapt(schema: Any, field: str, *, strict: bool = False) -> Any:
    """Return the schema that the grammar is made of.

    Raises ApiError 400 if the schema is nested too deep or if, with `strict`, it has a keyword that
    no grammar can hold an answer to.
    """
    try:
        return _Adapter(schema, strict=strict).adapt(schema, field)
    except RecursionError as error:
        raise bad(field, "is nested too deep") from error


class _Adapter:
    def __init__(self, whole: Any, *, strict: bool) -> None:
        self._whole = whole
        self._strict = strict
        self._closes = not _mixes(whole)

    def adapt(self, schema: Any, field: str) -> Any:
        if isinstance(schema, list):
            return [self.adapt(each, f"{field}[{at}]") for at, each in enumerate(schema)]
        if not isinstance(schema, dict):
            return schema
        made: dict[str, Any] = {}
        for name, value in self._with_names(schema).items():
            place = f"{field}.{name}"
            if self._strict and name in _UNSAID and value not in (None, False, [], {}):
                raise bad(place, "is not supported: leave it out, or strict")
            if name in PARTS and isinstance(value, dict):
                made[name] = self._parts(name, value, place)
            elif name == "pattern" and isinstance(value, str):
                made[name] = self._pattern(value, place)
            else:
                made[name] = value if name in VALUES else self.adapt(value, place)
        return made | _closing(made) if self._closes else made

    def _with_names(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """`propertyNames` that are listed or have a pattern become properties."""
        names = self._referred(schema.get("propertyNames"))
        if not isinstance(names, dict) or schema.keys() & {"properties", "patternProperties"}:
            return schema
        value = schema.get("additionalProperties", True)
        added: dict[str, Any] = {"additionalProperties": False}
        listed, pattern = names.get("enum"), names.get("pattern")
        if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
            added["properties"] = dict.fromkeys(listed, value)
        elif isinstance(pattern, str):
            added["patternProperties"] = {pattern: value}
        else:
            return schema
        return {name: each for name, each in schema.items() if name != "propertyNames"} | added

    def _referred(self, schema: Any) -> Any:
        """What stands at its `$ref`, as of an enumeration that pydantic writes once."""
        place = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(place, str) or not place.startswith("#/"):
            return schema
        found = self._whole
        for part in place[2:].split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def _parts(self, name: str, parts: Mapping[str, Any], field: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, each in parts.items():
            place = f"{field}.{key}"
            named = self._pattern(key, place) if name == "patternProperties" else key
            found[named] = self.adapt(each, place)
        return found

    def _pattern(self, pattern: str, field: str) -> str:
        """Without what looks ahead or behind, such as in pydantic's pattern of a Decimal."""
        plain = _without_looks(pattern)
        if self._strict and plain != pattern:
            raise bad(field, "an expression cannot look ahead or behind: leave that out, or strict")
        return plain


def _mixes(schema: Any) -> bool:
    """Properties of one object stand in several places: none of these may exclude the others'."""
    if isinstance(schema, list):
        return any(map(_mixes, schema))
    if not isinstance(schema, dict):
        return False
    named = "properties" in schema or "patternProperties" in schema
    if named and any(name in schema for name in _MIXED):
        return True
    several = schema.get("allOf")
    if isinstance(several, list) and len(several) > 1:
        return True
    return any(
        any(map(_mixes, value.values()))
        if name in PARTS and isinstance(value, dict)
        else name not in VALUES and _mixes(value)
        for name, value in schema.items()
    )


def _closing(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Members that say that there are no other properties and items than those that are named."""
    added: dict[str, Any] = {}
    items = schema.get("prefixItems")
    if isinstance(items, list) and not schema.keys() & {"items", "unevaluatedItems"}:
        least = schema.get("minItems")
        if not isinstance(least, int) or least <= len(items):
            added["items"] = False
    properties, patterns = schema.get("properties"), schema.get("patternProperties")
    named = isinstance(properties, dict) or isinstance(patterns, dict)
    if not named or schema.keys() & {"const", "enum"}:
        return added
    if "type" not in schema:
        added["type"] = "object"
    known, required, least = properties or {}, schema.get("required"), schema.get("minProperties")
    others = (
        "additionalProperties" in schema
        or schema.get("unevaluatedProperties", False) is not False
        or (isinstance(required, list) and any(name not in known for name in required))
        or (isinstance(least, int) and least > len(known))
    )
    if not others:
        added["additionalProperties"] = False
    return added


def _without_looks(pattern: str) -> str:
    kept: list[str] = []
    at, in_class = 0, False
    while at < len(pattern):
        pair = pattern[at : at + 2]
        if pair[0] == "\\":
            if in_class or pair not in ("\\b", "\\B"):
                kept.append(pair)
            at += 2
        elif not in_class and pattern.startswith(_LOOKS, at):
            at = _group_end(pattern, at)
        else:
            in_class = pair[0] == "[" or (in_class and pair[0] != "]")
            kept.append(pair[0])
            at += 1
    return "".join(kept)


def _group_end(pattern: str, at: int) -> int:
    """Behind the parenthesis that closes the one at `at`."""
    level, in_class = 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            level += 1 if char == "(" else -1
            if not level:
                return at + 1
        at += 1
    return at


_LONGEST = 64 << 10
"""Characters of a grammar: the longest one is compiled within a second."""
_KINDS = ("json", "json_object", "regex", "choice", "grammar")
_DEFAULTS = {"disable_fallback", "disable_any_whitespace", "disable_additional_properties"}
"""vLLM's own settings of the member; false is what they are here."""


@dataclass(frozen=True, slots=True)
class Structure:
    """What an answer must match. The default: anything."""

    grammar: str = ""
    """In llguidance's form."""

    field: str = ""
    """Where the client wrote it."""

    def after_thought(self) -> "Structure":
        """The same for an answer whose reasoning has begun. ApiError 400."""
        return Structure(_refuse_large(after_thought(self.grammar), self.field), self.field)


FREE = Structure()


def structure_of(body: Mapping[str, Any]) -> Structure:
    """Read what the answer must match. Raises ApiError 400 for what makes no sense."""
    given = [name for name in ("response_format", "structured_outputs") if body.get(name)]
    if len(given) == 2:
        raise bad("structured_outputs", "write either this or response_format")
    if not given:
        return FREE
    (name,) = given
    if not isinstance(body[name], dict):
        raise bad(name, "must be an object")
    kind, value, field = (_format if name == "response_format" else _structure)(body[name])
    if not kind:
        return FREE
    if body.get("ignore_eos"):
        raise bad("ignore_eos", f"does not go with {name}, which says where the answer ends")
    if kind == "json":
        value = adapt(value, field)
    return Structure(compose_grammar(kind, value, field), field)


def compose_grammar(kind: str, value: Any, field: str) -> str:
    """The grammar of what the client wrote in `field`. ApiError 400."""
    try:
        grammar = compose(kind, value)
    except GrammarError as error:
        raise bad(field, str(error)) from error
    return _refuse_large(grammar, field)


def _refuse_large(grammar: str, field: str) -> str:
    if len(grammar) > _LONGEST:
        raise bad(field, f"has {len(grammar)} characters: write at most {_LONGEST}")
    return grammar


def _format(given: Mapping[str, Any]) -> tuple[str, Any, str]:
    """(kind, value, field); no kind for free text."""
    name = "response_format"
    match given.get("type"):
        case "text":
            return "", None, name
        case "json_object":
            return "json", {"type": "object"}, name
        case "json_schema":
            field = f"{name}.json_schema"
            schema = given.get("json_schema")
            if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict | bool):
                raise bad(field, 'must be an object with a "schema"')
            return "json", schema["schema"], f"{field}.schema"
    raise bad(f"{name}.type", 'must be "text", "json_object" or "json_schema"')


def _structure(given: Mapping[str, Any]) -> tuple[str, Any, str]:
    name = "structured_outputs"
    for setting, value in given.items():
        harmless = value is None or (setting in _DEFAULTS and value is False)
        if setting not in _KINDS and not harmless:
            raise bad(name, f"{setting!r:.40} is not supported: write one of {_LISTED}")
    kinds = [kind for kind in _KINDS if given.get(kind) not in (None, False)]
    if len(kinds) != 1:
        raise bad(name, f"write one of {_LISTED}, got {len(kinds)} of them")
    (kind,) = kinds
    value, field = given[kind], f"{name}.{kind}"
    match kind:
        case "json_object":
            return "json", {"type": "object"}, field
        case "json":
            return "json", _schema(value, field), field
        case "choice":
            if (
                not isinstance(value, list)
                or not value
                or not all(isinstance(text, str) and text for text in value)
            ):
                raise bad(field, "must be a list of texts")
        case _:
            if not isinstance(value, str):
                raise bad(field, "must be a text")
            if len(value) > _LONGEST:
                raise bad(field, f"has {len(value)} characters: write at most {_LONGEST}")
    return kind, value, field


def _schema(value: Any, field: str) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad(field, f"is no JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise bad(field, "must be a JSON schema")
    return value


_LISTED = ", ".join(_KINDS)


_MOST_WAITING = 64


class Compiler:
    """Of one engine; runs on the event loop."""

    def __init__(self, grammars: Grammars | None, process: GrammarProcess | None) -> None:
        """Without a process grammars are tried in this one, without a limit of time: for tests."""
        self._grammars = grammars
        self._process = process
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._waiting = 0

    @asynccontextmanager
    async def compiled(self, structure: Structure, receive: Receive) -> AsyncIterator[None]:
        """The block in which a request lives that is held to it. ApiError 400 and 429,
        ClientGoneError."""
        if not structure.grammar or self._grammars is None:
            yield
            return
        with self._grammars.held(structure.grammar):
            if not self._grammars.knows(structure.grammar):
                await while_connected(self._compile(self._grammars, structure), receive)
            yield

    async def _compile(self, grammars: Grammars, structure: Structure) -> None:
        if self._waiting >= _MOST_WAITING:
            raise overloaded(f"{self._waiting} grammars wait to be compiled; retry later")
        aio, grammar = asyncio.get_running_loop(), structure.grammar
        self._waiting += 1
        try:
            if self._process is None:
                refusal = await aio.run_in_executor(self._thread, grammars.refusal, grammar)
            else:
                refusal = await self._process.refusal(grammar)
            if refusal is not None:
                raise bad(structure.field, f"no answer can be held to it: {refusal}")
            await aio.run_in_executor(self._thread, grammars.prepare, grammar)
        except GrammarError as error:
            raise bad(structure.field, str(error)) from error
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
