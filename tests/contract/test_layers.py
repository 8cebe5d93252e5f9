"""The checks of the layers catch what is planted: a check that cannot fail holds nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
NAMES = "operator/argosy_operator/core/snapshot/names.py"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The product's code with its configuration, to plant in."""
    for name in ("operator", "engine", "bench"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def broken_contracts(copy: Path) -> list[str]:
    """Names of the contracts that `lint-imports` calls broken there."""
    path = os.pathsep.join(str(copy / source) for source in ("operator", "engine", "bench"))
    done = subprocess.run(
        [TOOLS / "lint-imports", "--no-cache"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    broken = [line.removesuffix("BROKEN").strip() for line in done.stdout.splitlines()
              if line.endswith("BROKEN")]  # fmt: skip
    assert bool(broken) == bool(done.returncode), done.stdout + done.stderr
    return broken


def lint_of(copy: Path) -> str:
    """What ruff says of the code there, "" when it has nothing to say."""
    words = [TOOLS / "ruff", "check", "--no-cache", "--output-format=concise", "."]
    done = subprocess.run(words, cwd=copy, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode else ""


def plant(file: Path, line: str) -> None:
    """Put an import or a statement behind the docstring."""
    head, quotes, rest = file.read_text().partition('"""\n')
    file.write_text(f"{head}{quotes}\n{line}\n{rest}")


def test_the_code_as_it_is_breaks_no_contract(copy: Path) -> None:
    assert broken_contracts(copy) == []
    assert lint_of(copy) == ""


def test_a_clock_behind_a_module_of_our_own_breaks_purity(copy: Path) -> None:
    (copy / "operator/argosy_operator/api/clock.py").write_text("import time\nNOW = time.time()\n")
    plant(copy / NAMES, "from argosy_operator.api.clock import NOW  # noqa: F401")
    assert "the law, core, render and api are pure" in broken_contracts(copy)


def test_a_file_in_the_api_is_refused(copy: Path) -> None:
    plant(copy / "operator/argosy_operator/api/crd.py", "import pathlib  # noqa: F401")
    assert "the law, core, render and api touch no files" in broken_contracts(copy)


def test_a_module_in_no_layer_breaks_the_layers(copy: Path) -> None:
    (copy / "operator/argosy_operator/extra.py").write_text("")
    (copy / "engine/argosy_gateway/extra.py").write_text("")
    broken = broken_contracts(copy)
    assert sum(name.startswith(("operator layers", "gateway layers")) for name in broken) == 2
