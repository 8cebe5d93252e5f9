"""The version is written in pyproject.toml; every other place says the same."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import argosy
from argosy_operator.cli.run import DEFAULT_ENGINE, DEFAULT_GATEWAY
from docs.generate import NAMING, write_names
from local.cluster.config.images import read_registry

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_chart_has_it_and_installs_it():
    chart = yaml.safe_load((ROOT / "charts/argosy/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_the_operators_default_images_have_it():
    assert {image.rpartition(":")[2] for image in (DEFAULT_ENGINE, DEFAULT_GATEWAY)} == {VERSION}


@pytest.mark.parametrize("page", NAMING)
def test_each_place_that_names_it_or_the_registry_is_generated(page: str) -> None:
    registry = read_registry()
    text = write_names((ROOT / page).read_text(), "registry.example:5000/team", "12.3.4")
    assert registry not in text
    assert VERSION not in text
    assert "registry.example:5000/team" in text
    assert write_names(text, registry, VERSION) == (ROOT / page).read_text()


@pytest.mark.parametrize(
    "command", ["argosy", "kubectl-argosy", "argosy gateway run", "kubectl-argosy rollout status"]
)
def test_a_command_prints_it(command: str) -> None:
    name, *words = command.split()
    program = [Path(sys.executable).with_name(name), *words, "--version"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"argosy {VERSION}\n", "")


@pytest.mark.parametrize("program", ["operator", "gateway", "engine", "fetch", "simulate"])
def test_a_program_prints_it_also_where_its_extra_is_not_installed(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    modules = (
        "argosy_operator",
        "argosy_gateway",
        "argosy_engine",
        "argosy_fetch",
        "argosy_law",
        "argosy_measure",
    )
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(sys, "argv", ["argosy", program, "--version"])
    with pytest.raises(SystemExit) as ended:
        argosy.main()
    assert (ended.value.code, capsys.readouterr().out) == (0, f"argosy {VERSION}\n")
