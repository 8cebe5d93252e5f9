"""Triton's driver for NVIDIA's GPUs, compiled ahead for images without a C compiler.

    python -m argosy_engine.model.attention.driver

Triton compiles one C file of its own when it first meets a GPU. Kernels need no C compiler: ptxas
comes with Triton. The build of the engine's image runs this module, and `use_built` hands the
library to Triton at the start. The library's name has a digest of what it was made of, so it is
never handed to another Triton.
"""

import hashlib
import importlib
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from argosy_engine.model.native.compile import compiler

log = logging.getLogger(__name__)

FOLDER = Path(sys.prefix) / "lib" / "argosy"
"""Where the image has the library; elsewhere there is none."""
_NAME = "triton-driver"


def build(folder: Path = FOLDER) -> Path | None:
    """Compile the driver of the Triton that is installed; None if there is none.

    The machine needs no libcuda: a stand-in of that name is linked. RuntimeError says what to
    install, or what the compiler answered.
    """
    source = _find_source()
    if source is None:
        return None
    command = compiler()
    if command is None:
        raise RuntimeError("Triton's driver needs a C compiler: install gcc or clang")
    path = _built_path(source, folder)
    folder.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{source.parent / 'include'}", f"-I{sysconfig.get_paths()['include']}"]
    with tempfile.TemporaryDirectory() as made:
        stand_in = f"{made}/libcuda.so.1"
        named = ["-Wl,-soname,libcuda.so.1", "-o", stand_in]
        _run([*command, "-shared", "-x", "c", os.devnull, *named])
        # The stand-in has no symbols, so a linker that drops what is not needed would drop it.
        linked = ["-Wl,--no-as-needed", stand_in, "-o", str(path)]
        options = ["-O3", "-shared", "-fPIC", "-Wno-psabi"]
        _run([*command, *options, *includes, str(source), *linked])
    return path


def use_built(folder: Path = FOLDER) -> None:
    """Hand Triton the library in `folder`, before it meets the GPU. ImportError without Triton.

    Where there is none, or none for this Triton and Python, Triton compiles its own.
    """
    triton = importlib.import_module("triton")
    source = _find_source()
    if source is None:
        return
    path = _built_path(source, folder)
    if not path.is_file():
        if others := [other.name for other in folder.glob(f"{_NAME}-*")]:
            log.warning(
                "%s was compiled for another Triton or Python: Triton %s compiles its own driver, "
                "which needs a C compiler",
                ", ".join(others),
                triton.__version__,
            )
        return

    def copy(name: str, asked: str, to: str, *_: object) -> str:
        if Path(asked).read_bytes() != source.read_bytes():
            raise RuntimeError(f"only Triton's driver was compiled ahead, and not {name}")
        return shutil.copy(path, to)

    triton.knobs.build.impl = copy


def _find_source() -> Path | None:
    """Find Triton's own C file, without importing Triton."""
    found = find_spec("triton")
    if found is None or found.origin is None:
        return None
    source = Path(found.origin).parent / "backends" / "nvidia" / "driver.c"
    return source if source.is_file() else None


def _built_path(source: Path, folder: Path) -> Path:
    """The library's path by Triton's version and C file, Python's version and the machine."""
    digest = hashlib.sha256(version("triton").encode() + source.read_bytes()).hexdigest()
    return folder / f"{_NAME}-{digest[:16]}{sysconfig.get_config_var('EXT_SUFFIX')}"


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr or done.stdout}")


if __name__ == "__main__":
    sys.stdout.write(f"{build() or 'no Triton is installed: there is nothing to compile'}\n")
