"""Which of several results of `argosy simulate` on one trace are worth a choice.

    python -m argosy_bench.scaling.compare goodput.json hpa.json keda.json

A result is on the Pareto front if no other has at least its attainment for at most its GPU-hours.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console


@dataclass(frozen=True, slots=True)
class Result:
    """What one policy reached."""

    name: str
    """Of its file, without the folder."""
    attainment: float
    gpu_hours: float
    over_static: float | None
    """GPU-hours over those of the best constant fleet; None: no constant fleet meets the goal."""

    def beats(self, other: "Result") -> bool:
        """At least its attainment for at most its GPU-hours, and not equal in both."""
        mine, others = ((r.attainment, -r.gpu_hours) for r in (self, other))
        return mine != others and mine[0] >= others[0] and mine[1] >= others[1]


def read(paths: list[Path]) -> list[Result]:
    """The results, cheapest first. SystemExit for a file that is none, or of another trace."""
    results, counted = [], set()
    for path in paths:
        try:
            found = json.loads(path.read_text())
            results.append(_result(path.stem, found))
            counted.add((found["requests"], found["gpu_hours_physical"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path}: no result of argosy simulate: {error!r}") from None
    if len(counted) > 1:
        raise SystemExit("these results are of different traces: compare those of one trace")
    return sorted(results, key=lambda result: (result.gpu_hours, -result.attainment))


def _result(name: str, found: Mapping[str, float]) -> Result:
    hours, static = found["gpu_hours"], found["gpu_hours_static"]
    return Result(name, found["attainment"], hours, hours / static if static else None)


def front(results: list[Result]) -> list[Result]:
    """Those that no other beats, in the same order."""
    return [one for one in results if not any(other.beats(one) for other in results)]


def table(results: list[Result]) -> list[str]:
    """A header, and one line for each result."""
    best, wide = front(results), max(len(result.name) for result in results)
    lines = [f"{'result':{wide}}  attainment   GPU-h  /static  Pareto"]
    for one in results:
        ratio = "      -" if one.over_static is None else f"{one.over_static:7.3f}"
        mark = "yes" if one in best else ""
        lines.append(
            f"{one.name:{wide}}  {one.attainment:10.3f}  {one.gpu_hours:6.1f}  {ratio}  {mark}"
        )
    return [line.rstrip() for line in lines]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m argosy_bench.scaling.compare", description=__doc__
    )
    parser.add_argument("results", nargs="+", type=Path, help="files that --out has written")
    console = Console(highlight=False)
    for line in table(read(parser.parse_args().results)):
        console.print(line, soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
