"""Sections of `docs/figures/autoscaling.md` that commands write, each between two marks."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from argosy_bench.figures import environment


def write(path: Path, name: str, lines: Sequence[str]) -> None:
    """Replace what is between the marks of the section. ValueError if the page lacks them."""
    path.write_text(replaced(path.read_text(), name, lines))


def update(path: Path, name: str, table: Sequence[str]) -> None:
    """Put a table (header, rule, rows) into the section. Rows of the same header stay if no new one
    has their first two cells: a table of hours of runs is made in parts."""
    text = path.read_text()
    path.write_text(replaced(text, name, updated(text, name, table)))


def updated(text: str, name: str, table: Sequence[str]) -> list[str]:
    """The table with those rows of the section that stay."""
    header, rule, *rows = table
    section = text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->\n")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    kept = lines[2:] if lines and lines[0] == header else []
    of = {tuple(row.split("|")[1:3]): row for row in (*kept, *rows)}
    return [header, rule, *of.values()]


def replaced(text: str, name: str, lines: Sequence[str]) -> str:
    """The page with these lines in its section `name`."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"the page has no section: write the lines {begin}{end}")
    body = "\n".join(lines)
    return f"{before}{begin}\n{body}\n\n{end}{after}"


def measured(seeds: int) -> list[str]:
    """When, at which commit and with how many seeds."""
    number = "one seed" if seeds == 1 else f"{seeds} seeds"
    return [f"Measured on {environment()['date']} at `{commit()}` with {number}."]


def commit() -> str:
    """Of the code that is measured."""
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
