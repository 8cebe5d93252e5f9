"""`make bench-gateway`: what a streamed token and a request cost in the gateway, beside Envoy.

    python -m argosy_bench.suites.gateway [--json FILE] [--only GROUP]

Each group of figures is a module of `argosy_bench.gateway` or `argosy_bench.routing`. The gateway,
Envoy and the engine are processes of their own; the clients are in this process.
"""

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import uvloop

from argosy_bench.figures import Figure, Figures, conclude
from argosy_bench.gateway import readers, requests, streams
from argosy_bench.gateway.load import Load
from argosy_bench.routing import affinity, picks, sick

__all__ = ["GROUPS", "Group", "main"]


class Group(NamedTuple):
    """Figures that are measured together."""

    rows: tuple[Figure, ...]
    measure: Callable[[Figures], Awaitable[None]]


GROUPS = {
    "streams": Group(streams.FIGURES, lambda figures: streams.measure(figures, Load())),
    "requests": Group(requests.FIGURES, requests.measure),
    "readers": Group(readers.FIGURES, readers.measure),
    "picks": Group(picks.FIGURES, picks.measure),
    "affinity": Group(affinity.FIGURES, affinity.measure),
    "sick": Group(sick.FIGURES, sick.measure),
}


def main() -> int:
    """Run the suite; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="make bench-gateway", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures file here")
    parser.add_argument("--only", choices=GROUPS, help="measure this group alone")
    asked = parser.parse_args()
    groups = [GROUPS[asked.only]] if asked.only else list(GROUPS.values())
    figures = Figures((row for group in groups for row in group.rows), "make bench-gateway")
    for group in groups:
        uvloop.run(group.measure(figures))  # type: ignore[arg-type]
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
