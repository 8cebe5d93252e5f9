"""The comparison of laws: curves up to the goal, settings inside their grid, figures."""

from math import log
from pathlib import Path

import pytest

from argosy_bench.scaling import rivals
from argosy_bench.scaling.rivals import Course, Knob, Players, Point, at_goal, choose, curve
from argosy_bench.scaling.runs import Asked
from argosy_bench.scaling.traces import Recording
from local.figures import Figures

RAMP = Path(__file__).parents[1] / "sim" / "ramp.csv"


def law(looseness: float) -> Point:
    """0.90 at a looseness of 3; GPU-hours as its inverse."""
    return Point(looseness, min(1.0, 1.05 - 0.05 * looseness), 10 / looseness)


@pytest.mark.parametrize("begin", [0.1, 1.0, 2.9, 40.0])
def test_a_curve_has_the_goal_between_two_of_its_points_wherever_it_begins(begin: float) -> None:
    points = curve(law, begin)
    at = at_goal(points)
    assert at is not None
    assert at.gpu_hours == pytest.approx(10 / 3, rel=0.08)
    assert at.looseness == pytest.approx(3, rel=0.08)
    assert min(p.attainment for p in points) < 0.9 <= max(p.attainment for p in points)


def test_a_law_that_is_cheaper_with_a_tighter_aim_is_given_it() -> None:
    def overshoots(looseness: float) -> Point:
        return Point(looseness, 0.95 if looseness < 3 else 0.5, 5 + abs(log(looseness / 0.3)))

    at = at_goal(curve(overshoots, 1.0))
    assert at is not None
    assert at.gpu_hours == pytest.approx(5.0, abs=0.15)


def test_a_law_that_has_more_than_the_goal_however_loose_counts_as_it_is() -> None:
    points = curve(lambda looseness: Point(looseness, 0.95, 4 / looseness), 1.0, loosest=4.0)
    assert at_goal(points) == Point(4.0, 0.95, 1.0)


def test_a_law_that_never_has_the_goal_has_no_figure() -> None:
    assert at_goal(curve(lambda looseness: Point(looseness, 0.8, 1.0), 1.0, tightest=0.3)) is None


def test_points_that_cost_more_for_less_do_not_count() -> None:
    points = [Point(1, 0.95, 4.0), Point(2, 0.85, 1.0), Point(1.5, 0.84, 3.0), Point(0.5, 0.9, 9.0)]
    at = at_goal(points)
    assert at is not None
    assert at.gpu_hours == pytest.approx(2.0)


def test_a_grid_grows_until_the_best_has_a_dearer_neighbour_on_both_sides() -> None:
    def cost(setting: rivals.Setting) -> float:
        return abs(log(setting[0] / 500)) + abs(log(setting[1] / 0.1) - log(setting[0] / 500))

    best, costs = choose((Knob("a", 32.0), Knob("b", 1.0)), cost)
    assert best == (512.0, 0.125)
    for index in range(2):
        for factor in (0.5, 2.0):
            near = tuple(v * factor if i == index else v for i, v in enumerate(best))
            assert costs[near] > costs[best]


def test_a_grid_ends_where_a_value_is_not_allowed() -> None:
    best, costs = choose((Knob("a", 0.5, 1.4, 1.0),), lambda setting: -setting[0])
    assert best[0] < 1 < best[0] * 1.4
    assert max(costs) == best


@pytest.fixture
def course(tmp_path: Path) -> Course:
    (tmp_path / "ramp").mkdir()
    short = RAMP.read_text().splitlines()[:200]
    (tmp_path / "ramp" / "requests.csv").write_text("\n".join(short) + "\n")
    asked = Asked(tmp_path, tmp_path / "scratch", more=("--warmup", "10"))
    return Course(Recording("small", "ramp", 1), asked)


def test_rivals_have_our_queue_and_our_start_and_a_play_is_not_played_twice(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    out = Figures(rivals.FIGURES, "a command")
    players = Players(course.asked.scratch, 1, said.append)
    rivals.compare(out, players, ["keda"], [course], [course])
    setup = rivals.load(course).options.setup
    assert (setup.order, setup.resumes) == ("deadline", True)
    assert out.values["ours_vs_best_rival_geomean"] == out.values["ours_vs_best_rival_worst"] > 0
    rows = {row["law"]: row for row in out.lists["rivals"]}
    assert rows.keys() == {"goodput", "keda"}
    assert rows["keda"]["attainment"] >= rivals.GOAL  # type: ignore[operator]
    again: list[str] = []
    other = Players(course.asked.scratch, 1, again.append)
    monkeypatch.setattr(rivals, "replay", lambda *_: pytest.fail("it played"))
    rivals.compare(out, other, ["keda"], [course], [course])
    assert again[-1] == said[-1]


def test_the_picture_has_a_panel_for_each_trace_and_a_mark_for_each_point_that_fits() -> None:
    rows = [
        {"trace": trace, "law": name, "attainment": attainment, "gpu_hours": 2.0}
        for trace in ("conv", "r1")
        for name, attainment in (("goodput", 0.9), ("hpa", 0.7), ("hpa", 0.1))
    ]
    shown = rivals.picture(rows)
    assert shown.count("<g ") == 2
    assert shown.count("<circle") == len(rivals.COLOURS) + 4
