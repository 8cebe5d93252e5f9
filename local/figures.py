"""The one writer of figures files: values with their unit, target, environment and command.

A command declares its figures as rows of a table, puts values into `Figures`, and ends with
`conclude`. `local/demo` and every `make bench-*` use it, so all figures files have one format.
A target is a ratio within one run, or a count: never a time, which depends on the machine.
"""

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Literal

from rich.console import Console
from rich.table import Table

from argosy.cpu import cpu_name


@dataclass(frozen=True, slots=True)
class Target:
    """The bound that a figure must keep."""

    sign: Literal["<=", ">=", "=="]
    value: float
    """In the figure's unit. Yes or no is 1 or 0."""

    def holds(self, value: float | None) -> bool:
        """Whether `value` keeps the bound; a figure that was not measured (None) does not."""
        if value is None:
            return False
        match self.sign:
            case "<=":
                return value <= self.value
            case ">=":
                return value >= self.value
            case "==":
                return value == self.value

    def __str__(self) -> str:
        return f"{self.sign} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a command's table."""

    name: str
    unit: str = ""
    """SI or common symbol (`s`, `ms`, `MiB`, `1/s`); empty for counts, shares and yes or no."""
    target: Target | None = None
    digits: int = 3
    """Decimals that are kept: more would be noise."""


class Figures:
    """What one run of a command measured."""

    def __init__(self, rows: Iterable[Figure], command: str) -> None:
        self.rows: dict[str, Figure] = {}
        self.declare(rows)
        self.command = command
        self.values: dict[str, float] = {}
        """As measured. A target is checked on these, before they are rounded."""
        self.ranges: dict[str, tuple[float, float]] = {}
        """Lowest and highest value over the seeds, of figures that were measured with several."""
        self.notes: dict[str, str | int | float | None] = {}
        """Facts of the environment that only this command knows, such as the model's name."""
        self.lists: dict[str, list[dict[str, object]]] = {}
        """Rows behind a figure that a reader asks for next; only the file has them."""

    def declare(self, rows: Iterable[Figure]) -> None:
        """Add rows to the table; a row of the same name is replaced."""
        self.rows |= {row.name: row for row in rows}

    def put(self, name: str, value: float) -> None:
        """Record one value. KeyError if no row of the table has that name."""
        self.values[self.rows[name].name] = float(value)

    def put_each(self, name: str, values: Sequence[float]) -> None:
        """Record the median of the values, one for each seed, and their range."""
        self.put(name, median(values))
        self.ranges[name] = (float(min(values)), float(max(values)))

    def rounded(self, name: str) -> float:
        """Return the value with the decimals of its row."""
        return round(self.values[name], self.rows[name].digits)

    def missed(self) -> list[str]:
        """Return the names of figures that miss their target or were not measured."""
        return [
            name
            for name, row in self.rows.items()
            if row.target is not None and not row.target.holds(self.values.get(name))
        ]

    def write(self, path: Path) -> None:
        """Write the figures file (JSON); makes its folder."""
        missed = set(self.missed())
        document: dict[str, object] = {
            "command": self.command,
            "environment": {**environment(), **self.notes},
            "figures": {name: self.rounded(name) for name in self.rows if name in self.values},
            "ranges": {
                name: [round(end, self.rows[name].digits) for end in ends]
                for name, ends in self.ranges.items()
            },
            "units": {name: row.unit for name, row in self.rows.items() if name in self.values},
            "targets": {
                name: {**asdict(row.target), "met": name not in missed}
                for name, row in self.rows.items()
                if row.target is not None
            },
            **self.lists,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n")

    def table(self, title: str = "this run") -> Table:
        """Draw all measured figures and all targets, for the terminal; what misses is red."""
        missed = set(self.missed())
        table = Table("figure", "measured", "unit", "target", title=title, title_justify="left")
        for name, row in self.rows.items():
            if name not in self.values and name not in missed:
                continue
            value = f"{self.rounded(name):g}" if name in self.values else "not measured"
            target = "" if row.target is None else str(row.target)
            table.add_row(name, value, row.unit, target, style="red" if name in missed else None)
        return table


def conclude(figures: Figures, path: Path | None) -> int:
    """End a command: print the table, write the figures file, return the exit status.

    `path` None writes no file. The status is 1 if a target is missed.
    """
    Console(highlight=False).print(figures.table())
    if path is not None:
        figures.write(path)
    return 1 if figures.missed() else 0


def environment() -> dict[str, str | int | float]:
    """Describe the machine, as far as a figure depends on it: no path, user or host name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "processor": cpu_name() or platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
