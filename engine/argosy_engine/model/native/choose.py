"""Which native library works on this CPU: each is tried in a child process, the fastest first.

A library whose CPU flags are missing is not tried. One whose flags are there may still fail: some
virtual machines announce what they cannot do. So a child (`native.trial`) computes a small step
with the library and compares it with the base library's. A child that dies of SIGILL, hangs or
computes something else costs that library, not the engine.
"""

import functools
import logging
import signal
import subprocess
import sys
from collections.abc import Iterable

from argosy.cpu import cpu_flags
from argosy_engine.model.native.compile import FLAGS, library_path

log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-P", "-m", "argosy_engine.model.native.trial")
_TIMEOUT_S = 60.0


@functools.cache
def choose() -> str | None:
    """The fastest set whose library works here; None: no library was built, or none works."""
    built = [name for name in FLAGS if library_path(name).is_file()]
    if "base" not in built:
        return None
    return first_that_works(_supported(built))


def _supported(names: list[str]) -> list[str]:
    """Return the names whose instructions the CPU announces; all where it announces nothing."""
    flags = cpu_flags()
    # The kernel's avx512_bf16 and amx_tile are the compiler's -mavx512bf16 and -mamx-tile.
    has = {flag.replace("_", "") for flag in flags}
    wanted = {name: {f.removeprefix("-m").replace("-", "") for f in FLAGS[name]} for name in names}
    return [name for name in names if not flags or wanted[name] <= has]


def first_that_works(names: Iterable[str], program: tuple[str, ...] = PROGRAM) -> str | None:
    """The first name whose trial succeeds; the log names those that failed."""
    failed: list[str] = []
    for name in names:
        end = end_of_trial((*program, str(library_path(name)), str(library_path("base"))))
        if not end:
            if failed:
                log.warning("native libraries fail on this CPU: %s; using %s", failed, name)
            return name
        failed.append(f"{name} ({end})")
    log.warning("no native library works on this CPU: %s", failed)
    return None


def end_of_trial(command: tuple[str, ...], timeout_s: float = _TIMEOUT_S) -> str:
    """Empty if it succeeded, else how it ended."""
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"silent for {timeout_s:.0f} s"
    except OSError as error:
        return f"not started: {error.strerror}"
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {done.returncode}"
    return ""
