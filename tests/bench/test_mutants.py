"""The table of areas, the choice of mutants, and how a survivor is read from mutmut's diff."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from argosy_bench.mutation import workspace
from argosy_bench.mutation.page import Outcome, page
from argosy_bench.mutation.record import read_record, write_record
from argosy_bench.mutation.survivors import (
    Accepted,
    Survivor,
    function_of,
    read_accepted,
    survivor_of,
)
from argosy_bench.mutation.workspace import NO_TESTS, SKIPPED, forget_stats, write_settings
from argosy_bench.suites import mutants
from argosy_bench.suites.mutants import (
    AREAS,
    PROGRAMS,
    _code_before,
    area_of,
    chosen,
    whole,
    workspace_of,
)

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


@pytest.mark.parametrize(
    ("function", "program", "area"),
    [
        ("argosy_operator.core.scaling.pace.shift.shifted", "law", "law_shift"),
        ("argosy_operator.core.gpu_types.step.choose", "law", "operator_gpu_types"),
        ("argosy_gateway.queue.queue.Queue.admit", "gateway", "gateway_hold"),
        ("argosy_gateway.queue.line.Line.add", "gateway", "gateway_queue"),
        ("argosy_gateway.relay.fleet.Fleet.groups", "gateway", "gateway_hold"),
        ("argosy_gateway.server.admin.load", "gateway", "gateway_load"),
        ("argosy_gateway.pods.settings.follow_settings", "gateway", "gateway_settings"),
        ("argosy_operator.render.gateway.objects", "operator", "operator_settings"),
        ("argosy_operator.render.models.fetch.job", "operator", "operator_models"),
        ("argosy_operator.core.models.step.fetch_model", "operator", "operator_models"),
    ],
)
def test_what_belongs_to_two_areas_counts_in_the_first(function, program, area):
    assert area_of(function, program).name == area


def test_the_law_is_measured_apart_from_the_rest_of_the_core():
    gates = "argosy_operator.core.scaling.pace.gates.f"
    assert area_of(gates, "law").name == "law_pace"
    assert area_of(gates, "operator") is None
    assert area_of("argosy_operator.core.plan.plan", "operator").name == "operator_plan"
    assert area_of("argosy_operator.shell.loop.round_of", "operator") is None
    assert area_of("argosy_gateway.wire.sse.StreamScan.feed", "gateway").name == "gateway_sse"
    assert area_of("argosy_gateway.wire.openai.read", "gateway").name == "gateway_wire"
    assert area_of("argosy_operator.sim.inbox.of", "simulator").name == "sim_world"
    assert {area.program for area in AREAS} == {program.name for program in PROGRAMS}


def test_areas_with_a_bound_are_run_whole_and_the_others_as_a_fixed_sample():
    steps = [f"argosy_engine.transfer.nixl.agent.x_f__mutmut_{n}" for n in range(1000)]
    plan = [f"argosy_operator.core.plan.x_plan__mutmut_{n}" for n in range(1000)]
    assert chosen(plan, "operator", None) == set(plan)
    picked = chosen(steps, "engine_ends", None)
    assert picked == chosen(steps[::-1], "engine_ends", None)
    assert len(picked) == 300
    assert chosen(steps, "engine_ends", "*.agent.f") == set(steps)
    assert len(chosen(plan, "operator", None, sample=100)) == 100
    assert len(chosen(steps, "engine_ends", None, sample=100)) == 100


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


def test_a_mutant_that_ran_out_of_time_is_run_again_and_counts_neither_way():
    """On a busy machine tests run out of time that notice nothing."""
    chosen_, codes = {"m.x_f__mutmut_1"}, (0, 1, 24, 36, 152, None)
    asked = [_code_before(chosen_, "m.x_f__mutmut_1", code) for code in codes]
    assert asked == [0, 1, None, None, None, None]
    assert _code_before(chosen_, "m.x_f__mutmut_2", 36) == SKIPPED


def test_survivors_of_the_sample_are_run_again_where_that_is_asked_for():
    sample = {"m.x_f__mutmut_1"}
    for code, after in ((0, None), (NO_TESTS, None), (1, 1)):
        assert _code_before(sample, "m.x_f__mutmut_1", code) == code
        assert _code_before(sample, "m.x_f__mutmut_1", code, again=True) == after
        assert _code_before(sample, "m.x_f__mutmut_2", code, again=True) == code


def test_a_share_that_some_tests_gave_is_shown_as_a_lower_bound():
    machine = {"processor": "P", "cores": 2, "python": "3.11", "date": "2026-01-01"}
    survivor = Survivor("argosy.x.g", "x.py", 2, "return n + 1", "return n + 2")
    outcomes = {
        "part": Outcome(20, 10, [survivor], "at", least=True),
        "all": Outcome(10, 10, [], "at"),
    }
    text = page(outcomes, {"part": 0.85, "all": 0.85}, [], machine)
    assert "| part | 20 | 10 | 9 | ≥ 0.900 | 0.85 | at |" in text
    assert "| all | 10 | 10 | 10 | 1.000 | 0.85 | at |" in text
    assert "| **all with a bound** | 30 | 20 | 19 | ≥ 0.950 | 0.85 |  |" in text


def test_a_workspace_runs_all_tests_of_its_program_or_those_that_are_named():
    law = next(program for program in PROGRAMS if program.name == "law")
    named = workspace_of(law, ["tests/scaling/test_pools.py"])
    assert '"tests/scaling/test_pools.py"]' in named._settings()
    assert '"tests/core", "tests/scaling"]' in workspace_of(law)._settings()


def test_tests_that_need_torch_run_where_the_program_asks_for_them():
    marks = {program.name: "not torch" in workspace_of(program)._settings() for program in PROGRAMS}
    assert not marks["engine_torch"]
    assert all(marks[name] for name in ("operator", "engine_http", "gateway"))


def test_the_compiled_native_step_is_part_of_the_copy(tmp_path, monkeypatch):
    root = tmp_path / "root"
    native = root / "engine" / "argosy_engine" / "native"
    native.mkdir(parents=True)
    (native / "argosy_base.so").write_bytes(b"code")
    subprocess.run(["git", "init", "-q", root], check=True)
    (root / ".gitignore").write_text("*.so\n")
    monkeypatch.setattr(workspace, "_ROOT", root)
    copy = workspace.Workspace("x", packages=("engine/argosy_engine",), mutate=[], tests=())
    assert [path.as_posix() for path in copy._copy()] == ["argosy_engine/native/argosy_base.so"]
    assert (copy.folder / "argosy_engine" / "native" / "argosy_base.so").read_bytes() == b"code"
    assert list(copy._copy()) == []


def test_a_record_gives_back_what_was_measured(tmp_path):
    survivor = Survivor("argosy.x.Fold.fold", "x.py", 7, 'return "ü"', "return None")
    outcomes = {
        "fold": Outcome(20, 10, [survivor], "2026-01-01 abc1234"),
        "g": Outcome(3, 3, least=True),
    }
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
    write_settings(folder, PROJECT)
    return run(folder)


RUN = [sys.executable, "-m", "argosy_bench.mutation.run", "--max-children=1"]


def run(folder: Path) -> tuple[str, dict[str, int]]:
    done = subprocess.run(RUN, cwd=folder, capture_output=True, text=True, timeout=120)
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


def test_with_other_tests_the_mutants_that_were_left_out_stay_so(tmp_path):
    mutate(tmp_path, "def test_it():\n    assert added(1, 1) == 2\n")
    meta = tmp_path / "mutants" / "pkg" / "__init__.py.meta"
    whole = json.loads(meta.read_text())
    whole["exit_code_by_key"] = dict.fromkeys(whole["exit_code_by_key"], SKIPPED)
    meta.write_text(json.dumps(whole))
    write_settings(tmp_path, PROJECT.replace('["tests"]', '["tests/test_it.py"]'))
    assert set(run(tmp_path)[1].values()) == {SKIPPED}


def test_files_of_an_area_that_is_new_get_mutants(tmp_path):
    only = 'process_isolation = "forkserver"\nonly_mutate = ["pkg/other.py"]'
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "other.py").write_text("def one():\n    return 1\n")
    (tmp_path / "pkg" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "tests").mkdir()
    text = "from pkg import added\ndef test_it():\n    assert added(1, 1) == 2\n"
    (tmp_path / "tests" / "test_it.py").write_text(text)
    meta = tmp_path / "mutants" / "pkg" / "__init__.py.meta"
    write_settings(tmp_path, PROJECT.replace('process_isolation = "forkserver"', only))
    subprocess.run(RUN, cwd=tmp_path, capture_output=True, timeout=120)
    assert not meta.exists()
    write_settings(tmp_path, PROJECT)
    assert len(run(tmp_path)[1]) == 4


def test_an_area_that_the_time_cut_short_is_not_written_and_a_sentence_says_so(capsys):
    outcomes = {"all": Outcome(20, 10), "part": Outcome(20, 7)}
    assert whole(outcomes, {"part": 3, "none": 1}) == {"all": outcomes["all"]}
    assert capsys.readouterr().err == (
        "part is not written: the time ended with 3 mutants left. Run it again with a larger "
        "--minutes, or a smaller --sample\n"
        "none is not written: the time ended with 1 mutant left. Run it again with a larger "
        "--minutes, or a smaller --sample\n"
    )
    assert whole(outcomes, {}) == outcomes


LAST = "argosy_operator.core.plan.x_plan__mutmut_2"


class Ran:
    """A workspace whose run ended with these codes."""

    def __init__(self, codes: dict[str, int | None]) -> None:
        self.results = lambda: codes

    def prepare(self, *, fresh: bool) -> None: ...

    def edit(self, change: object) -> None: ...

    def run(self, *, seconds: float, processes: int) -> None: ...

    def diffs(self, names: object) -> dict[str, str]:
        return {}


@pytest.mark.parametrize(("last", "written"), [(1, True), (36, True), (None, False), (2, False)])
def test_rows_are_of_runs_that_ended_by_themselves(last, written, monkeypatch, capsys):
    """Neither `--write` nor the exit status hides that a mutant was left."""
    codes = {"argosy_operator.core.plan.x_plan__mutmut_1": 1, LAST: last}
    monkeypatch.setattr(mutants, "workspace_of", lambda *_: Ran(codes))
    rows = dict[str, Outcome]()
    monkeypatch.setattr(mutants, "write", lambda outcomes, _: rows.update(outcomes))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["mutants", "--program", "operator", "--write"])
    assert mutants.main() == int(not written)
    assert set(rows) == ({"operator_plan"} if written else set())
    assert ("operator_plan is not written" in capsys.readouterr().err) != written


WAITS = """
import os, signal, sys
if os.fork():
    signal.pause()
