"""Which part of each package the tests enter, and the functions that no test enters.

    python -m argosy_bench.suites.coverage build/reports/coverage.json

The input is coverage.py's JSON report of the quick tests that need no cluster, which `make
coverage` writes (pytest-cov). Processes that tests start are not in it.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from argosy_bench.figures import Figure, Figures, conclude

_DEPTH = 2
"""A package is named by its first two parts, such as `argosy_operator.core`."""


def package_of(file: str) -> str:
    """`operator/argosy_operator/core/plan.py` is of `argosy_operator.core`."""
    parts = Path(file).with_suffix("").parts[1:]
    return ".".join(parts[: min(_DEPTH, len(parts) - 1)])


def shares(report: dict[str, Any]) -> dict[str, float]:
    """By package: covered statements over all statements."""
    covered: Counter[str] = Counter()
    statements: Counter[str] = Counter()
    for file, found in report["files"].items():
        package = package_of(file)
        covered[package] += found["summary"]["covered_lines"]
        statements[package] += found["summary"]["num_statements"]
    return {name: covered[name] / count for name, count in sorted(statements.items()) if count}


def not_entered(report: dict[str, Any]) -> Iterator[str]:
    """`file:line function` of each function whose body no test runs."""
    for file, found in sorted(report["files"].items()):
        for name, function in found["functions"].items():
            summary = function["summary"]
            if name and summary["num_statements"] and not summary["covered_lines"]:
                yield f"{file}:{function['start_line']} {name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="coverage.py's JSON report")
    parser.add_argument("--json", type=Path, help="the figures file")
    asked = parser.parse_args()
    report = json.loads(asked.report.read_text())
    by_package = shares(report)
    figures = Figures((Figure(f"covered_{name}") for name in by_package), "make coverage")
    for name, share in by_package.items():
        figures.put(f"covered_{name}", share)
    missing = list(not_entered(report))
    figures.lists["functions_not_entered"] = [{"function": line} for line in missing]
    status = conclude(figures, asked.json)
    print(f"without a cluster, no quick test enters these {len(missing)} functions:")
    print("\n".join(f"  {line}" for line in missing))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
