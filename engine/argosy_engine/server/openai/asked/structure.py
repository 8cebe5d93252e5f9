"""What an answer must match, from `response_format` or vLLM's `structured_outputs`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy_engine.errors import GrammarError
from argosy_engine.server.openai.asked.schemas import adapt
from argosy_engine.server.openai.parameters import bad
from argosy_engine.text.grammars import after_thought, compose

__all__ = ["FREE", "Structure", "structure_of"]

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
        return Structure(_bounded(after_thought(self.grammar), self.field), self.field)


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
    return Structure(composed(kind, value, field), field)


def composed(kind: str, value: Any, field: str) -> str:
    """The grammar of what the client wrote in `field`. ApiError 400."""
    try:
        grammar = compose(kind, value)
    except GrammarError as error:
        raise bad(field, str(error)) from error
    return _bounded(grammar, field)


def _bounded(grammar: str, field: str) -> str:
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
