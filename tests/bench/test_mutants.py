"""The table of areas, the choice of mutants, and how a survivor is read from mutmut's diff."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from argosy_bench.mutation.page import Outcome, page
from argosy_bench.mutation.record import read_record, write_record
from argosy_bench.mutation.survivors import (
    Accepted,
    Survivor,
    function_of,
    read_accepted,
    survivor_of,
)
from argosy_bench.mutation.workspace import forget_stats
from argosy_bench.suites.mutants import AREAS, PROGRAMS, area_of, chosen

DIFF = """--- argosy/x.py
+++ argosy/x.py
@@ -1,3 +1,3 @@
 def fold(self, n):
-    return n + 1
+    return n - 1
"""


@pytest.mark.parametrize(
    ("mutant", "function"),
    [
        ("argosy_operator.core.plan.x_plan__mutmut_3", "argosy_operator.core.plan.plan"),
        ("argosy_gateway.wire.sse.xǁScanǁfeed__mutmut_12", "argosy_gateway.wire.sse.Scan.feed"),
    ],
)  # fmt: skip
def test_a_mutants_name_tells_its_function(mutant, function):
    assert function_of(mutant) == function


def test_a_survivor_names_file_line_and_both_texts(tmp_path):
    source = tmp_path / "x.py"
    function = "def other(n):\n    return n + 1\n\n\n"
    method = "class Fold:\n    def fold(self, n):\n        return n + 1\n"
    source.write_text(function + method)
    survivor = survivor_of("argosy.x.xǁFoldǁfold__mutmut_1", DIFF, source, tmp_path)
    assert survivor == Survivor("argosy.x.Fold.fold", "x.py", 7, "return n + 1", "return n - 1")


def test_an_accepted_row_covers_only_its_function_and_change():
    row = Accepted("argosy.x.Fold.*", r"\+ 1 => .* - 1", "equivalent: n is never read")
    survivor = Survivor("argosy.x.Fold.fold", "x.py", 7, "return n + 1", "return n - 1")
    assert row.covers(survivor)
    assert not row.covers(Survivor("argosy.x.fold", "x.py", 7, "return n + 1", "return n - 1"))
    assert not row.covers(Survivor("argosy.x.Fold.fold", "x.py", 7, "return n", "return None"))


def test_every_accepted_survivor_has_a_reason_that_begins_with_its_kind():
    kinds = ("equivalent: ", "speed only: ", "message: ", "cluster test: ")
    for row in read_accepted():
        assert row.reason.startswith(kinds), row


def test_the_law_is_measured_apart_from_the_rest_of_the_core():
    gates = "argosy_operator.core.scaling.pace.gates.f"
    assert area_of(gates, "law").name == "operator_scaling"
    assert area_of(gates, "operator") is None
    assert area_of("argosy_operator.core.plan.plan", "operator").name == "operator_plan"
    assert area_of("argosy_operator.shell.loop.round_of", "operator") is None
    assert area_of("argosy_gateway.wire.sse.StreamScan.feed", "gateway").name == "gateway_sse"
    assert area_of("argosy_gateway.wire.openai.read", "gateway").name == "gateway_wire"
    assert {area.program for area in AREAS} == {program.name for program in PROGRAMS}


def test_areas_with_a_bound_are_run_whole_and_the_others_as_a_fixed_sample():
    law = [f"argosy_operator.core.scaling.law.x_f__mutmut_{n}" for n in range(1000)]
    plan = [f"argosy_operator.core.plan.x_plan__mutmut_{n}" for n in range(1000)]
    assert chosen(plan, "operator", None) == set(plan)
    picked = chosen(law, "law", None)
    assert picked == chosen(law[::-1], "law", None)
    assert len(picked) == 300
    assert chosen(law, "law", "*.law.f") == set(law)
    assert len(chosen(plan, "operator", None, sample=100)) == 100
    assert len(chosen(law, "law", None, sample=100)) == 100


def test_the_page_counts_accepted_survivors_as_survivors_and_lists_the_others_by_file():
    kept = Survivor("argosy.x.Fold.fold", "x.py", 7, "return n + 1", "return n - 1")
    other = Survivor("argosy.x.g", "x.py", 2, "return n + 1", "return n + 2")
    rows = [Accepted("argosy.x.Fold.*", "- 1", "equivalent: n is never read")]
    machine = {"processor": "P", "cores": 2, "python": "3.11", "date": "2026-01-01"}
    outcome = Outcome(20, 10, [kept, other], "2026-01-01 abc1234")
    text = page({"fold": outcome}, {"fold": 0.85}, rows, machine)
    assert "| fold | 20 | 10 | 8 | 0.800 | 0.85 | 2026-01-01 abc1234 |" in text
    assert "- equivalent: n is never read (1)\n  - `x.Fold.fold`" in text
    assert "### x.py\n\n```text\n2: return n + 2\n```" in text
    assert "return n - 1" not in text


def test_a_record_gives_back_what_was_measured(tmp_path):
    survivor = Survivor("argosy.x.Fold.fold", "x.py", 7, 'return "ü"', "return None")
    outcomes = {"fold": Outcome(20, 10, [survivor], "2026-01-01 abc1234"), "g": Outcome(3, 3)}
    at = tmp_path / "measured.json"
    assert read_record(at) == {}
    write_record(outcomes, at)
    assert read_record(at) == outcomes


STATS = {
    "duration_by_test": {"tests/a/test_x.py::one": 1.0, "tests/a/test_y.py::two[::]": 2.0},
    "tests_by_mangled_function_name": {
        "m.x_f": ["tests/a/test_x.py::one", "tests/a/test_y.py::two[::]"]
    },
}


def test_only_the_tests_of_changed_files_are_asked_anew_what_they_enter(tmp_path):
    at = tmp_path / "stats.json"
    at.write_text(json.dumps(STATS))
    forget_stats(at, [Path("tests/a/test_y.py"), Path("tests/a/test_new.py")])
    assert json.loads(at.read_text()) == {
        "duration_by_test": {"tests/a/test_x.py::one": 1.0},
        "tests_by_mangled_function_name": {"m.x_f": ["tests/a/test_x.py::one"]},
    }


@pytest.mark.parametrize("changed", ["tests/support/api.py", "tests/conftest.py", "pkg/test_m.py"])
def test_all_tests_are_asked_anew_if_more_than_tests_changed(tmp_path, changed):
    at = tmp_path / "stats.json"
    at.write_text(json.dumps(STATS))
    forget_stats(at, [Path("tests/a/test_y.py"), Path(changed)])
    assert not at.exists()


PROJECT = """
[tool.mutmut]
source_paths = ["pkg"]
pytest_add_cli_args_test_selection = ["tests"]
process_isolation = "forkserver"
use_git_change_detection = false
on_dependency_change = "ignore"
[tool.pytest.ini_options]
pythonpath = ["."]
"""
PACKAGE = """
import logging

