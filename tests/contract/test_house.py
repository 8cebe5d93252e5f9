"""The house rules of CONTRIBUTING that a machine can read, over all that users start or read."""

import re
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("operator", "engine", "bench", "local", "docs")
COLUMNS = 100
NOT_OF_OURS = ("DESIGN.md", "DESIGN §", "DESIGN's", "layout.md", "shared/", "anchors/")


def tracked(*places: str) -> list[Path]:
    listed = subprocess.check_output(["git", "ls-files", "-z", *places], cwd=ROOT, text=True)
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


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
