"""Fixtures that every folder of tests may use, how hypothesis draws, and who sees a GPU."""

import os
from secrets import randbelow
from typing import Any

import pytest
from hypothesis import Phase, settings

from local.cluster.fetch import use
from tests.support.cluster import cluster, namespace

__all__ = ["cluster", "namespace"]

pytest_plugins = ("tests.support.skips",)

# Tests start `ip` and `nft`, which the preflight may have unpacked into the cache.
use()

IN_CI = bool(os.environ.get("CI"))

# Machines are shared: an example may take long without being slow. Where hypothesis sees a CI it
# would draw the same examples in every run; ours are new, so a run needs fewer of them.
# To explain a failure, hypothesis traces each line: a long property then ends at its time limit,
# and the failure that it found is not printed.
PHASES = [phase for phase in Phase if phase is not Phase.explain]
settings.register_profile(
    "ci", max_examples=50, derandomize=False, print_blob=True, deadline=None, phases=PHASES
)
settings.register_profile("default", deadline=None, phases=PHASES)
# `make deflake`: what one example in some thousands shows, before a run in CI meets it.
settings.register_profile("deflake", max_examples=2000, print_blob=True, deadline=None)
settings.load_profile("ci" if IN_CI else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--gpu", action="store_true", help="let the tests see a GPU: those of tests/engine_gpu"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPU, and draw the seed of a run in CI, before hypothesis reads the option.

    Tests say what a CPU computes, and so do the engines that they start. CUDA reads the variable
    when it is first asked for devices. Elsewhere than in CI failing examples are kept in
    `.hypothesis`, which a given seed would switch off.
    """
    if not config.getoption("--gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if IN_CI and config.getoption("--hypothesis-seed") is None:
        given = getattr(config, "workerinput", {})
        config.option.hypothesis_seed = given.get("seed") or str(randbelow(2**32))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the seed to a process of xdist."""
    node.workerinput["seed"] = node.config.getoption("--hypothesis-seed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadscope` one process runs all tests of a folder, in their order: cluster tests
    of a folder share what they install. Folders share nothing, so each process has a cluster."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0].rpartition("/")[0]

    return ByFolder(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Print the seed: a run with the same one draws the same examples."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    seed = session.config.getoption("--hypothesis-seed")
    if reporter is not None and seed is not None:
        reporter.write_line(f"examples are drawn with --hypothesis-seed={seed}")
