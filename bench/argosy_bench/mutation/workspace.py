"""A copy of the code for mutmut, and mutmut's results in it.

mutmut asks that a module's path is its name, so the packages lie on the root of the copy. Files
keep their time while their content does not change: mutmut makes the mutants of changed functions
anew and leaves the others' results.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_SHARED = (
    "bench", "charts", "crds", "designs", "docs", "examples", "local", "requirements", "tests",
)  # fmt: skip
"""Folders that tests read beside the packages under test, and the tests."""
_GENERATE = """
import mutmut.__main__ as mutmut
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.create_mutants(2)
"""
_RUN = (sys.executable, "-m", "argosy_bench.mutation.run")
_ENDS_S = 30.0
"""As long may mutmut take to end after it was asked to."""
_DIFFS = """
import json, sys
from mutmut.mutation.diff_apply import get_diff_for_mutant
asked = json.load(sys.stdin)
json.dump({name: get_diff_for_mutant(name, path=path) for name, path in asked}, sys.stdout)
"""

PASSED, INTERRUPTED, NO_TESTS, SKIPPED = 0, 2, 33, 34
"""Codes of mutmut, besides those of pytest."""
TIMED_OUT = frozenset({24, -24, 36, 152, 255})
"""Codes of mutmut for tests that did not end, by the clock or by the processor's time."""


class Workspace:
    """The copy for one program, under build/mutants."""

    def __init__(
        self,
        name: str,
        *,
        packages: tuple[str, ...],
        mutate: list[str],
        tests: tuple[str, ...],
        torch: bool = False,
    ) -> None:
        """`packages` are folders from the root, `mutate` patterns of files, `tests` folders.

        `torch`: also tests with this mark are run. They take seconds to begin.
        """
        self.folder = _ROOT / "build" / "mutants" / name
        self._packages = packages
        self._mutate = mutate
        self._tests = tests
        left_out = ["cluster", "helm", "slow", "unmutated", *([] if torch else ["torch"])]
        self._marks = " and ".join(f"not {mark}" for mark in left_out)

    def prepare(self, *, fresh: bool) -> None:
        """Copy what changed, and make the mutants. New results are asked for where tests changed.

        `fresh` forgets all results.
        """
        if fresh:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        changed = list(self._copy())
        write_settings(self.folder, self._settings())
        if any(path.parts[0] != "docs" for path in changed):
            forget_stats(self.folder / "mutants" / "mutmut-stats.json", changed)
            shutil.rmtree(self.folder / "mutants" / "tests", ignore_errors=True)
        generate = [sys.executable, "-c", _GENERATE]
        done = subprocess.run(generate, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"mutmut made no mutants of {self.folder.name}: {done.stderr}")
        if any(path.parts[0] == "tests" for path in changed):
            self.edit(lambda _, code: None if code in (PASSED, NO_TESTS) else code)

    def run(self, *, seconds: float, processes: int) -> bool:
        """Run the mutants that have no result yet; False if the time ended before.

        mutmut has a session of its own, so Ctrl-C does not reach it: whatever ends the wait ends
        mutmut and its children too. mutmut keeps what was run.
        """
        command = [*_RUN, f"--max-children={processes}"]
        with (
            _signals_held() as release,
            subprocess.Popen(
                command, cwd=self.folder, start_new_session=True, preexec_fn=release
            ) as running,
        ):
            try:
                release()
                code = running.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                _end(running)
                return False
            except BaseException:
                _end(running)
                raise
        if code:
            raise RuntimeError(f"mutmut ended with {code}: do the tests pass without mutants?")
        return True

    def results(self) -> dict[str, int | None]:
        """By name of the mutant: mutmut's code, None if it was not run."""
        found: dict[str, int | None] = {}
        for path in sorted(self.folder.glob("mutants/**/*.py.meta")):
            found |= json.loads(path.read_text())["exit_code_by_key"]
        return found

    def edit(self, change: Callable[[str, int | None], int | None]) -> None:
        """Replace each result by `change(name, code)`."""
        for path in self.folder.glob("mutants/**/*.py.meta"):
            meta = json.loads(path.read_text())
            codes = meta["exit_code_by_key"]
            meta["exit_code_by_key"] = {name: change(name, codes[name]) for name in codes}
            path.write_text(json.dumps(meta, indent=4))

    def diffs(self, mutants: Iterable[str]) -> dict[str, str]:
        """What each mutant changes, as a unified diff of its function."""
        asked = []
        for name in mutants:
            module = name.rpartition(".")[0].replace(".", "/")
            path = (
                f"{module}.py"
                if (self.folder / f"{module}.py").exists()
                else f"{module}/__init__.py"
            )
            asked.append((name, path))
        done = subprocess.run(
            [sys.executable, "-c", _DIFFS],
            cwd=self.folder, input=json.dumps(asked), capture_output=True, text=True, check=True,
        )  # fmt: skip
        found: dict[str, str] = json.loads(done.stdout)
        return found

    def _copy(self) -> Iterator[Path]:
        """Bring the copy up to date; the files that changed, from the copy's root."""
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", *_SHARED,
             *self._packages],
            cwd=_ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        # Git ignores what is compiled. Without it each copy would compile the native step anew.
        built = (p for package in self._packages for p in (_ROOT / package).rglob("native/argosy*"))
        listed += [path.relative_to(_ROOT).as_posix() for path in built]
        kept = set()
        for name in listed:
            source, target = _ROOT / name, self._place(name)
            if not source.is_file():
                continue
            kept.add(target)
            content, at = source.read_bytes(), self.folder / target
            if not at.exists() or at.read_bytes() != content:
                at.parent.mkdir(parents=True, exist_ok=True)
                at.write_bytes(content)
                yield target
        for at in self.folder.rglob("*.py"):
            target = at.relative_to(self.folder)
            if target.parts[0] != "mutants" and target not in kept:
                at.unlink()
                (self.folder / "mutants" / target).unlink(missing_ok=True)
                (self.folder / "mutants" / f"{target}.meta").unlink(missing_ok=True)
                yield target

    def _place(self, name: str) -> Path:
        for package in self._packages:
            if name.startswith(f"{package}/"):
                return Path(Path(package).name, Path(name).relative_to(package))
        return Path(name)

    def _settings(self) -> str:
        whole = tomllib.loads((_ROOT / "pyproject.toml").read_text())
        pytest = whole["tool"]["pytest"]["ini_options"]
        tables = {
            "tool.mutmut": {
                "source_paths": [Path(package).name for package in self._packages],
                "only_mutate": self._mutate,
                # Words of log lines are read by people only; `strict=` guards against our own bugs.
                "do_not_mutate_patterns": [r"\blog\.\w+\(", r"strict=True", r"^\s*assert "],
                "also_copy": [name for name in _SHARED if name != "tests"],
                "pytest_add_cli_args_test_selection": [
                    "-m", self._marks, *self._tests,
                ],
                "pytest_add_cli_args": [
                    "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=mutants",
                ],
                "process_isolation": "forkserver",
                "timeout_multiplier": 40.0,
                "use_git_change_detection": False,
                "on_dependency_change": "ignore",
            },
            "tool.pytest.ini_options": {**pytest, "pythonpath": [".", "bench"]},
        }  # fmt: skip
        return "\n".join(
            f"[{table}]\n"
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in rows.items())
            for table, rows in tables.items()
        )


