"""The version is written in pyproject.toml; every other place says the same."""

import re
import tomllib
from pathlib import Path

import yaml

from argosy_operator.cli.run import DEFAULT_ENGINE, DEFAULT_GATEWAY

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_chart_has_it_and_installs_it():
    chart = yaml.safe_load((ROOT / "charts/argosy/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_the_operators_default_images_have_it():
    assert {image.rpartition(":")[2] for image in (DEFAULT_ENGINE, DEFAULT_GATEWAY)} == {VERSION}


def test_the_readmes_images_have_it():
    tags = re.findall(
        r"/(?:\$image|operator|gateway|engine):(\S+)", (ROOT / "README.md").read_text()
    )
    assert len(tags) >= 5
    assert set(tags) == {VERSION}
