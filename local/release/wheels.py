"""Builds the wheel of each architecture with Zig, on whatever machine this is."""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from argosy_engine.model.native.compile import GLIBC
from local.release.checks import MACHINES, ReleaseError, wheel_of

ROOT = Path(__file__).resolve().parents[2]
_TOOLS = ("auditwheel", "hatchling", "ziglang")
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "operator", "engine")


def build_wheels(out: Path, version: str) -> list[Path]:
    """Write a wheel for each architecture into `out`; return their paths.

    They are built from a copy of what git tracks: the libraries that a developer's clone has beside
    the sources stay as they are, and reach no wheel. auditwheel reads every library and says
    whether the name of the wheel is true. Only the one of this machine can be started here.
    """
    missing = [tool for tool in _TOOLS if find_spec(tool) is None]
    if missing:
        raise ReleaseError(f"{', '.join(missing)} not installed: run make .venv/.release first")
    built = []
    with tempfile.TemporaryDirectory() as name:
        for arch, machine in MACHINES.items():
            source = Path(name) / arch
            copy_tracked(source, _SOURCES)
            _build(source, out, machine)
            wheel = out / wheel_of(version, arch, GLIBC)
            if not wheel.is_file():
                raise ReleaseError(f"the build wrote no {wheel.name}: see what it printed above")
            _audit(wheel)
            built.append(wheel)
    return built


def copy_tracked(target: Path, paths: tuple[str, ...]) -> None:
    """Copy the files of the checkout that git tracks into a new folder."""
    words = ["git", "ls-files", "-z", "--", *paths]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout
    for file in filter(None, listed.decode().split("\0")):
        place = target / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((ROOT / file).read_bytes())
        place.chmod((ROOT / file).stat().st_mode & 0o755 | 0o644)


def commit() -> dict[str, str]:
    """Return the commit's id, and when it was made: in seconds and as RFC 3339 has it."""
    words = ["git", "log", "-1", "--format=%H %ct %cI"]
    said = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return dict(zip(("id", "seconds", "time"), said.split(), strict=True))


def _build(source: Path, out: Path, machine: str) -> None:
    """Without isolation: the pinned hatchling and Zig of this environment build it."""
    uv = Path(sys.executable).with_name("uv")
    words = [str(uv), "build", "--wheel", "--quiet", "--no-build-isolation"]
    words += ["--python", sys.executable, "--out-dir", str(out), str(source)]
    env = {**os.environ, "ARGOSY_WHEEL_FOR": machine, "SOURCE_DATE_EPOCH": commit()["seconds"]}
    subprocess.run(words, check=True, env=env)
    (out / ".gitignore").unlink(missing_ok=True)  # uv writes one


def _audit(wheel: Path) -> None:
    """Refuse a wheel whose libraries need more than its name says."""
    words = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    tag = wheel.stem.rpartition("-")[2]
    if said.returncode or f'platform tag: "{tag}"' not in " ".join(said.stdout.split()):
        raise ReleaseError(f"auditwheel does not agree with {tag}:\n{said.stdout}{said.stderr}")
