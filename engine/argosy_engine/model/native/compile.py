"""Builds the native libraries: one for each instruction set, from the same sources.

    python -m argosy_engine.model.native.compile [--force]

Run when the package is built (`engine/native_build.py`) and by developers; never in a pod. Uses the
system's C compiler (`CC`, else cc, gcc or clang), else Zig's from PyPI (`ziglang`). Only the
standard library is imported: at build time nothing else is there.
"""

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCES = ("team.c", "products.c", "tiles.c", "int8.c", "attention.c", "step.c", "draw.c")
_BASE = ("-O3", "-std=c11", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=fast")
_MORE = ("-fno-math-errno", "-Wall", "-Wextra")
_AVX512 = ("-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_AVX512_BF16 = (*_AVX512, "-mavx512vnni", "-mavx512bf16")
_X86: dict[str, tuple[str, ...]] = {
    "amx": (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    "avx512_bf16": _AVX512_BF16,
    "avx512_vnni": (*_AVX512, "-mavx512vnni"),
    "avx512": _AVX512,
    "avx2": ("-mavx2", "-mfma"),
    "base": (),
}


def flags_of(machine: str) -> dict[str, tuple[str, ...]]:
    """Return the compiler flags of each library of a machine, the fastest library first.

    `base` is what every CPU of the platform has: vectors of four floats.
    """
    return _X86 if machine == "x86_64" else {"base": ()}


FLAGS = flags_of(platform.machine())
GLIBC = "2.17"
"""Of wheels that are built for a machine by name: what manylinux2014 has, and each Linux since."""


def library_path(name: str) -> Path:
    """Where the library for an instruction set is, built or not."""
    return FOLDER / f"argosy_{name}.so"


def compiler() -> list[str] | None:
    """The command of a C compiler; None if there is none.

    A compiler without the C library's headers, as Debian's gcc without libc6-dev, counts as none.
    """
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found and _reads_headers(found):
            return [found]
    # Without a target Zig compiles for the CPU that it runs on.
    return zig(f"{platform.machine()}-linux-gnu")


def zig(target: str) -> list[str] | None:
    """Return the command of Zig's C compiler for a target; None if it is not installed."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    return [sys.executable, "-m", "ziglang", "cc", "-target", target]


def _reads_headers(command: str) -> bool:
    """Whether it finds what the sources include."""
    source = "#include <math.h>\n#include <pthread.h>\n#include <linux/futex.h>\n"
    words = [command, "-fsyntax-only", "-x", "c", "-"]
    done = subprocess.run(words, input=source.encode(), capture_output=True, check=False)  # noqa: S603
    return done.returncode == 0


def build(*, force: bool = False, machine: str | None = None) -> list[Path]:
    """Build what is missing or older than its sources; return the paths of all libraries.

    Without a machine they are for this one. `x86_64` or `aarch64` has Zig build for any Linux of
    that machine whose C library is `GLIBC` or newer. A compiler that does not know an instruction
    set builds the others. RuntimeError says what to install, or what the compiler answered.
    """
    flags = flags_of(machine or platform.machine())
    stamp, wanted = FOLDER / "argosy.stamp", _fingerprint(flags, machine)
    found, *names = (stamp.read_text().split() if stamp.is_file() else []) or [""]
    paths = [library_path(name) for name in names]
    if found == wanted and all(path.is_file() for path in paths) and not force:
        return paths
    command = compiler() if machine is None else zig(f"{machine}-linux-gnu.{GLIBC}")
    if command is None:
        raise RuntimeError(
            "the native step needs a C compiler: install gcc or clang, or `pip install ziglang`; "
            "ARGOSY_NATIVE=0 installs the engine without it"
        )
    names = [name for name, words in flags.items() if _builds(command, name, words)]
    stamp.write_text(" ".join([wanted, *names]))
    return [library_path(name) for name in names]


def _builds(command: list[str], name: str, flags: tuple[str, ...]) -> bool:
    """Whether the library could be built: False if the compiler does not know its flags."""
    try:
        _compile([*command, *_BASE, *_MORE, *flags], library_path(name))
    except RuntimeError:
        if name == "base" or _knows(command, flags):
            raise
        library_path(name).unlink(missing_ok=True)
        sys.stderr.write(f"no library for {name}: {shlex.join(command)} does not know {flags}\n")
        return False
    return True


def _knows(command: list[str], flags: tuple[str, ...]) -> bool:
    """Whether the compiler takes the flags."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "nothing.c"
        source.write_text("int nothing;\n")
        words = [*command, *flags, "-c", str(source), "-o", str(source.with_suffix(".o"))]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0  # noqa: S603


def _compile(command: list[str], path: Path) -> None:
    """Into a file beside it, then renamed: an engine that runs keeps the library that it loaded."""
    part = path.with_suffix(f".{os.getpid()}.part")
    sources = [str(FOLDER / source) for source in SOURCES]
    words = [*command, *sources, "-o", str(part), "-lm", "-lpthread"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)} failed:\n{done.stderr or done.stdout}")
    os.replace(part, path)


def _fingerprint(flags: dict[str, tuple[str, ...]], machine: str | None) -> str:
    """Return a digest of the sources, the flags and the machine that was named."""
    hashed = hashlib.sha256(repr((flags, _BASE, _MORE, machine)).encode())
    for path in sorted((*FOLDER.glob("*.c"), *FOLDER.glob("*.h"))):
        hashed.update(path.name.encode() + path.read_bytes())
    return hashed.hexdigest()


if __name__ == "__main__":
    build(force="--force" in sys.argv[1:])
