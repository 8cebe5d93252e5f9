"""`make krew`: the plug-in's archive and its krew manifest, into build/krew/.

One archive serves every platform: a wheel without compiled code of ours, the pinned list of its
dependencies, and a launcher (`launcher.sh`) that installs both at its first call. Packages of other
projects are not in the archive, because some of them are compiled for each Python and platform.
"""

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = Path(__file__).with_name("launcher.sh")
NAME = "argosy"
PLATFORMS = [(os_, arch) for os_ in ("linux", "darwin") for arch in ("amd64", "arm64")]


def wheel(folder: Path) -> Path:
    """Build the wheel without our libraries, so that it fits every platform."""
    uv = Path(sys.executable).with_name("uv")
    words = [str(uv), "build", "--wheel", "--quiet", "-o", str(folder), str(ROOT)]
    subprocess.run(words, check=True, env={**os.environ, "ARGOSY_NATIVE": "0"})
    (built,) = folder.glob("argosy-*-py3-none-any.whl")
    return built


def archive(files: dict[str, tuple[bytes, int]]) -> bytes:
    """A .tar.gz of `files` (name → content and mode), equal for equal content."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, (content, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), mtime=0)


def manifest(version: str, uri: str, content: bytes) -> dict[str, Any]:
    """The krew manifest for the archive that is at `uri`."""
    digest = hashlib.sha256(content).hexdigest()
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "See and steer LLM fleets that follow an SLO",
            "description": (
                "Shows fleets of the Argosy operator (status), explains their replicas (explain),\n"
                "drains pods (drain), renders and checks manifests (render, lint), and makes a\n"
                "fleet of a Deployment (import).\n"
            ),
            "caveats": (
                "It needs Python 3.11 or newer. Its first call installs its dependencies into\n"
                "~/.cache/argosy, from the package index that pip knows.\n"
            ),
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": os_, "arch": arch}},
                    "uri": uri,
                    "sha256": digest,
                    "bin": "kubectl-argosy",
                    "files": [{"from": "*", "to": "."}],
                }
                for os_, arch in PLATFORMS
            ],
        },
    }


def build(folder: Path, releases: str) -> tuple[Path, Path]:
    """Write the archive and the manifest into the folder; returns both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("argosy*"):
        old.unlink()
    built = wheel(folder)
    version = built.name.split("-")[1]
    files = {
        "kubectl-argosy": (LAUNCHER.read_bytes(), 0o755),
        "LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
        "requirements.txt": ((ROOT / "requirements" / "operator.txt").read_bytes(), 0o644),
        built.name: (built.read_bytes(), 0o644),
    }
    built.unlink()
    content = archive(files)
    packed = folder / f"argosy-kubectl-{version}.tar.gz"
    packed.write_bytes(content)
    described = folder / f"{NAME}.yaml"
    text = yaml.safe_dump(
        manifest(version, f"{releases.rstrip('/')}/{packed.name}", content), sort_keys=False
    )
    described.write_text(text)
    return packed, described


def main() -> None:
    """Build both and print where they are."""
    parser = argparse.ArgumentParser(prog="python -m local.krew", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "krew")
    parser.add_argument(
        "--releases", required=True, help="URL of the folder that the archive will be in"
    )
    given = parser.parse_args()
    packed, described = build(given.out, given.releases)
    print(f"{packed}\n{described}\ntry it: kubectl krew install --manifest={described} "
          f"--archive={packed}")  # fmt: skip


if __name__ == "__main__":
    main()
