"""The command `argosy reproduce`.

Exit codes: 0 if all studies ran, whatever they say; 1 if the file cannot be written; 2 if the
arguments are wrong, such as an item that no study shows.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from argosy.cpu import cpu_name
from argosy_measure.reproduce.items import ITEMS, Item

Figures = Mapping[str, Sequence[float]]
"""Name → a value for each seed."""


def main(argv: list[str]) -> int:
    """Run the studies of the items that are asked for, and print their figures."""
    parser = _parser()
    asked = parser.parse_args(argv)
    if asked.list:
        _say("\n".join(f"{id_:4} {item.kind:13} {item.says}" for id_, item in ITEMS.items()))
        return 0
    unknown = [id_ for id_ in asked.items if id_ not in ITEMS]
    if unknown:
        parser.error(f"no study shows {', '.join(unknown)}; write one of {', '.join(ITEMS)}")
    ids = list(ITEMS) if asked.all else list(dict.fromkeys(asked.items))
    if not ids:
        parser.error("write items such as B10, --all, or --list for what there is")
    if asked.seeds < 1:
        parser.error("--seeds: write at least 1")
    figures: dict[str, Sequence[float]] = {}
    for id_ in ids:
        found = measure(ITEMS[id_], asked.seeds)
        lines = (f"    {name} {_show(values)}" for name, values in found.items())
        _say("\n".join((f"{id_}: {ITEMS[id_].says}", *lines)))
        figures |= found
    return _write(asked.json, figures, " ".join(argv)) if asked.json else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="argosy reproduce",
        description="Play what four texts claim of schedulers, in virtual time.",
        epilog="docs/explanation/sources.md has each claim with its verdict.",
    )
    parser.add_argument("items", nargs="*", metavar="ITEM", help="such as B10")
    parser.add_argument("--list", action="store_true", help="print the items and what they need")
    parser.add_argument("--all", action="store_true", help="all items; takes a few minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, … of the lengths (3)")
    return parser


def measure(item: Item, seeds: int) -> Figures:
    """Return each figure of an item, once for each seed."""
    runs = [item.study(seed) for seed in range(seeds)]
    return {name: [run[name] for run in runs] for name in runs[0]}


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _show(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    text = f"{median(values):.4g}"
    return text if low == high else f"{text} ({low:.4g} to {high:.4g})"


def _write(path: Path, figures: Figures, asked: str) -> int:
    """Write the figures as `make bench-…` does: the median of the seeds, and their range."""
    document = {
        "command": f"argosy reproduce {asked}",
        "environment": {
            "date": datetime.now(UTC).date().isoformat(),
            "processor": cpu_name() or "unknown",
            "cores": len(os.sched_getaffinity(0)),
        },
        "figures": {name: round(median(values), 4) for name, values in figures.items()},
        "ranges": {
            name: [round(min(values), 4), round(max(values), 4)] for name, values in figures.items()
        },
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        sys.stderr.write(f"argosy reproduce: {path}: {error.strerror}; write another file\n")
        return 1
    return 0
