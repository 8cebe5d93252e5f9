"""Coverage by package, and the functions that no test enters, from coverage.py's report."""

from argosy_bench.suites.coverage import not_entered, package_of, shares


def counted(covered: int, statements: int, at: int = 1) -> dict[str, object]:
    return {
        "summary": {"covered_lines": covered, "num_statements": statements},
        "start_line": at,
    }


PLAN, SSE = "operator/argosy_operator/core/plan.py", "engine/argosy_gateway/wire/sse.py"
REPORT = {
    "files": {
        PLAN: {**counted(30, 40), "functions": {"": counted(10, 10), "plan": counted(0, 10, 7)}},
        "operator/argosy_operator/core/fleet/pods.py": {**counted(0, 10), "functions": {}},
        SSE: {**counted(8, 8), "functions": {"feed": counted(1, 8), "empty": counted(0, 0)}},
    }
}


def test_a_package_is_named_by_its_program_and_its_first_folder():
    assert package_of(PLAN) == "argosy_operator.core"
    assert package_of("engine/argosy_gateway/cli.py") == "argosy_gateway"


def test_the_share_of_a_package_counts_statements_of_all_its_files():
    assert shares(REPORT) == {"argosy_gateway.wire": 1.0, "argosy_operator.core": 0.6}


def test_only_functions_with_statements_of_which_none_ran_are_listed():
    assert list(not_entered(REPORT)) == [f"{PLAN}:7 plan"]
