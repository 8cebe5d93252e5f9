"""What a team meets on the first day, as counts that should be none.

Each figure but the size of the CRDs is measured by a test on the one-machine Kubernetes, which
hands it to `record_property`. This part runs those tests and reads the figures from pytest's
report. A test that fails may still have measured its figure.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from local.figures import Figure, Figures, Target

NONE = Target("==", 0)
FIGURES = (
    Figure("rename_errors", target=NONE, digits=0),
    Figure("rename_requests", digits=0),
    Figure("pods_restarted_by_operator_upgrade", target=NONE, digits=0),
    Figure("pods_restarted_by_slo_edit", target=NONE, digits=0),
    Figure("crd_bytes", target=Target("<=", 262_143), digits=0),
    Figure("wait_ready_lies", target=NONE, digits=0),
    Figure("wait_ready_edits", digits=0),
    Figure("tests_failed", target=NONE, digits=0),
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
        ended = subprocess.run(words, check=False, stdout=sys.stderr)
        return (recorded(report) if report.exists() else {}), ended.returncode


def measure(figures: Figures) -> None:
    """Put every figure. A test that fails is one of them."""
    figures.declare(FIGURES)
    found, failed = run_tests(TESTS)
    for name, value in found.items():
        figures.put(name, value)
    figures.put("crd_bytes", max(file.stat().st_size for file in CRDS.glob("*.yaml")))
    figures.put("tests_failed", failed > 0)
