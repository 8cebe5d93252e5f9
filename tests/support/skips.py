"""`--forbid-skips`: a test that is skipped fails the run, unless it stands in `ALLOWED`.

`make test` uses it, because a skipped test proves nothing and its line is one letter long. The
plugin is registered by tests/conftest.py.
"""

from collections.abc import Iterator

import pytest

ALLOWED = {
    "tests/engine_gpu/": "a machine without a GPU; `make test-gpu` lets the tests see one",
    "tests/local/test_fetch.py": "no Debian or Ubuntu, another Python, or apt without its lists",
    "tests/local/test_runtime.py": "only root makes namespaces; the cluster's own tests still run",
    "tests/local/test_cluster.py::test_a_restricted_pod_becomes_ready_in_a_cluster_of_an_"
    "ordinary_user": "only root becomes another user, and a kernel may refuse user namespaces",
    "tests/kv/test_handover.py::test_kv_travels_over_ipv6_with_the_address_as_the_gateway_"
    "writes_it": "a machine without IPv6",
}
"""Start of a test's id → why the machine may lack what it needs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--forbid-skips", action="store_true", help="skipped tests fail: tests/support/skips.py"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Turn a skip into a failure that says where the exceptions are listed."""
    report = yield
    expected = hasattr(report, "wasxfail")
    if report.skipped and not expected and _is_forbidden(item.config, item.nodeid):
        report.outcome = "failed"
        report.longrepr = _message(item.nodeid, report.longrepr)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """The same for a module that is skipped while it is imported."""
    report = yield
    if report.skipped and _is_forbidden(collector.config, collector.nodeid):
        report.outcome = "failed"
        report.longrepr = _message(collector.nodeid, report.longrepr)
    return report


def _is_forbidden(config: pytest.Config, nodeid: str) -> bool:
    return bool(config.getoption("--forbid-skips")) and not nodeid.startswith(tuple(ALLOWED))


def _message(nodeid: str, why: object) -> str:
    reason = why[2] if isinstance(why, tuple) else why
    return (
        f"{nodeid} was skipped ({reason}), and --forbid-skips is set. Provide what it needs, or "
        "list it with a reason in tests/support/skips.py."
    )
