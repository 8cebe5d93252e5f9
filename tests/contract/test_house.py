"""The house rules of CONTRIBUTING that a machine can read, over all that users start or read."""

import ast
import re
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from tests.support.sources import parsed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "argosy_operator",
    "argosy_engine",
    "argosy_gateway",
    "argosy_fetch",
    "argosy_bench",
    "local",
)
SOURCES = ("operator", "engine", "bench", "local", "docs")
COLUMNS = 100
NOT_OF_OURS = ("DESIGN.md", "DESIGN §", "DESIGN's", "layout.md", "shared/", "anchors/")
MANNERED = re.compile(
    r"\b(somebody|anybody|everybody|shall|whoever|thereof|mishap|absolve|kick)\b", re.I
)


def tracked(*places: str) -> list[Path]:
    listed = subprocess.check_output(["git", "ls-files", "-z", *places], cwd=ROOT, text=True)
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def modules() -> list[Path]:
    """Python that is written by hand, tests apart."""
    return [
        path
        for path in tracked(*SOURCES)
        if path.suffix == ".py" and not path.stem.endswith(("_pb2", "_pb2_grpc"))
    ]


def texts() -> Iterator[tuple[str, str]]:
    """Every line that people read outside of tests, with its place."""
    places = (*SOURCES, "charts", "designs", "examples", "Makefile", *pages_of_the_root())
    for path in tracked(*places):
        if path.suffix in {".png", ".sum", ".mod"} or path.stem.endswith("_pb2"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def pages_of_the_root() -> list[str]:
    return [path.name for path in tracked() if path.parent == ROOT and path.suffix == ".md"]


def place(path: Path, node: ast.stmt) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return {path: parsed(path) for path in modules()}


def test_no_import_gives_a_name_of_ours_another_name(trees: dict[Path, ast.Module]) -> None:
    renamed = [
        f"{place(path, node)} {name.name} as {name.asname}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES
        for name in node.names
        if name.asname not in (None, name.name)
    ]
    assert renamed == []


def test_fields_are_documented_below_and_not_behind_them(trees: dict[Path, ast.Module]) -> None:
    behind = []
    for path, tree in trees.items():
        lines = path.read_text().splitlines()
        for owner in ast.walk(tree):
            for node in owner.body if isinstance(owner, ast.ClassDef) else ():
                if isinstance(node, ast.AnnAssign):
                    rest = lines[(node.end_lineno or 1) - 1].encode()[node.end_col_offset or 0 :]
                    if b"#" in rest and b"noqa" not in rest and b"type:" not in rest:
                        behind.append(place(path, node))
    assert behind == []


def test_documents_wrap_at_a_hundred_columns() -> None:
    wide = []
    for path in tracked("*.md"):
        code = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code ^= line.startswith("```")
            if len(line) > COLUMNS and not code and not line.startswith(("|", "![", "    ")):
                wide.append(f"{path.relative_to(ROOT)}:{number}")
    assert wide == []


def test_nothing_cites_a_text_that_is_not_in_the_repository() -> None:
    cited = [f"{at}: {line.strip()}" for at, line in texts() if any(t in line for t in NOT_OF_OURS)]
    assert cited == []


def test_links_of_documents_lead_to_files() -> None:
    broken = []
    for path in tracked("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)} → {target}")
    assert broken == []


def test_texts_use_the_words_of_the_field() -> None:
    found = [f"{at}: {line.strip()}" for at, line in texts() if MANNERED.search(line)]
    assert found == []


ARCHITECTURE = ROOT / "ARCHITECTURE.md"
NUMBERS = {"three": 3, "four": 4, "five": 5}


def test_the_reading_order_of_the_operator_is_as_long_as_it_says() -> None:
    (count, most, order) = re.findall(
        r"\*\*The operator\*\*, (\w+) files, fewer than ([\d,]+) lines together:(.*?)\n\*\*",
        ARCHITECTURE.read_text(),
        re.DOTALL,
    )[0]
    files = [ROOT / name for name in re.findall(r"\]\((\S+)\)", order)]
    lines = sum(len(path.read_text().splitlines()) for path in files)
    assert len(files) == NUMBERS[count]
    assert int(most.replace(",", "")) - 200 <= lines < int(most.replace(",", ""))


@pytest.mark.parametrize(
    ("begins", "package"), [("| layer |", "argosy_operator"), ("| room |", "argosy_operator/core")]
)
def test_a_table_of_architecture_has_a_row_for_each_folder(begins: str, package: str) -> None:
    lines = ARCHITECTURE.read_text().splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith(begins)]
    rows = takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    folders = [path.parent.name for path in (ROOT / "operator" / package).glob("*/__init__.py")]
    assert sorted(re.findall(r"^\| `(\w+)`", "\n".join(rows), re.MULTILINE)) == sorted(folders)


def test_local_imports_no_bench() -> None:
    """ARCHITECTURE.md says so."""
    importers = [
        path
        for path in tracked("local/*.py")
        if re.search(r"^\s*(?:from|import) argosy_bench", path.read_text(), re.M)
    ]
    assert importers == []
