"""Reads the comments of the chart's values, which are written as helm-docs reads them.

A comment that begins with `# -- ` is about the key below it, `# -- (int) ` names its type where the
default is null, and lines above it are for readers of values.yaml alone. A section with such a
comment speaks for the keys in it that have none.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

_COMMENT = re.compile(r" *# ?(?P<text>.*)")
_ABOUT = re.compile(r"-- (?:\((?P<type>[^)]+)\) )?(?P<text>.*)")
_TYPES = {"bool": "bool", "int": "int", "str": "string", "map": "object", "seq": "list"}


@dataclass(frozen=True, slots=True)
class Value:
    """One row of the table."""

    name: str
    """Such as operator.replicas."""
    type: str
    default: str
    """As JSON."""
    meaning: str


def read(text: str) -> list[Value]:
    """Return the values in their order. Raises ValueError for one without a comment."""
    return list(_values(yaml.compose(text), text.splitlines(), covered=False))


def table(values: Sequence[Value]) -> str:
    """Return the values as a table of Markdown."""
    rows = ["| value | type | default | meaning |", "|---|---|---|---|"]
    for one in values:
        meaning = one.meaning.replace("|", "\\|").replace("<", "&lt;")
        rows.append(f"| `{one.name}` | {one.type} | `{one.default}` | {meaning} |")
    return "\n".join(rows)


def _values(
    section: yaml.Node | None, lines: Sequence[str], above: str = "", *, covered: bool
) -> Iterator[Value]:
    for key, node in section.value if isinstance(section, yaml.MappingNode) else ():
        name = above + key.value
        about = _comment_above(lines, key.start_mark.line)
        is_section = isinstance(node, yaml.MappingNode) and bool(node.value)
        if about is not None:
            kind = about["type"] or _TYPES[node.tag.rpartition(":")[2]]
            yield Value(name, kind, _default(node), about["text"])
        elif not (covered or is_section):
            raise ValueError(f"values.yaml: write a comment `# -- …` above {name}")
        yield from _values(node, lines, f"{name}.", covered=covered or about is not None)


def _comment_above(lines: Sequence[str], line: int) -> re.Match[str] | None:
    """Return what the lines above this one say about it: from the last `# -- ` on."""
    words: list[str] = []
    while line > 0 and (comment := _COMMENT.fullmatch(lines[line - 1])):
        line -= 1
        words.insert(0, comment["text"].strip())
        if words[0].startswith("-- "):
            return _ABOUT.fullmatch(" ".join(words))
    return None


def _default(node: yaml.Node) -> str:
    return json.dumps(yaml.safe_load(yaml.serialize(node)), ensure_ascii=False)
