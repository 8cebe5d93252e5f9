"""Builds the reference endpoint picker from its Go module, for `make test-epp`.

`python -m local.cluster.picker` prints the folder with the program and the custom resources that it
needs: `<cache>/picker/<version>`. It is no part of `python -m local.cluster build`: nothing else
needs it. The module is built as it was released, with the versions of its own go.sum.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from local.cluster.build import FLAGS, find_go
from local.cluster.errors import BuildError
from local.cluster.fetch import cache_root

MODULE = "sigs.k8s.io/gateway-api-inference-extension"
VERSION = "v1.2.1"
SUM = "h1:kQjnFWW8YLCN42EZxDNxTuDE0xHkPkoyaEVpQ5sNCBQ="
"""Of the module's content, as go.sum files have it."""


def folder() -> Path:
    """Where the program `epp` and the folder `crds` are or will be."""
    return cache_root() / "picker" / VERSION


def build() -> Path:
    """Build what is not there yet, in about two minutes on two idle cores. Raises BuildError."""
    made = folder()
    made.parent.mkdir(parents=True, exist_ok=True)
    with (made.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            partial = made.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            _make(partial)
            partial.rename(made)
    return made


def released(module: str, version: str, checksum: str) -> Path:
    """The folder with a module's content as it was released. It is fetched once.

    `checksum` is that of the content, as go.sum files have it. Raises BuildError.
    """
    found = json.loads(_run([_go(), "mod", "download", "-json", f"{module}@{version}"], Path.cwd()))
    if found["Sum"] != checksum:
        raise BuildError(f"{module}@{version} has the checksum {found['Sum']}, not {checksum}")
    return Path(found["Dir"])


def _go() -> str:
    go = find_go()
    if go is None:
        raise BuildError("no Go is new enough here: run python -m local.cluster build first")
    return go


def _make(into: Path) -> None:
    source = released(MODULE, VERSION, SUM)
    words = [_go(), "build", *FLAGS, "-ldflags=-s -w", "-o", str(into / "epp"), "./cmd/epp"]
    _run(words, source)
    shutil.copytree(source / "config" / "crd" / "bases", into / "crds")
    for copied in (into / "crds", *(into / "crds").iterdir()):
        copied.chmod(0o755 if copied.is_dir() else 0o644)  # modules are read-only


def _run(words: list[str], where: Path) -> str:
    fixed = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
        "GOSUMDB": "off",  # what is fetched is compared with a checksum of ours, or of a go.sum
    }
    done = subprocess.run(
        words, cwd=where, env={**os.environ, **fixed}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(f"{' '.join(words[1:4])} …: {done.stderr[-2000:]}{done.stdout[-500:]}")
    return done.stdout


def main() -> int:
    """Command line; prints the folder."""
    try:
        made = build()
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{made}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
