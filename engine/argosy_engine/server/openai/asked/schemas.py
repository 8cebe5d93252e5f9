"""JSON schemas of clients, as a grammar is to have them.

As in vLLM, an object that names its properties has no others unless its schema says so: small
models would go on with names of their own. What a grammar cannot say is left to the model, or
refused with its place where the client asks for strictness.
"""

from collections.abc import Mapping
from typing import Any

from argosy_engine.server.openai.parameters import bad

__all__ = ["PARTS", "VALUES", "adapt"]

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
