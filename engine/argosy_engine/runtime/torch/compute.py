"""Which library computes the steps, if any, as `--compute` asks, and with how many threads."""

import logging
from dataclasses import dataclass

import torch

from argosy_engine.config import EngineConfig
from argosy_engine.errors import LoadError
from argosy_engine.model.native.choose import choose
from argosy_engine.model.native.compile import library_path
from argosy_engine.model.native.library import Library
from argosy_engine.runtime.machine import allowed_threads, shares_cores

__all__ = ["Native", "open_library"]

log = logging.getLogger(__name__)

_SPINS_ALONE = 20_000
_SPINS_SHARED = 2000
"""As for OpenMP (`runtime.machine`): a thread that waits spins about 0.3 ms, or 30 µs where another
process may want its core."""

_NONE_WORKS = "this installation has no native library that works on this CPU; install the package"
_NO_LIBRARY = {
    "native": f"--compute native: {_NONE_WORKS} where a C compiler is, or say --compute torch",
    "int8": f"--quantization int8: {_NONE_WORKS} where a C compiler is, or leave it out",
}


@dataclass(frozen=True, slots=True)
class Native:
    """A loaded library."""

    name: str
    """Its instruction set, as in `native.compile.FLAGS`."""

    library: Library

    int8: bool = False
    """Matrices are 8-bit integers."""

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether a step in bfloat16 is faster than in float32, or as fast, at every row count."""
        return self.name in ("amx", "avx512_bf16")


def open_library(
    config: EngineConfig, device: torch.device, architecture: str = "", *, known: bool = True
) -> Native | None:
    """None: torch computes. LoadError where `--compute native` or int8 cannot be had.

    `known`: the native step knows the architecture; transformers runs the others in torch.
    """
    int8 = config.quantization == "int8"
    asked = config.compute == "native"
    option = "--compute native" if asked else "--quantization int8"
    if (asked or int8) and not known:
        raise LoadError(
            "BadArgument", f"{option}: {architecture} is run by transformers; leave the option out"
        )
    if not known:
        log.info("%s is run by transformers, in torch", architecture)
        return None
    if (asked or int8) and device.type != "cpu":
        raise LoadError("BadArgument", f"{option}: a GPU computes here; leave it out")
    if config.compute == "torch" and int8:
        raise LoadError(
            "BadArgument",
            "--quantization int8: torch has no products of 8-bit integers here; say --compute "
            "native, or leave it out",
        )
    if config.compute == "torch" or device.type != "cpu":
        return None
    name = choose()
    if name is None and not asked and not int8:
        log.info("no native library works here: torch computes the steps")
        return None
    if name is None:
        raise LoadError("BadArgument", _NO_LIBRARY["native" if asked else "int8"])
    spins = _SPINS_SHARED if shares_cores() else _SPINS_ALONE
    threads = config.threads or allowed_threads()
    library = Library(library_path(name), threads=threads, spins=spins)
    how = "in tiles" if name == "amx" else "in pairs" if library.pairs else "as float32"
    log.info("native library %s; it multiplies bfloat16 weights %s", name, how)
    return Native(name, library, int8)