os.write(1, b"both run\\n")
while True:
    signal.pause()
"""
DRIVER = """
import os, subprocess, sys
from pathlib import Path
from argosy_bench.mutation import workspace
from argosy_bench.suites import mutants
workspace._RUN = (sys.executable, "-c", sys.argv[1])
workspace._ENDS_S = 0.2
signal_at_start = int(sys.argv[3])
sys.argv[1:] = ["--program", "operator", "--minutes", sys.argv[2]]
class Interrupted(subprocess.Popen):
    def __init__(self, *words, **settings):
        super().__init__(*words, **settings)
        os.kill(os.getpid(), signal_at_start)
class Waiting(workspace.Workspace):
    folder = Path(".")
    def __init__(self): pass
    def prepare(self, *, fresh):
        if signal_at_start:
            subprocess.Popen = Interrupted
    def results(self): return {"argosy_operator.core.plan.x_plan__mutmut_1": None}
    def edit(self, change): pass
    def diffs(self, names): return {}
mutants.workspace_of = lambda *_: Waiting()
sys.exit(mutants.main())
"""


@contextlib.contextmanager
def driven(where: Path, *, minutes: float = 9, signal_at_start: int = 0):
    """`make mutants` over two processes that wait for ever. On exit they must have ended."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, WAITS, str(minutes), str(signal_at_start)],
        cwd=where, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        # A test run that a shell started in the background ignores the signal, as do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert driver.stdout is not None
    with driver:
        yield driver
        driver.stdout.read()  # ends when no process has it any more


@pytest.mark.parametrize(
    ("sent", "minutes"), [(signal.SIGINT, 9), (signal.SIGTERM, 9), (None, 0.001)]
)
def test_whatever_ends_a_run_ends_its_processes(sent, minutes, tmp_path):
    """They have a session of their own, so a signal from the keyboard does not reach them."""
    with driven(tmp_path, minutes=minutes) as driver:
        if sent is not None:
            assert driver.stdout.readline() == b"both run\n"
            os.kill(driver.pid, sent)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_while_the_processes_start_ends_them_too(sent, tmp_path):
    """On a busy machine they ran before `Popen` had returned, and nobody knew of them."""
    with driven(tmp_path, signal_at_start=sent):
        pass


def test_a_part_of_an_area_is_not_written_as_a_row(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["mutants", "--only", "argosy_operator.core.plan.*", "--write"]
    )
    with pytest.raises(SystemExit):
        mutants.main()
    assert "leave out --write" in capsys.readouterr().err
