"""The page on when to split says what the committed plans say."""

import json
import shlex

import pytest

from docs import split_page
from docs.split_page import ROWS, RUNS, Found, found_of, page, read_runs, winner


def found(least: float, most: float) -> Found:
    return Found("1 pod", (least + most) / 2, least, most, "TTFT")


@pytest.mark.parametrize(
    ("together", "apart", "better"),
    [
        (found(2, 3), found(1, 1.9), "together"),
        (found(1, 1.9), found(2, 3), "apart"),
        (found(1, 2), found(2, 3), "about equal"),
        (found(1, 2), split_page.NOTHING, "together"),
        (split_page.NOTHING, found(1, 2), "apart"),
        (split_page.NOTHING, split_page.NOTHING, "neither"),
    ],
)
def test_the_better_one_has_its_whole_range_above(
    together: Found, apart: Found, better: str
) -> None:
    assert winner(together, apart) == better


def test_every_row_was_planned_with_its_own_limits_and_gpus() -> None:
    answers = json.loads(RUNS.read_text())
    assert set(answers) == {shlex.join(row.argv) for row in ROWS}
    for row, answer in read_runs(RUNS.read_text()).items():
        assert answer["gpus"] == row.gpus
        assert answer["slo"]["ttft_s"] == pytest.approx(row.ttft_ms / 1000)
        assert answer["slo"]["tpot_s"] == pytest.approx(row.tpot_ms / 1000)
        assert all(option["gpus"] <= row.gpus for option in answer["options"])


def test_goodput_is_per_gpu_and_the_sentences_follow_from_it() -> None:
    runs = read_runs(RUNS.read_text())
    row = ROWS[0]
    unmet = {row: {**answer, "options": []} for row, answer in runs.items()}
    assert "neither for all 3" in page(unmet, "")
    assert "neither" not in page(runs, "")
    option = runs[row]["options"][0]
    assert found_of(runs[row], option["mode"]).value == option["goodput"]["median"] / option["gpus"]
