"""YAML documents with the line on which each of their fields stands. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

from argosy_operator.core.snapshot.objects import Place

KIND = "ServingDeployment"
LISTS = ("List", f"{KIND}List")
"""Kinds of what `kubectl get -o yaml` and the API server answer: many objects in one."""
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
