"""mutmut's `run`, in the current folder, with one collection of the tests for all mutants.

    python -m argosy_bench.mutation.run --max-children=N

mutmut forks a process for each mutant. By itself each of them collects its tests anew and runs them
in any order: for a function that many tests enter, both take longer than the test that fails. Here
the fork server keeps the session of one collection. A mutant's process runs those of its items that
enter the changed function, the most telling first, until one fails (`Order`).
"""

import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.config import _prepareconfig
from mutmut.__main__ import cli
from mutmut.mutation import trampoline
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.utils.file_utils import change_cwd
from mutmut.workers import isolation

_NOTICED = Path("noticed.tsv")
"""Under `mutants/`: a line for each noticed mutant, its function and the test that failed."""


class Order:
    """Which test probably notices a change of a function.

    A test that noticed another change of it comes first, then one that noticed a change of its
    module, then the test that enters the fewest functions, then the fastest.
    """

    def __init__(self) -> None:
        entered = state().tests_by_mangled_function_name
        self._breadth = Counter(test for tests in entered.values() for test in tests)

    def best_first(self, tests: Iterable[str], function: str) -> list[str]:
        of_function, of_module = self._noticed(function)
        durations = state().duration_by_test
        return sorted(
            tests,
            key=lambda test: (
                -of_function[test], -of_module[test], self._breadth[test], durations[test]
            ),
        )  # fmt: skip

    def _noticed(self, function: str) -> tuple[Counter[str], Counter[str]]:
        """How often each test noticed a change of the function, and of its module."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        if _NOTICED.exists():
            for line in _NOTICED.read_text().splitlines():
                where, _, test = line.partition("\t")
                counts[where][test] += 1
                counts[_module_of(where)][test] += 1
        return counts[function], counts[_module_of(function)]


class CollectedOnce(PytestRunner):
    """Runs tests out of one session."""

    _session: pytest.Session | None = None
    _why = ""

    def warm_up(self) -> None:
        """The processes that are forked go on with this session."""
        self._begin()

    def _begin(self) -> pytest.Session:
        """Begin a session and collect the tests."""
        # A changed function asks at each call which mutant is meant: not the environment, then.
        setattr(trampoline, trampoline.get_mutant_under_test.__name__, _mutant)
        with change_cwd("mutants"):
            # No captured output: files that one process opened would be shared by its forks.
            config = _prepareconfig(
                ["--rootdir=.", "--tb=short", "-q", "-x", "--capture=no",
                 *self._pytest_add_cli_args, *self._pytest_add_cli_args_test_selection]
            )  # fmt: skip
            config._do_configure()
            config.pluginmanager.register(self)
            self._session = pytest.Session.from_config(config)
            config.hook.pytest_sessionstart(session=self._session)
            config.hook.pytest_collection(session=self._session)
        self._items = {item.nodeid: item for item in self._session.items}
        self._order = Order()
        return self._session

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        """0 if all tests pass, 1 as soon as one fails.

        Without a mutant they run in the same way, so a test that fails only here ends the run. It
        would seem to notice every mutant.
        """
        session = self._session or self._begin()
        tests = set(tests) or self._items.keys()
        if not tests <= self._items.keys():
            return super().run_tests(mutant_name=mutant_name, tests=tests)
        function = (mutant_name or "").partition("__mutmut_")[0]
        with change_cwd("mutants"):
            items = [self._items[test] for test in self._order.best_first(tests, function)]
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    self._fails(item, function)
                    return 1
        return 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep why a test failed; pytest's own summary never comes."""
        if report.failed:
            self._why = report.longreprtext

    def _fails(self, item: pytest.Item, function: str) -> None:
        if not function:  # mutmut keeps stdout
            os.write(2, f"fails without a mutant: {item.nodeid}\n{self._why}\n".encode())
            return
        with _NOTICED.open("a") as noticed:
            noticed.write(f"{function}\t{item.nodeid}\n")


def _mutant() -> str:
    return trampoline._mutant_under_test or ""


def _module_of(function: str) -> str:
    return function.rpartition(".")[0]


if __name__ == "__main__":
    # A shell starts a background job with SIGINT ignored, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    setattr(isolation, PytestRunner.__name__, CollectedOnce)
    cli(["run", *sys.argv[1:]])
