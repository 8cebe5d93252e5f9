"""The figures file that the demo and every `make bench-*` write."""

import json
import socket
from pathlib import Path

import pytest

from local.demo.figures import FIGURES
from local.figures import Figure, Figures, Target, conclude, environment

ROWS = (
    Figure("speed", "tokens/s", Target(">=", 10), digits=1),
    Figure("peak_over_idle", target=Target("<=", 5)),
    Figure("lost", target=Target("==", 0)),
    Figure("load_s", "s"),
)


def measured(**values: float) -> Figures:
    figures = Figures(ROWS, "make bench-sample")
    for name, value in values.items():
        figures.put(name, value)
    return figures


@pytest.mark.parametrize(
    ("values", "missed"),
    [
        ({"speed": 10, "peak_over_idle": 5, "lost": 0}, []),
        ({"speed": 9.97, "peak_over_idle": 5, "lost": 0}, ["speed"]),  # rounded to 10.0
        ({"speed": 11, "peak_over_idle": 5.1, "lost": 0}, ["peak_over_idle"]),
        ({"speed": 11, "peak_over_idle": 1, "lost": 1}, ["lost"]),
        ({"speed": 11, "lost": 0}, ["peak_over_idle"]),
        ({}, ["speed", "peak_over_idle", "lost"]),
    ],
)
def test_a_target_is_missed_by_a_worse_value_and_by_none(values, missed):
    assert measured(**values).missed() == missed


def test_the_file_holds_values_units_targets_environment_and_command(tmp_path: Path):
    figures = measured(speed=12.345, peak_over_idle=9, load_s=1)
    figures.notes["model"] = "tiny"
    figures.write(tmp_path / "new folder" / "figures.json")
    document = json.loads((tmp_path / "new folder" / "figures.json").read_text())
    assert document["command"] == "make bench-sample"
    assert document["figures"] == {"load_s": 1, "speed": 12.3, "peak_over_idle": 9}
    assert document["units"] == {"load_s": "s", "speed": "tokens/s", "peak_over_idle": ""}
    assert {name: target["met"] for name, target in document["targets"].items()} == {
        "lost": False,
        "speed": True,
        "peak_over_idle": False,
    }
    assert document["targets"]["peak_over_idle"]["value"] == 5
    assert document["environment"]["model"] == "tiny"
    assert document["environment"]["cores"] >= 1


def test_a_figure_of_several_seeds_is_their_median_with_the_lowest_and_the_highest(
    tmp_path: Path,
) -> None:
    figures = Figures(ROWS, "make bench-sample")
    figures.put_each("speed", [14, 11.04, 12])
    figures.put("load_s", 1)
    figures.write(tmp_path / "figures.json")
    document = json.loads((tmp_path / "figures.json").read_text())
    assert document["figures"]["speed"] == 12
    assert document["ranges"] == {"speed": [11.0, 14]}


def test_the_environment_names_neither_a_path_nor_the_host():
    values = [str(value) for value in environment().values()]
    assert not [value for value in values if value.startswith(("/", "~"))]
    assert socket.gethostname() not in values


def test_a_suite_ends_with_its_table_its_file_and_its_status(tmp_path: Path, capsys):
    path = tmp_path / "figures.json"
    assert conclude(measured(speed=11, peak_over_idle=4, lost=0), path) == 0
    assert "speed" in capsys.readouterr().out
    assert json.loads(path.read_text())["figures"]["speed"] == 11
    assert conclude(measured(speed=11, peak_over_idle=1, lost=1), None) == 1


def test_docs_demo_explains_every_figure_of_the_demo():
    text = (Path(__file__).parents[2] / "docs" / "figures" / "demo.md").read_text()
    shown = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert {row.name for row in FIGURES} == shown
