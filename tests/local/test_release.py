"""`make release`: what it is called, what it refuses, and that a wheel fits the Linux it names."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from local.release import checks, images
from local.release.checks import ReleaseError
from local.release.wheels import build_wheels

ROOT = Path(__file__).parents[2]
PYPROJECT = '[project]\nname = "argosy"\nversion = "0.2.0"\n'
CHART = "name: argosy\nversion: 0.2.0\nappVersion: 0.2.0\n"
CHANGELOG = """# Changelog

## Unreleased: 0.2.0

New.

### Later
- more

## 0.1.0

The first.
"""


def test_a_version_has_three_numbers() -> None:
    assert checks.read_version("0.1.0") == "0.1.0"
    assert checks.read_version("10.20.30") == "10.20.30"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "make release VERSION=0.1.0"),
        ("v0.1.0", "VERSION=0.1.0"),
        ("0.1", "MAJOR.MINOR.PATCH"),
        ("01.0.0", "MAJOR.MINOR.PATCH"),
        ("latest", "MAJOR.MINOR.PATCH"),
        ("0.1.0\n", "MAJOR.MINOR.PATCH"),
        ("0.1.0-rc.1", "pre-releases"),
        ("0.1.0+build", "build metadata"),
    ],
)
def test_another_version_is_refused_with_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ReleaseError, match=advice):
        checks.read_version(text)


def test_a_version_must_be_the_one_that_is_committed() -> None:
    checks.check_committed("0.2.0", PYPROJECT, CHART)
    with pytest.raises(ReleaseError) as refused:
        checks.check_committed("0.3.0", PYPROJECT, CHART)
    assert "pyproject.toml has version '0.2.0'" in str(refused.value)
    assert "Chart.yaml has appVersion '0.2.0'" in str(refused.value)
    with pytest.raises(ReleaseError, match=r"Chart\.yaml has version '0\.2\.0'"):
        checks.check_committed("0.2.1", PYPROJECT.replace("0.2.0", "0.2.1"), CHART)


def test_a_tree_with_changes_is_refused_by_name() -> None:
    checks.check_clean("")
    with pytest.raises(ReleaseError, match=r"README\.md, new\.py"):
        checks.check_clean(" M README.md\n?? new.py\n")
    with pytest.raises(ReleaseError, match="and 2 more"):
        checks.check_clean("".join(f"?? {n}.py\n" for n in range(5)))


def test_a_missing_program_is_named_with_its_package() -> None:
    checks.check_programs(lambda _: "/usr/bin/there", ("git", "buildah"))
    with pytest.raises(ReleaseError, match="apt-get install buildah"):
        checks.check_programs({"git": "/usr/bin/git"}.get, ("git", "buildah"))


def test_notes_are_the_changelogs_section() -> None:
    assert checks.read_notes(CHANGELOG, "0.2.0") == "New.\n\n### Later\n- more\n"
    assert checks.read_notes(CHANGELOG, "0.1.0") == "The first.\n"
    with pytest.raises(ReleaseError, match=r"## 0\.3\.0"):
        checks.read_notes(CHANGELOG, "0.3.0")
    with pytest.raises(ReleaseError, match=r"## 0\.2\.0"):
        checks.read_notes("## 0.2.01\n", "0.2.0")


def test_the_sums_are_what_sha256sum_reads(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tgz"):
        (tmp_path / name).write_text(name)
    sums = checks.write_sums(tmp_path.iterdir())
    assert [line.split()[1] for line in sums.splitlines()] == ["a.tgz", "b.whl"]
    (tmp_path / "SHA256SUMS").write_text(sums)
    words = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(words, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    (tmp_path / "a.tgz").write_text("other")
    assert subprocess.run(words, cwd=tmp_path, check=False, capture_output=True).returncode == 1


def test_labels_are_those_of_the_specification_and_name_the_base() -> None:
    commit = {"id": "4" * 40, "time": "2026-11-28T12:00:00+00:00", "seconds": "1"}
    base = images.Base("debian@sha256:" + "5" * 64, "sha256:" + "5" * 64)
    labels = images.labels_of("gateway", "0.1.0", commit, "https://example.com/argosy", base)
    assert labels["org.opencontainers.image.version"] == "0.1.0"
    assert labels["org.opencontainers.image.revision"] == "4" * 40
    assert labels["org.opencontainers.image.base.name"] == "debian"
    assert labels["org.opencontainers.image.base.digest"] == base.digest
    made_here = images.labels_of("gateway", "0.1.0", commit, "s", images.Base("own", ""))
    assert "org.opencontainers.image.base.digest" not in made_here


def test_a_platform_that_cannot_be_started_here_is_refused() -> None:
    images.check_platforms((images.native_platform(),))
    with pytest.raises(ReleaseError, match="write linux/amd64, linux/arm64"):
        images.check_platforms(("linux/riscv64",))
    with pytest.raises(ReleaseError, match="write linux/amd64, linux/arm64"):
        images.check_platforms(("amd64",))


def test_a_checkout_that_cannot_be_released_says_so_in_one_line() -> None:
    words = [sys.executable, "-m", "local.release", "99.0.0"]
    refused = subprocess.run(words, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("make release: VERSION=99.0.0, but pyproject.toml has version")
    assert refused.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.timeout(900)
def test_both_wheels_fit_the_linux_that_they_name(tmp_path: Path) -> None:
    version = checks.read_committed((ROOT / "pyproject.toml").read_text())
    for wheel in build_wheels(tmp_path, version):
        names = zipfile.ZipFile(wheel).namelist()
        libraries = [name for name in names if name.endswith(".so")]
        assert ("aarch64" in wheel.name) == (len(libraries) == 1)
        assert not [name for name in names if "argosy_bench" in name or name.startswith("local")]
