"""`kubectl argosy lint FILE…`: what the API server would refuse, without one."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml
from pydantic import ValidationError

from argosy_operator.api.crd import serving_deployments
from argosy_operator.api.v1alpha1 import GROUP, VERSION, ServingDeployment
from argosy_operator.cli.kubectl.command import CommandError, Exit, Files, data
from argosy_operator.core.snapshot.objects import Place, path
from argosy_operator.core.warnings import warnings

KIND = "ServingDeployment"
LISTS = ("List", f"{KIND}List")
"""Kinds of what `kubectl get -o yaml` and the API server answer: many objects in one."""
SUFFIXES = (".yaml", ".yml", ".json")
"""Of the files of a folder that are read: kubectl's."""
MOST_VALUES = 100_000
"""Values that aliases add to one document: a few of them nested make gigabytes."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file, or one item of a document that is a list of objects."""

    source: str
    """The file, or "-"."""
    number: int
    """1 for the first of its file."""
    value: Any
    """None if it cannot be read."""
    node: yaml.Node | None = None
    problem: str | None = None
    """Why it cannot be read."""
    line: int = 1
    """Where it begins, or where the problem is."""

    @property
    def is_fleet(self) -> bool:
        return isinstance(self.value, dict) and self.value.get("kind") == KIND

    @property
    def name(self) -> str:
        """metadata.name, else which document it is."""
        meta = self.value.get("metadata") if isinstance(self.value, dict) else None
        name = meta.get("name") if isinstance(meta, dict) else None
        return f"{KIND} {name}" if isinstance(name, str) else f"document {self.number}"

    def line_of(self, place: Place) -> int:
        """The line of the field at this path, or of its nearest parent that is there."""
        node, line = self.node, self.line
        for part in place:
            found = _child(node, part)
            if found is None:
                break
            line, node = found
        return line


def _child(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    """The line of a member and its value."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    return None


def documents(text: str, source: str) -> Iterator[Document]:
    """The documents of a file, empty ones left out and lists of objects taken apart. One that
    cannot be read ends it."""
    number = 0
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_node():
            number += 1
            node = loader.get_node()
            if node is None:
                continue
            begin = node.start_mark.line + 1
            if (why := _unsafe(node)) is not None:
                yield Document(source, number, None, node, why, begin)
                continue
            value = loader.construct_document(node)
            if value is not None:
                yield from _objects(Document(source, number, value, node, None, begin))
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error)
        line = mark.line + 1 if mark is not None else 1
        yield Document(source, max(number, 1), None, None, f"this is no YAML: {what}", line)
    except RecursionError:
        yield Document(source, max(number, 1), None, None, "it is nested too deeply to be read", 1)


def _objects(document: Document) -> Iterator[Document]:
    """The document, or the items of one that is a list of objects."""
    value = document.value
    items = value.get("items") if isinstance(value, dict) and value.get("kind") in LISTS else None
    if not isinstance(items, list):
        yield document
        return
    _, nodes = _child(document.node, "items") or (0, None)
    for at, item in enumerate(items):
        line, node = _child(nodes, at) or (document.line, None)
        yield from _objects(replace(document, value=item, node=node, line=line))


def _unsafe(node: yaml.Node) -> str | None:
    """Why a document is not built: a key twice, or aliases that multiply."""
    written: dict[int, int] = {}
    try:
        size = _size(node, written)
    except ValueError as error:
        return str(error)
    many = size - len(written) > MOST_VALUES
    return f"aliases make {size:,} values of it: write fewer" if many else None


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values the node is with its aliases written out. Raises ValueError for a key that
    is written twice and for an alias of what it is part of."""
    if id(node) in known:
        if known[id(node)] == 0:
            raise ValueError("an alias stands within what it names: write the values out")
        return known[id(node)]
    known[id(node)] = 0
    size, keys = 1, set[str]()
    for part in node.value if isinstance(node, yaml.CollectionNode) else ():
        key, value = part if isinstance(part, tuple) else (None, part)
        if isinstance(key, yaml.ScalarNode):
            if key.value in keys:
                raise ValueError(f"line {key.start_mark.line + 1}: {key.value} is written twice")
            keys.add(key.value)
        size += _size(value, known)
    known[id(node)] = size
    return size


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


def lint(
    files: Files,
    output: Annotated[
        Literal["text", "json", "yaml"], typer.Option("-o", "--output", help="text, json or yaml.")
    ] = "text",
    strict: Annotated[bool, typer.Option(help="A warning is an error, too.")] = False,
) -> int:
    """Check manifests of ServingDeployments without a cluster. Exits 1 if one has an error."""
    read = read_fleets(files)
    found = [one for document in read for one in findings(document)]
    errors = sum(one.level == "error" for one in found)
    if output != "text":
        print(data([asdict(one) for one in found], output))
    else:
        for one in found:
            print(one.text())
        fleets = sum(document.is_fleet for document in read)
        print(f"{fleets} fleets, {errors} errors, {len(found) - errors} warnings")
    return Exit.FAILED if errors or (strict and found) else Exit.OK


def read_fleets(files: Sequence[str]) -> list[Document]:
    """Read all documents of the files, other kinds of objects included.

    Raises CommandError for a file that cannot be read, and if none of them holds a fleet or a
    document that cannot be read.
    """
    read = read_documents(files)
    if not any(document.is_fleet or document.problem for document in read):
        raise CommandError(f"there is no ServingDeployment in {', '.join(files)}")
    return read


def read_documents(files: Sequence[str]) -> list[Document]:
    """Read all documents of files and folders, as `kubectl apply -f` does; "-" is standard input.

    Raises CommandError for what cannot be read.
    """
    return [one for given in files for file in _files(given) for one in _read(file)]


def _files(given: str) -> list[str]:
    """Return the file, or the manifests of the folder by name. Folders in it are left out."""
    folder = Path(given)
    if given == "-" or not folder.is_dir():
        return [given]
    try:
        found = sorted(one for one in folder.iterdir() if one.suffix in SUFFIXES and one.is_file())
    except OSError as error:
        raise CommandError(f"cannot read {given}: {error.strerror}") from error
    if not found:
        raise CommandError(f"there is no {', '.join(SUFFIXES)} file in {given}")
    return [str(one) for one in found]


def _read(file: str) -> list[Document]:
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return list(documents(raw.decode(), file))
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} is no text in UTF-8") from error
