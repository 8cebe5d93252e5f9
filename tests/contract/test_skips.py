"""`make test` fails when a test is skipped that no list excuses."""

import pytest

pytest_plugins = ("pytester",)

SKIPPED = """
import pytest

@pytest.mark.skipif(True, reason="no weights: make them")
def test_needs_weights():
    raise AssertionError

def test_skips_inside():
    pytest.skip("no curl")

@pytest.mark.xfail(reason="known", strict=True)
def test_known_fault():
    raise AssertionError

def test_passes():
    pass
"""


@pytest.fixture
def run(pytester):
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(SKIPPED)
    return lambda *words: pytester.runpytest("-p", "tests.support.skips", *words)


def test_without_the_option_skips_are_skips(run):
    run().assert_outcomes(skipped=2, xfailed=1, passed=1)


def test_with_the_option_each_skip_fails_and_says_what_to_do(run):
    result = run("--forbid-skips")
    result.assert_outcomes(failed=1, errors=1, xfailed=1, passed=1)
    result.stdout.fnmatch_lines(["*was skipped (Skipped: no weights: make them)*--forbid-skips*"])


def test_a_module_that_skips_itself_fails_too(pytester):
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile("import pytest\npytest.importorskip('no_such_module')")
    result = pytester.runpytest("-p", "tests.support.skips", "--forbid-skips")
    result.assert_outcomes(errors=1)
