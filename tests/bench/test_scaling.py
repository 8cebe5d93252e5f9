"""`make bench-scaling`, shortened, and the figures that it makes of runs."""

import json
from pathlib import Path

import pytest

from argosy_bench.scaling import parts, runs, score
from argosy_bench.scaling.runs import Asked
from argosy_bench.scaling.score import Row
from argosy_bench.scaling.traces import RECORDINGS, Recording, first_day
from argosy_law.sim import hindsight
from local.figures import Figures

RAMP = Path(__file__).parents[1] / "sim" / "ramp.csv"
SMALL = Recording("small", "ramp", 2)


def test_every_figure_of_the_speed_is_measured() -> None:
    figures = Figures(parts.SPEED, "a command")
    parts.measure(figures, count=500, runs=3)
    assert figures.values.keys() == figures.rows.keys()
    assert all(value > 0 for value in figures.values.values())


def row(
    trace: str,
    attainment: float = 0.95,
    gpu_hours: float = 8.0,
    *,
    seed: int = 0,
    error: str = "1",
    reversals: float = 0.0,
    killed: int = 0,
) -> Row:
    """A run where the constant fleets take ten and five GPU-hours."""
    recording = next(one for one in RECORDINGS if one.name == trace)
    result = {
        "attainment": attainment,
        "gpu_hours": gpu_hours,
        "gpu_hours_static": 10.0,
        "gpu_hours_static_same_engine": 5.0,
        "reversals_per_hour": reversals,
        "requests_killed": killed,
    }
    return Row(recording, seed, error, result)


def put(*rows: Row) -> dict[str, float]:
    figures = Figures(score.FIGURES, "a command")
    score.put(figures, rows)
    return figures.values


def test_the_worst_trace_and_seed_counts_and_ratios_are_means_over_the_seeds() -> None:
    values = put(
        row("conv", 0.97, 8.0, reversals=1.0),
        row("conv", 0.91, 12.0, seed=1, reversals=3.0),
        row("r1", 0.93, 4.0, killed=2),
        row("code", 0.6, 7.0, killed=1),
        row("day_code", 0.99, 5.0),
    )
    assert values["worst_attainment"] == 0.91
    assert values["gpu_hours_vs_static_geomean"] == pytest.approx((1.0 * 0.4 * 0.5) ** (1 / 3))
    assert values["gpu_hours_vs_static_same_engine_geomean"] == pytest.approx(
        (2.0 * 0.8 * 1.0) ** (1 / 3)
    )
    assert values["day_code_gpu_hours_vs_static"] == 0.5
    assert (values["code_attainment"], values["code_gpu_hours_vs_static"]) == (0.6, 0.7)
    assert values["reversals_per_hour"] == 1.0
    assert values["requests_killed"] == 3
    assert "day_conv_gpu_hours_vs_static" not in values
    assert "profile_error_cost" not in values


def test_the_cost_of_a_wrong_prior_is_that_of_the_worst_one() -> None:
    values = put(
        row("conv", gpu_hours=10.0),
        row("r1", gpu_hours=20.0),
        row("conv", 0.91, 11.0, error="0.8"),
        row("r1", 0.95, 22.0, error="0.8"),
        row("conv", 0.92, 9.0, error="none"),
        row("r1", 0.89, 18.0, error="none"),
    )
    assert values["profile_error_cost"] == pytest.approx(1.1)
    assert values["profile_error_worst_attainment"] == 0.89
    assert values["worst_attainment"] == 0.95
    assert values["gpu_hours_vs_static_geomean"] == pytest.approx((1.0 * 2.0) ** 0.5)


def test_the_first_day_ends_before_its_last_second_has_passed() -> None:
    table = "t_s,req_per_s_mid\n217,2\n80000,3\n86616,4\n86617,5\n90000,6\n"
    assert first_day(table) == "t_s,req_per_s_mid\n217,2\n80000,3\n86616,4\n"


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    (tmp_path / "ramp").mkdir()
    (tmp_path / "ramp" / "requests.csv").write_text(RAMP.read_text())
    return Asked(tmp_path, tmp_path / "scratch", more=("--warmup", "60"))


def test_each_seed_is_played_and_constant_fleets_are_searched_for_once(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = list(runs.play(asked, [SMALL], 2, "1"))
    assert [one.seed for one in first] == [0, 1]
    assert first[0].result["requests"] != 0
    assert first[0].result != first[1].result
    assert first[0].over_static > 0
    smallest = hindsight.smallest
    monkeypatch.setattr(hindsight, "smallest", lambda *_, **__: pytest.fail("it searched"))
    again = list(runs.play(asked, [SMALL], 2, "0.8"))
    assert [one.result["gpu_hours_static"] for one in again] == [
        one.result["gpu_hours_static"] for one in first
    ]
    monkeypatch.setattr(hindsight, "smallest", smallest)
    trace = asked.folder / "ramp" / "requests.csv"
    trace.write_text("\n".join(trace.read_text().splitlines()[:-50]) + "\n")
    shorter = next(runs.play(asked, [SMALL], 1, "1"))
    assert shorter.result["gpu_hours_static"] < first[0].result["gpu_hours_static"]
    assert len(json.loads((asked.scratch / "static.json").read_text())) == 3