def added(a, b):
    logging.warning("sum")
    return a + b
"""


def mutate(folder: Path, tests: str) -> tuple[str, dict[str, int]]:
    """Run the mutants of PACKAGE on these tests: what stderr has, and mutmut's codes."""
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text(PACKAGE)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text("from pkg import added\n" + tests)
    (folder / "pyproject.toml").write_text(PROJECT)
    done = subprocess.run(
        [sys.executable, "-m", "argosy_bench.mutation.run", "--max-children=1"],
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    meta = folder / "mutants" / "pkg" / "__init__.py.meta"
    return done.stderr, json.loads(meta.read_text())["exit_code_by_key"]


def test_a_test_that_reads_the_log_notices_only_what_it_checks(tmp_path):
    tests = "def test_it(caplog):\n    added(1, 1)\n    assert 'sum' in caplog.messages\n"
    _, codes = mutate(tmp_path, tests)
    assert len(codes) == 4
    assert sorted(codes.values()) == [0, 1, 1, 1], "only the minus survives"


def test_a_test_that_fails_where_mutants_run_ends_the_run(tmp_path):
    reads = "assert pytestconfig.option.capture != 'no'"  # which only mutants' processes have
    text, codes = mutate(tmp_path, f"def test_it(pytestconfig):\n    added(1, 1)\n    {reads}\n")
    assert "fails without a mutant: tests/test_it.py::test_it" in text
    assert set(codes.values()) == {None}
