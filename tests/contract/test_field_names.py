"""Messages name fields that exist, of our two kinds and of the chart's values."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.sources import parsed

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "operator/argosy_operator"
OF_OTHER_KINDS = {"spec.replicas"}


def texts(tree: ast.Module) -> Iterator[str]:
    """String literals of a module, without docstrings."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


TEXTS = [text for path in sorted(PACKAGE.rglob("*.py")) for text in texts(parsed(path))]
FIELDS = sorted(
    {
        field.rstrip(".")
        for text in TEXTS
        for field in re.findall(r"\bspec\.[a-zA-Z<][a-zA-Z.<>]*", text)
    }
    - OF_OTHER_KINDS
)
VALUES = sorted(
    {v for t in TEXTS for v in re.findall(r"([a-zA-Z]+(?:\.[a-zA-Z]+)+) in the values of", t)}
)


def has(node: dict[str, Any], path: list[str]) -> bool:
    """Does the schema have this path? `<role>` stands for each role."""
    for name in path:
        known = node.get("properties", {})
        if (node := known.get("prefill" if name == "<role>" else name)) is None:
            return False
    return True


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_a_text_names_is_in_a_crd(field):
    crds = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    schemas = [crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in crds]
    assert any(has(schema, field.split(".")) for schema in schemas)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_a_text_names_is_in_the_chart(value):
    node = yaml.safe_load((ROOT / "charts/argosy/values.yaml").read_text())
    for name in value.split("."):
        node = node[name]
