"""What the package installs as commands is what others look for by name."""

import tomllib
from pathlib import Path

import pytest

import argosy

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("program", ["kubectl-argosy", "kubectl_complete-argosy"])
def test_the_programs_that_kubectl_looks_for_are_installed(program: str) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert callable(getattr(argosy, scripts[program].partition(":")[2]))
