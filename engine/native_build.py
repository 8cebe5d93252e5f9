"""Builds the native step when the package is built: for the wheel, and in place for a clone.

Called by hatchling (`tool.hatch.build.hooks.custom`). Without a C compiler it asks pip for Zig's.
`ARGOSY_NATIVE=0` leaves the libraries out: the engine then computes with torch alone.
`ARGOSY_WHEEL_FOR=x86_64` or `aarch64` builds a manylinux wheel for that machine, on any machine.
"""

import importlib.util
import os
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_COMPILE = Path(__file__).parent / "argosy_engine" / "model" / "native" / "compile.py"


class NativeBuildHook(BuildHookInterface[Any]):
    """Compiles the libraries and makes the wheel one of this platform."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build needs besides hatchling."""
        needed = _wanted(self.target_name) and (_machine() or _compile().compiler() is None)
        return ["ziglang>=0.15"] if needed else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the files are collected. RuntimeError names what is missing."""
        if not _wanted(self.target_name):
            return
        native, machine = _compile(), _machine()
        paths = native.build(machine=machine)
        build_data["artifacts"] += [f"/{path.relative_to(self.root)}" for path in paths]
        if version != "editable":
            here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            glibc = native.GLIBC.replace(".", "_")
            platform = f"manylinux_{glibc}_{machine}" if machine else here
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"


def _wanted(target: str) -> bool:
    return target == "wheel" and os.environ.get("ARGOSY_NATIVE") != "0"


def _machine() -> str | None:
    """Return the machine that the wheel is for; None for this one."""
    return os.environ.get("ARGOSY_WHEEL_FOR") or None


def _compile() -> ModuleType:
    """`native.compile` by its path: the package is not installed yet."""
    spec = importlib.util.spec_from_file_location("argosy_native_compile", _COMPILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
