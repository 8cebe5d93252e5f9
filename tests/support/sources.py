"""Read Python files as syntax trees."""

import ast
import gc
from pathlib import Path


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file.

    The garbage collector waits meanwhile: CPython 3.11 fails in `ast.parse` with a SystemError when
    a finalizer runs there that formats a traceback, and earlier tests may have left one.
    """
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()
