"""`make release VERSION=…`: all that users install, from one commit, into build/release/VERSION.

Wheels for amd64 and arm64, the kubectl plug-in as krew installs it, the release notes, SHA256SUMS.
It publishes nothing.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from local.krew.__main__ import build as build_plugin
from local.release import checks
from local.release.checks import ReleaseError
from local.release.wheels import ROOT, build_wheels


def make(version: str, out: Path) -> None:
    """Write the release of the checkout into `out`, in place of what is there."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    source = checks.read_source(_read("pyproject.toml"))
    (out / "notes.md").write_text(checks.read_notes(_read("CHANGELOG.md"), version))
    _say("wheels: amd64, arm64")
    build_wheels(out, version)
    _say("the kubectl plug-in")
    with tempfile.TemporaryDirectory() as folder:
        for file in build_plugin(Path(folder), f"{source}/releases/download/v{version}"):
            shutil.move(file, out)
    files = {file.name: file.read_bytes() for file in out.iterdir()}
    (out / "SHA256SUMS").write_text(checks.write_sums(files))


def check(text: str) -> str:
    """Return the version if the checkout can be released as it. ReleaseError says what to do."""
    version = checks.read_version(text)
    checks.check_programs(shutil.which, ("git",))
    checks.check_committed(version, _read("pyproject.toml"), _read("charts/argosy/Chart.yaml"))
    checks.read_notes(_read("CHANGELOG.md"), version)
    words = ["git", "status", "--porcelain"]
    checks.check_clean(
        subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    )
    return version


def _read(name: str) -> str:
    return (ROOT / name).read_text()


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """Make the release and print what is in it; exit status 1 says what to do first."""
    parser = argparse.ArgumentParser(prog="python -m local.release", description=__doc__)
    parser.add_argument(
        "version", help="MAJOR.MINOR.PATCH, as pyproject.toml and Chart.yaml have it"
    )
    given = parser.parse_args()
    try:
        version = check(given.version)
        out = ROOT / "build" / "release" / version
        make(version, out)
    except ReleaseError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    for file in sorted(out.iterdir()):
        _say(f"{file.stat().st_size / 1e6:9.1f} MB  {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
