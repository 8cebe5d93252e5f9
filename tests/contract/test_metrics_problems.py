"""Every code that status turns into a reason is one that an unavailable signal begins with."""

import ast
from pathlib import Path

import pytest

from argosy_operator.core.status.facts import PROBLEM_OF_CODE
from tests.support.sources import parsed

PACKAGE = Path(__file__).parents[2] / "operator/argosy_operator"
SOURCES = [
    *(PACKAGE / "adapters/prometheus").rglob("*.py"),
    *(PACKAGE.parent / "argosy_law").rglob("*.py"),
]


def literals() -> set[str]:
    """First words before a colon of all texts that the metrics' sources and the law hold."""
    trees = [parsed(path) for path in SOURCES]
    texts = (node.value for tree in trees for node in ast.walk(tree) if type(node) is ast.Constant)
    return {text.partition(": ")[0] for text in texts if isinstance(text, str) and ": " in text}


@pytest.mark.parametrize("code", PROBLEM_OF_CODE)
def test_a_code_with_a_reason_of_its_own_is_produced(code):
    assert code in literals()
