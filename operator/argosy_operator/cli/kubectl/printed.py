"""How verbs print: tables, JSON and YAML. Pure."""

import json
from collections.abc import Sequence
from typing import Any

Row = Sequence[str]


def table(head: Row, rows: Sequence[Row], indent: str = "") -> str:
    """Columns as kubectl prints them: capitals above, three spaces between, nothing behind."""
    lines = [tuple(cell.upper() for cell in head), *(tuple(c or "-" for c in row) for row in rows)]
    wide = [max(len(line[i]) for line in lines) for i in range(len(head))]
    padded = ("   ".join(cell.ljust(w) for cell, w in zip(r, wide, strict=True)) for r in lines)
    return "\n".join(f"{indent}{line}".rstrip() for line in padded)


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def as_yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000)
    return text.rstrip("\n")


def data(value: Any, output: str) -> str:
    """The value as `output`, "json" or "yaml"."""
    return as_json(value) if output == "json" else as_yaml(value)


def items(objects: Sequence[Any]) -> dict[str, Any]:
    """Objects as the list that `kubectl get -o json` prints."""
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}
