"""Results of runs that were played before, kept by what they follow from.

A key is a digest of the code that was run and of all that it was given. Comments, docstrings and
the format of code change no key, so a run is played again only where it could come out otherwise.
"""

import ast
import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import argosy_operator

_SIMULATOR = (
    "sim/world", "sim/traces.py", "sim/rates.py", "sim/replay.py", "sim/figures.py",
    "core/scaling/goals.py", "core/scaling/estimate/profiles.py",
)  # fmt: skip
_PLACES = {
    "static": (*_SIMULATOR, "sim/reference/hindsight.py"),
    "oracle": (*_SIMULATOR, "sim/reference/oracle.py"),
    "goodput": (*_SIMULATOR, "core/scaling"),
}
_OTHERS = (
    *_SIMULATOR, "sim/laws", "core/scaling/observe.py", "core/scaling/decision.py",
    "core/scaling/signals/samples.py",
)  # fmt: skip


@cache
def code(policy: str) -> str:
    """A digest of the code that decides how a run under this policy comes out."""
    root = Path(argosy_operator.__file__).parent
    found: dict[str, str] = {}
    for place in _PLACES.get(policy, _OTHERS):
        path = root / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found[file.relative_to(root).as_posix()] = program(file.read_text())
    return digest(sorted(found.items()))


def program(source: str) -> str:
    """The source without comments, docstrings and format."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def digest(what: object) -> str:
    """Equal values, equal digests; `repr` must show all of a value."""
    return hashlib.sha256(repr(what).encode()).hexdigest()[:20]


class Kept:
    """A file with one result a line (JSON)."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        rows = (json.loads(line) for line in file.read_text().splitlines())
        self._known = {row["key"]: row["value"] for row in rows}

    def of(self, key: object, what: str, play: Callable[[], Any]) -> Any:
        """The result of `key`: known, or played now and kept. `what` is for readers of the file."""
        name = digest(key)
        if name not in self._known:
            value = json.loads(json.dumps(play()))
            self._known[name] = value
            with self._file.open("a") as file:
                file.write(json.dumps({"key": name, "what": what, "value": value}) + "\n")
        return self._known[name]
