"""The tree of exceptions in errors.py is the tree in the code."""

import ast
import re
from pathlib import Path

import argosy_engine
from argosy_engine import errors
from tests.support.sources import parsed

ROOT = Path(argosy_engine.__file__).parent


def exceptions() -> dict[str, str]:
    """Class name → base of every exception class of the engine."""
    found = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and node.bases:
                base = ast.unparse(node.bases[0])
                if base.endswith(("Error", "Exception")):
                    found[node.name] = base
    return found


def test_every_exception_is_an_engine_error_and_drawn_in_the_tree() -> None:
    found = exceptions()
    assert found.pop("EngineError") == "Exception"
    assert {name: base for name, base in found.items() if base != "EngineError"} == {}
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    assert drawn == {name for name in found if not name.startswith("_")}
