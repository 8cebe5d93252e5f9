"""`make bench-first-day`: what a team meets on the first day, as counts that should be none.

    python -m argosy_bench.fleets.first_day [--peer DIR] [--json FILE]

Each figure but the size of the CRDs is measured by a test on the one-machine Kubernetes, which
hands it to `record_property`. This suite runs those tests, reads the figures from pytest's report,
and holds them against their targets. A test that fails may still have measured its figure. With
`--peer`, an environment with vLLM's CPU build, a fleet of vLLM runs afterwards
(argosy_bench.others).
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from argosy_bench import others
from argosy_bench.figures import Figure, Figures, Target, conclude

NONE = Target("==", 0)
FIGURES = (
    Figure("rename_errors", target=NONE, digits=0),
    Figure("rename_requests", digits=0),
    Figure("pods_restarted_by_operator_upgrade", target=NONE, digits=0),
    Figure("pods_restarted_by_slo_edit", target=NONE, digits=0),
    Figure("crd_bytes", target=Target("<=", 262_143), digits=0),
    Figure("wait_ready_lies", target=NONE, digits=0),
    Figure("wait_ready_edits", digits=0),
)
TESTS = (
    "tests/e2e/test_upgrade.py",
    "tests/e2e/test_live_settings.py",
    "tests/reconcile/test_pipelines.py",
)
CRDS = Path("crds")


def recorded(report: Path) -> dict[str, float]:
    """The figures that tests handed to `record_property`, from pytest's report in JUnit's XML."""
    tree = ElementTree.parse(report)  # noqa: S314 — written by our own pytest
    return {
        found.attrib["name"]: float(found.attrib["value"])
        for found in tree.iter("property")
        if found.attrib["name"] in {figure.name for figure in FIGURES}
    }


def run_tests(tests: Iterable[str]) -> tuple[dict[str, float], int]:
    """What the tests recorded, and pytest's exit status."""
    with tempfile.TemporaryDirectory(prefix="argosy-first-day-") as folder:
        report = Path(folder) / "report.xml"
        # The newer family of the format has no properties of single tests.
        kind = ["-o", "junit_family=xunit1", f"--junitxml={report}"]
        words = [sys.executable, "-m", "pytest", "-m", "cluster", *kind, *tests]
        ended = subprocess.run(words, check=False, stdout=sys.stderr)  # noqa: S603 — our own tests
        return (recorded(report) if report.exists() else {}), ended.returncode


def main() -> int:
    """Run the suite; exit status 1 if a target is missed or a test failed."""
    parser = argparse.ArgumentParser(prog="make bench-first-day", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures file here")
    parser.add_argument("--peer", type=Path, help="run a fleet of vLLM, of this environment")
    asked = parser.parse_args()
    rows = (*FIGURES, *others.ROWS) if asked.peer else FIGURES
    figures = Figures(rows, "make bench-first-day")
    found, failed = run_tests(TESTS)
    for name, value in found.items():
        figures.put(name, value)
    figures.put("crd_bytes", max(file.stat().st_size for file in CRDS.glob("*.yaml")))
    if asked.peer:
        others.measure(asked.peer, figures)
    return conclude(figures, asked.json) or int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