@contextlib.contextmanager
def _signals_held() -> Iterator[Callable[[], object]]:
    """SIGINT and SIGTERM wait until the block ends or calls what it is given.

    One that came while `Popen` works would leave the new process behind, known to nobody.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    release = partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
    try:
        yield release
    finally:
        release()


def _end(running: subprocess.Popen[bytes]) -> None:
    """End the leader of a session, and all that it started."""
    try:
        running.send_signal(signal.SIGINT)
        running.wait(timeout=_ENDS_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


def write_settings(folder: Path, settings: str) -> None:
    """Write mutmut's settings. If they are others, forget which test enters which function, and
    the copies of files without mutants.

    mutmut keeps the settings with that knowledge. With other settings than those it would forget
    all results, and run the mutants that were left out. A file that was to have no mutants would
    never get some, because its copy is as new as the file.
    """
    at = folder / "pyproject.toml"
    if at.exists() and at.read_text() == settings:
        return
    at.write_text(settings)
    (folder / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
    for path in (folder / "mutants").rglob("*.py"):
        if not path.with_name(f"{path.name}.meta").exists():
            path.unlink()


def forget_stats(at: Path, changed: Iterable[Path]) -> None:
    """Have mutmut ask anew which test enters which function.

    Of all tests it takes minutes, so where only test files changed their tests are forgotten:
    mutmut asks those that it does not know.
    """
    files = {path.as_posix() for path in changed}
    if not all(fnmatchcase(file, "tests/*/test_*.py") for file in files):
        at.unlink(missing_ok=True)
    if not at.exists():
        return
    stats = json.loads(at.read_text())
    took, entered = stats["duration_by_test"], stats["tests_by_mangled_function_name"]
    stats["duration_by_test"] = {t: s for t, s in took.items() if t.partition("::")[0] not in files}
    stats["tests_by_mangled_function_name"] = {
        function: [t for t in tests if t in stats["duration_by_test"]]
        for function, tests in entered.items()
    }
    at.write_text(json.dumps(stats))


def commit() -> str:
    """The newest commit of the working tree, in seven digits."""
    done = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"],
        cwd=_ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()
