"""Fetches what a bare Debian or Ubuntu lacks: programs of the cluster and Python's venv module.

As root it installs them with apt-get, unless `ARGOSY_INSTALL=0`. Otherwise it unpacks the
distribution's packages into the user's cache, which needs no root. It uses the standard library
alone. `python -m local.cluster.fetch FOLDER` makes a virtual environment.
"""

import fcntl
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from local.cluster.errors import FetchError

_SYSTEM_PATH = ":/usr/sbin:/sbin"
_FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")
_SYSTEM = Path("/")
_WHEELS = "usr/share/python-wheels"
VENV_PACKAGE = f"python3.{sys.version_info.minor}-venv"


def cache_root() -> Path:
    """`$ARGOSY_CACHE`, else the user's cache directory."""
    if named := os.environ.get("ARGOSY_CACHE"):
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().resolve() / "argosy"


def place() -> Path:
    """Where packages are unpacked: one folder per release, because a cache may be shared."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    named = (release.get("ID", "linux"), release.get("VERSION_ID", "0"), platform.machine())
    return cache_root() / "tools" / "-".join(named)


def search_path() -> str:
    """`$PATH`, then the administrator's programs, then those that were unpacked."""
    return f"{os.environ.get('PATH', os.defpath)}{_SYSTEM_PATH}:{place() / 'bin'}"


def use() -> None:
    """Puts the unpacked programs into the PATH of this process and its children."""
    if str(place() / "bin") not in os.environ.get("PATH", "").split(":"):
        os.environ["PATH"] = search_path()


def has_venv() -> bool:
    """Whether `make_venv` has all it needs. A virtual environment has its own pip."""
    importlib.invalidate_caches()
    here = sys.prefix != sys.base_prefix or importlib.util.find_spec("ensurepip") is not None
    return here or _pip_wheel() is not None


def make_venv(folder: Path) -> None:
    """Make a virtual environment with pip. Raises FetchError or CalledProcessError."""
    if not has_venv():
        obtain([VENV_PACKAGE])
    importlib.invalidate_caches()
    words = [sys.executable, "-m", "venv", str(folder)]
    wheel = _pip_wheel()
    if importlib.util.find_spec("ensurepip") is not None or wheel is None:
        subprocess.run(words, check=True)
        return
    subprocess.run([*words, "--without-pip"], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-index"]
    # A wheel of pip can install itself.
    subprocess.run([*pip, str(wheel)], check=True, env={**os.environ, "PYTHONPATH": str(wheel)})


def obtain(packages: Iterable[str]) -> None:
    """Install or unpack `packages`. FetchError if neither is possible."""
    names = sorted(set(packages))
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise FetchError("apt-get or dpkg is missing: this is not Debian or Ubuntu")
    if os.geteuid() == 0 and os.environ.get("ARGOSY_INSTALL") != "0":
        _say(f"installing {' '.join(names)} (ARGOSY_INSTALL=0 unpacks them into {place()} instead)")
        try:
            _install(names)
            _say(f"installed {' '.join(names)}")
            return
        except FetchError as error:
            _say(str(error))
    _say(f"unpacking {' '.join(names)} into {place()}")
    place().mkdir(parents=True, exist_ok=True)
    with (place() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _unpack(names)
    _say(f"unpacked {' '.join(names)}")


def _install(names: list[str]) -> None:
    subprocess.run(["apt-get", "-qq", "update"], capture_output=True, check=False)
    # --no-remove: on a conflict apt-get fails instead of removing installed packages.
    _run(["apt-get", "-qq", "-y", "--no-remove", "--no-install-recommends", "install", *names])


def _unpack(names: list[str]) -> None:
    """With package lists and archives of its own: those of the system belong to root."""
    with tempfile.TemporaryDirectory(dir=place()) as folder:
        for needed in ("lists/partial", "cache/archives/partial"):
            (Path(folder) / needed).mkdir(parents=True)
        own = [f"Dir::State::Lists={folder}/lists", f"Dir::Cache={folder}/cache"]
        # As root, apt fetches as a user who cannot enter the cache of another.
        options = [*own, "APT::Sandbox::User=root", "Debug::NoLocking=true"]
        apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
        _run([*apt, "update"])
        planned = _run([*apt, "--simulate", "--no-install-recommends", "install", *names])
        # `Inst NAME (VERSION …)` is not installed yet; `Inst NAME [OLD] (VERSION …)` is, and stays.
        lines = [line.split() for line in planned.splitlines() if line.startswith("Inst ")]
        wanted = {*names, *(words[1] for words in lines if not words[2].startswith("["))}
        _run([*apt, "download", *sorted(wanted)], cwd=folder)
        for package in sorted(Path(folder).glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(place() / "root")])
    _write_starters()


def _write_starters() -> None:
    """One script per unpacked program, so that only this program uses the unpacked libraries."""
    root = place() / "root"
    libraries = [folder for base in ("usr/lib", "lib") for folder in root.glob(f"{base}/*-linux-*")]
    path = ":".join(map(str, libraries))
    (place() / "bin").mkdir(exist_ok=True)
    for program in (path for folder in _FOLDERS for path in root.glob(f"{folder}/*")):
        words = f"LD_LIBRARY_PATH={shlex.quote(path)} exec {shlex.quote(str(program))}"
        partial = place() / "bin.partial"
        partial.write_text(f'#!/bin/sh\n{words} "$@"\n')
        partial.chmod(0o755)
        partial.replace(place() / "bin" / program.name)


def _pip_wheel() -> Path | None:
    """The wheel of pip that `VENV_PACKAGE` brings, unpacked or installed."""
    places = (place() / "root" / _WHEELS, _SYSTEM / _WHEELS)
    return next((wheel for where in places for wheel in where.glob("pip-*.whl")), None)


def _run(words: list[str], cwd: str | None = None) -> str:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=cwd, check=False)
    if done.returncode:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        raise FetchError(f"{words[0]} failed: {reason.splitlines()[-1]}")
    return done.stdout


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main() -> int:
    """Command line: make a virtual environment in the folder that is the argument."""
    try:
        make_venv(Path(sys.argv[1]))
    except (FetchError, subprocess.CalledProcessError) as error:
        _say(f"no virtual environment could be made ({error}): apt-get install {VENV_PACKAGE}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
