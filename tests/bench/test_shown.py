"""Figures files in a page: rows come from the files, and rows of other commands stay."""

from typing import Any

import pytest

from argosy_bench.shown import BEGIN, END, rows_of, shown_in

PAGE = f"# T\n\n{BEGIN}\nold\n| `make other` | `x` | 1 |  | d |\n{END}\nafter\n"


def document(command: str = "make test-loss", lost: float = 0, met: bool = True) -> dict[str, Any]:
    return {
        "command": command,
        "environment": {"date": "2026-11-22", "cores": 2, "processor": "P"},
        "figures": {"requests_lost": lost, "whole_again_s_p50": 4.2},
        "units": {"requests_lost": "", "whole_again_s_p50": "s"},
        "targets": {"requests_lost": {"sign": "==", "value": 0.0, "met": met}},
    }


def test_a_row_has_value_unit_target_date_and_machine_and_says_what_missed() -> None:
    assert rows_of(document(lost=3, met=False)) == [
        "| `make test-loss` | `requests_lost` | 3, missed | == 0 | 2026-11-22, 2 cores, P |",
        "| `make test-loss` | `whole_again_s_p50` | 4.2 s |  | 2026-11-22, 2 cores, P |",
    ]


def test_rows_of_other_commands_stay_and_those_of_the_same_command_are_replaced() -> None:
    once = shown_in(PAGE, [document(lost=3)])
    again = shown_in(once, [document()])
    assert again.startswith("# T\n\n")
    assert again.endswith(f"{END}\nafter\n")
    assert again.count("requests_lost") == 1
    assert "| 3 |" not in again
    assert "| `make other` | `x` | 1 |  | d |" in again
    assert "old" not in again
    assert shown_in(again, [document()]) == again
    smoke = document("make test-loss LOSS='--events 21'")
    assert shown_in(again, [smoke]).count("requests_lost") == 1


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for figures"):
        shown_in(f"{END}\n{BEGIN}", [document()])
