"""`make release VERSION=…`: all that users install, from one commit, into build/release/VERSION.

Wheels for amd64 and arm64, the images with an SBOM each, the chart, the kubectl plug-in as krew
installs it, the release notes, SHA256SUMS. It publishes nothing.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from local.cluster.config.images import read_registry
from local.krew.__main__ import build as build_plugin
from local.release import checks, images
from local.release.chart import package_chart
from local.release.checks import ReleaseError
from local.release.wheels import ROOT, build_wheels, commit


@dataclass(frozen=True, slots=True)
class Asked:
    """What a release is made of."""

    base: str
    platforms: tuple[str, ...]
    images: tuple[str, ...]


def make(version: str, asked: Asked) -> Path:
    """Write the release of the checkout into build/release/VERSION, in place of what is there.

    The Dockerfile reads the wheels from that folder.
    """
    out = ROOT / "build" / "release" / version
    base = images.find_base(asked.base)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    source = checks.read_source(_read("pyproject.toml"))
    notes = checks.read_notes(_read("CHANGELOG.md"), version)
    _say("wheels: amd64, arm64")
    build_wheels(out, version)
    _say("the chart")
    package_chart(out, version)
    for image in asked.images:
        _say(f"the image {image}: {', '.join(asked.platforms)}")
        labels = images.labels_of(image, version, commit(), source, base)
        name = f"{read_registry()}/{image}:{version}"
        images.build_image(image, out, name, version, asked.platforms, base, labels)
    notes += f"\nThe images begin with `{base.name}`, for {', '.join(asked.platforms)}.\n"
    (out / "notes.md").write_text(notes)
    _say("the kubectl plug-in")
    with tempfile.TemporaryDirectory() as folder:
        for file in build_plugin(Path(folder), f"{source}/releases/download/v{version}"):
            shutil.move(file, out)
    (out / "SHA256SUMS").write_text(checks.write_sums(out.iterdir()))
    return out


def check(text: str, asked: Asked) -> str:
    """Return the version if the checkout can be released as it. ReleaseError says what to do."""
    version = checks.read_version(text)
    unknown = [image for image in asked.images if image not in images.IMAGES]
    if unknown:
        raise ReleaseError(f"IMAGES has {', '.join(unknown)}: there are {', '.join(images.IMAGES)}")
    images.check_platforms(asked.platforms)
    checks.check_committed(version, _read("pyproject.toml"), _read("charts/argosy/Chart.yaml"))
    checks.read_notes(_read("CHANGELOG.md"), version)
    wanted = ["git", "buildah", "skopeo"]
    if asked.base == images.DEBOOTSTRAP:
        wanted.append("debootstrap")
    checks.check_programs(shutil.which, wanted)
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
    parser.add_argument("--base", default="docker.io/library/debian:trixie-slim")
    parser.add_argument("--platforms", default=images.native_platform(), help="parted by blanks")
    parser.add_argument("--images", default=" ".join(images.IMAGES), help="parted by blanks")
    given = parser.parse_args()
    asked = Asked(given.base, tuple(given.platforms.split()), tuple(given.images.split()))
    try:
        out = make(check(given.version, asked), asked)
    except ReleaseError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    for file in sorted(out.iterdir()):
        _say(f"{file.stat().st_size / 1e6:9.1f} MB  {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
