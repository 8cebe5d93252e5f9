"""Each rule of the engine, T1 to T51, has tests under its name, and one command finds them all.

`docs/peer_tests.py` says what each number is.
"""

import ast
import re
from collections import Counter
from pathlib import Path

from docs.peer_tests import BEHAVIOURS
from tests.support.sources import parsed

ROOT = Path(__file__).parents[2]
MAY_BE = {50}
"""Numbers that have no test yet."""
RULES = set(BEHAVIOURS) - MAY_BE
_NAME = re.compile(r"test_t([0-9]+)_")


def named_by_file() -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The tests named so, of each file; only functions of the module are collected by pytest."""
    found = {}
    for path in sorted(ROOT.glob("tests/**/*.py")):
        named = [
            node
            for node in parsed(path).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _NAME.match(node.name)
        ]
        if named:
            found[str(path.relative_to(ROOT))] = named
    return found


def test_every_rule_has_a_test_and_every_test_a_rule() -> None:
    numbers = {
        int(match[1])
        for tests in named_by_file().values()
        for test in tests
        if (match := _NAME.match(test.name))
    }
    assert numbers - MAY_BE == RULES


def test_each_name_exists_once_and_is_collected() -> None:
    names = Counter(test.name for tests in named_by_file().values() for test in tests)
    assert [name for name, times in names.items() if times > 1] == []
    for file in named_by_file():
        assert file.rpartition("/")[2].startswith("test_"), f"pytest does not collect {file}"


def test_none_of_them_is_skipped_or_expected_to_fail() -> None:
    for file, tests in named_by_file().items():
        for test in tests:
            marks = " ".join(ast.unparse(mark) for mark in test.decorator_list)
            assert not re.search(r"mark\.(skip|skipif|xfail)\b", marks), f"{file}: {test.name}"


def test_the_command_of_the_documentation_finds_all_of_them() -> None:
    text = (ROOT / "docs/explanation/sources.md").read_text()
    found = re.search(r'`pytest ([a-z_/ ]+) -k "(test_t1 or [a-z0-9_ ]+)"`', text)
    assert found, "docs/explanation/sources.md names no command for the rules of the engine"
    folders, words = found[1].split(), found[2].split(" or ")
    for file, tests in named_by_file().items():
        assert any(file.startswith(f"{folder}/") for folder in folders), f"{file} is not in it"
        for test in tests:
            assert any(word in test.name for word in words), f"{test.name} is not in it"
