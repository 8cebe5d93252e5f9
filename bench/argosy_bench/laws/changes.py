"""The law with other constants or without a part, for the time of a `with`.

A name is that of a constant or function with its module below `argosy_operator.core.scaling`, such
as `size.sizing.HYSTERESIS`, or of a field of `goals.Windows`, such as `Windows.down_hold_s`.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

from argosy_operator.core.scaling.goals import Goals, Windows

_ROOT, _WINDOWS = "argosy_operator.core.scaling", "Windows."

Changes = Mapping[str, Any]
"""Name → the value that it has meanwhile."""


def value(name: str) -> Any:
    """What the name stands for in the code. KeyError for a name that is none."""
    if name.startswith(_WINDOWS):
        return getattr(Windows(), name.removeprefix(_WINDOWS))
    module, _, last = name.rpartition(".")
    try:
        return getattr(import_module(f"{_ROOT}.{module}"), last)
    except (ImportError, AttributeError):
        raise KeyError(f"there is no {name} below {_ROOT}") from None


def goals_with(changes: Changes, goals: Goals) -> Goals:
    """The goals with the windows that are changed."""
    fields = {n.removeprefix(_WINDOWS): v for n, v in changes.items() if n.startswith(_WINDOWS)}
    return replace(goals, windows=replace(goals.windows, **fields))


@contextmanager
def changed(changes: Changes) -> Iterator[None]:
    """The law runs with these values. A module that has imported a name has it changed, too."""
    undo: list[tuple[Any, str, Any]] = []
    try:
        for name, new in changes.items():
            if name.startswith(_WINDOWS):
                continue
            old, last = value(name), name.rpartition(".")[2]
            for module_name, module in list(sys.modules.items()):
                if module_name.startswith(_ROOT) and getattr(module, last, undo) is old:
                    undo.append((module, last, old))
                    setattr(module, last, new)
        yield
    finally:
        for module, last, old in undo:
            setattr(module, last, old)
