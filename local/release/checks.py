"""What a release is called, and what is refused before anything is built; writes nothing."""

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""An architecture, as images name it, to the machine that wheels name."""

_PART = r"(0|[1-9][0-9]*)"
_VERSION = re.compile(rf"{_PART}\.{_PART}\.{_PART}")


class ReleaseError(Exception):
    """A release cannot be made; the text says what to do."""


def read_version(text: str) -> str:
    """Return a version that Python, Helm and image tags write the same. ReleaseError for others."""
    if _VERSION.fullmatch(text):
        return text
    if not text:
        raise ReleaseError("no version: write make release VERSION=0.1.0")
    if _VERSION.fullmatch(text.removeprefix("v")):
        raise ReleaseError(f"VERSION={text}: write it without the v: VERSION={text[1:]}")
    if re.match(rf"{_VERSION.pattern}[-+]", text):
        raise ReleaseError(
            f"VERSION={text}: pre-releases and build metadata have other names in Python than in "
            "Helm, so there are none: write MAJOR.MINOR.PATCH"
        )
    raise ReleaseError(f"VERSION={text} is no semantic version: write MAJOR.MINOR.PATCH, as 0.1.0")


def read_committed(pyproject: str) -> str:
    """Return the version that the checkout has."""
    version: str = tomllib.loads(pyproject)["project"]["version"]
    return version


def check_committed(version: str, pyproject: str, chart: str) -> None:
    """Refuse a version that the commit does not have: a checkout must say what it is."""
    described = yaml.safe_load(chart)
    found = {
        ("pyproject.toml", "version"): read_committed(pyproject),
        ("charts/argosy/Chart.yaml", "version"): described["version"],
        ("charts/argosy/Chart.yaml", "appVersion"): described["appVersion"],
    }
    other = [f"{file} has {key} {of!r}" for (file, key), of in found.items() if of != version]
    if other:
        raise ReleaseError(
            f"VERSION={version}, but {'; '.join(other)}: write {version} there and commit it"
        )


def check_clean(status: str) -> None:
    """Refuse a tree with changes, from the output of `git status --porcelain`."""
    changed = [line[3:] for line in status.splitlines()]
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ReleaseError(
            f"a release is made from a commit, and these are in none: {', '.join(changed[:3])}"
            f"{more}. Commit them, or move them away"
        )


def check_programs(find: Callable[[str], str | None], wanted: Iterable[str]) -> None:
    """Refuse a machine that lacks a program; the message has the packages to install, which Debian,
    Ubuntu and Fedora name as the programs."""
    missing = [program for program in wanted if find(program) is None]
    if missing:
        packages = " ".join(missing)
        raise ReleaseError(
            f"{', '.join(missing)} not found: apt-get install {packages} (dnf install {packages})"
        )


def read_notes(changelog: str, version: str) -> str:
    """Return the changelog's section about a version, without its heading."""
    heading = re.compile(rf"^## (?:Unreleased: )?\[?{re.escape(version)}\]?(?: .*)?$", re.MULTILINE)
    found = heading.search(changelog)
    if found is None:
        raise ReleaseError(f'CHANGELOG.md has no section "## {version}": write one and commit it')
    section, *_ = re.split(r"^## ", changelog[found.end() :], maxsplit=1, flags=re.MULTILINE)
    return section.strip() + "\n"


def read_source(pyproject: str) -> str:
    """Return the address of the repository, which the owner sets in pyproject.toml."""
    source: str = tomllib.loads(pyproject)["project"]["urls"]["Source"]
    return source.rstrip("/")


def wheel_of(version: str, arch: str, glibc: str) -> str:
    """Return the file name of the wheel for an architecture."""
    return f"argosy-{version}-py3-none-manylinux_{glibc.replace('.', '_')}_{MACHINES[arch]}.whl"


def write_sums(files: Iterable[Path]) -> str:
    """Return the content of SHA256SUMS, as `sha256sum --check` reads it."""
    lines = []
    for path in sorted(files):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    return "".join(lines)
