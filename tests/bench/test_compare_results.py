"""Results of several policies on one trace, and which of them are worth a choice."""

import json
from pathlib import Path

import pytest

from argosy_bench.scaling.compare import Result, front, read, table


def written(folder: Path, name: str, attainment: float, hours: float, requests: int = 9) -> Path:
    path = folder / f"{name}.json"
    result = {
        "attainment": attainment,
        "gpu_hours": hours,
        "gpu_hours_static": None if name == "none" else 10.0,
        "gpu_hours_physical": 3.0,
        "requests": requests,
    }
    path.write_text(json.dumps(result))
    return path


def test_what_another_reaches_for_less_is_not_on_the_front() -> None:
    cheap, good = Result("cheap", 0.8, 5.0, 0.5), Result("good", 0.95, 8.0, 0.8)
    worse, dear = Result("worse", 0.94, 8.0, 0.8), Result("dear", 0.95, 8.1, 0.81)
    twin = Result("twin", 0.95, 8.0, 0.8)
    assert front([cheap, good, worse, dear, twin]) == [cheap, good, twin]


def test_the_table_is_sorted_by_cost_and_marks_the_front(tmp_path: Path) -> None:
    paths = [
        written(tmp_path, "keda", 0.7, 12.0),
        written(tmp_path, "goodput", 0.95, 8.0),
        written(tmp_path, "none", 0.5, 7.0),
    ]
    assert table(read(paths)) == [
        "result   attainment   GPU-h  /static  Pareto",
        "none          0.500     7.0        -  yes",
        "goodput       0.950     8.0    0.800  yes",
        "keda          0.700    12.0    1.200",
    ]


def test_results_of_different_traces_are_not_compared(tmp_path: Path) -> None:
    paths = [written(tmp_path, "one", 0.9, 8.0), written(tmp_path, "two", 0.9, 8.0, requests=10)]
    with pytest.raises(SystemExit, match="different traces"):
        read(paths)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"attainment": 1}'])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match=r"other\.json: no result of argosy simulate"):
        read([path])
