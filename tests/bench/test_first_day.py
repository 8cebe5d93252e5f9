"""Figures that tests hand to pytest's report become the figures file of `make bench-cluster`."""

import re
from pathlib import Path

from argosy_bench.cluster import first_day

ROOT = Path(__file__).parents[2]
MEASURES = """
def test_one(record_property):
    record_property("wait_ready_lies", 3)
    record_property("something_else", "words")
    assert False
"""


def test_a_figure_is_read_also_of_a_test_that_fails(tmp_path, capfd):
    tests = tmp_path / "test_measures.py"
    tests.write_text(f"import pytest\npytestmark = pytest.mark.cluster\n{MEASURES}")
    found, status = first_day.run_tests([str(tests)])
    assert (found, status) == ({"wait_ready_lies": 3.0}, 1)
    assert "1 failed" in capfd.readouterr().err


def test_every_figure_is_recorded_by_a_test_that_the_suite_runs():
    tests = [ROOT / test for test in first_day.TESTS]
    recorded = {
        name for test in tests for name in re.findall(r'record_property\("(\w+)"', test.read_text())
    }
    assert recorded >= {row.name for row in first_day.FIGURES} - {"crd_bytes", "tests_failed"}
