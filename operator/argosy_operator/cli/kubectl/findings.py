"""What `kubectl argosy lint` finds in a document: what the API server refuses, of the fleet or of
its pods, and warnings. Pure.

Types and sentences come from the API's models and unknown fields from the CRD's schema, so there
is no second list of either.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal

from pydantic import ValidationError

from argosy_operator.api.crd import serving_deployments
from argosy_operator.api.v1alpha1 import GROUP, VERSION, ServingDeployment
from argosy_operator.cli.kubectl.documents import Document
from argosy_operator.core.snapshot.objects import Place, path
from argosy_operator.core.warnings.spec import warnings

PREFIXES = ("Value error, ", "Assertion failed, ")


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about a document."""

    level: Literal["error", "warning"]
    source: str
    line: int
    of: str
    """The fleet, or which document."""
    field: str
    """Path of the field; "" for the whole document."""
    sentence: str

    def text(self) -> str:
        """As compilers print it, so that editors find the line."""
        at = f"{self.field}: " if self.field else ""
        return f"{self.source}:{self.line}: {self.level}: {self.of}: {at}{self.sentence}"


def findings(document: Document) -> list[Finding]:
    """Errors and then warnings, each by line; of another kind of object, nothing."""
    if document.problem is not None:
        return [_of(document, "error", (), document.problem)]
    if not document.is_fleet:
        return []
    found = [_of(document, "error", place, why) for place, why in _refused(document.value)]
    if not found:
        fleet = ServingDeployment.model_validate(document.value)
        found = [
            _of(document, "error" if one.is_error else "warning", one.place, one.sentence)
            for one in warnings(fleet)
        ]
    return sorted(found, key=lambda one: (one.level, one.line, one.field))


def _of(document: Document, level: Literal["error", "warning"], place: Place, why: str) -> Finding:
    line = document.line_of(place)
    return Finding(level, document.source, line, document.name, path(place), why)


def _refused(value: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Place and sentence of everything that `kubectl apply` would refuse."""
    wanted = f"{GROUP}/{VERSION}"
    if value.get("apiVersion") != wanted:
        yield ("apiVersion",), f"is {value.get('apiVersion')!r}: write {wanted}"
    meta = value.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        yield ("metadata",), "there is no metadata.name: write one"
        return
    spec = {key: part for key, part in value.items() if key != "status"}
    shapes = list(_misshapen(spec.get("spec"), _schema(), ("spec",)))
    yield from shapes
    told = {place for place, _ in shapes}
    yield from (one for one in _broken(spec) if one[0] not in told)


def _broken(spec: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What the models refuse, with the sentences of their rules."""
    try:
        ServingDeployment.model_validate(spec)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            place, why = tuple(one["loc"]), str(one["msg"])
            for prefix in PREFIXES:
                why = why.removeprefix(prefix)
            yield place, "is required" if one["type"] == "missing" else why


@cache
def _schema() -> Mapping[str, Any]:
    """The schema of spec in the CRD."""
    versions = serving_deployments()["spec"]["versions"]
    schema: Mapping[str, Any] = next(
        v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == VERSION
    )
    part: Mapping[str, Any] = schema["properties"]["spec"]
    return part


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def _misshapen(
    value: Any, schema: Mapping[str, Any], place: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Fields that the CRD does not have, values of another type than its own, and items of a list
    that are there twice."""
    if schema.get("x-kubernetes-preserve-unknown-fields") or value is None:
        return
    kind = schema.get("type", "")
    is_bool = isinstance(value, bool) and kind in ("integer", "number")
    if kind in _TYPES and (is_bool or not isinstance(value, _TYPES[kind])):
        hint = ": write it in quotes" if kind == "string" and not isinstance(value, dict) else ""
        yield place, f"must be of type {kind}, not {type(value).__name__}{hint}"
        return
    if isinstance(value, dict):
        known, rest = schema.get("properties"), schema.get("additionalProperties")
        for key, part in value.items():
            at = (*place, str(key))
            if known is not None and key in known:
                yield from _misshapen(part, known[key], at)
            elif isinstance(rest, dict):
                yield from _misshapen(part, rest, at)
            elif known is not None:
                near = get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(known)}"
                yield at, f"there is no such field: {hint}"
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for number, part in enumerate(value):
            yield from _misshapen(part, schema["items"], (*place, number))
        yield from _doubled(value, schema.get("x-kubernetes-list-map-keys", ()), place)


def _doubled(
    items: list[Any], keys: Sequence[str], place: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Items with the same keys as one before them; none where the list has no keys."""
    seen = set[str]()
    for number, item in enumerate(items):
        if not keys or not isinstance(item, dict) or any(item.get(key) is None for key in keys):
            continue
        named = " and ".join(f"{key} {item[key]}" for key in keys)
        if named in seen:
            yield (*place, number), f"the list has an item with {named} already: leave one out"
        seen.add(named)
