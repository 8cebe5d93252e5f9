"""CI draws new examples in every run, and says how to draw the same ones again."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Of numbers and texts hypothesis also tries those that it finds in modules that are loaded.
DRAWS = """
from pathlib import Path
from hypothesis import given, strategies as st
@given(st.lists(st.booleans(), min_size=20))
def test_coins(coins):
    with Path(__file__).with_suffix(".drawn").open("a") as file:
        print("".join("01"[coin] for coin in coins), file=file)
"""


def drawn(folder: Path, *arguments: str) -> tuple[list[str], str]:
    """What a run in CI draws, and the seed that it prints."""
    path = folder / "test_coins.py"
    path.write_text(DRAWS)
    path.with_suffix(".drawn").write_text("")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), str(path), *arguments],
        cwd=ROOT, env={**os.environ, "CI": "true"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (seed,) = re.findall(r"--hypothesis-seed=(\d+)", ended.stdout)
    return path.with_suffix(".drawn").read_text().split(), seed


def test_two_runs_of_ci_draw_different_examples_and_the_printed_seed_repeats_one(
    tmp_path: Path,
) -> None:
    first, seed = drawn(tmp_path, "-n", "1")  # a process of its own, as `make test` uses four
    second, _ = drawn(tmp_path)
    assert len(first) >= 50
    assert first != second
    assert drawn(tmp_path, f"--hypothesis-seed={seed}")[0] == first
