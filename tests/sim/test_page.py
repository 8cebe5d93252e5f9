"""The page of a run whose four pictures can be drawn by hand."""

import re
from collections.abc import Sequence

import pytest

from argosy_law.sim.replay import Run
from argosy_law.sim.report import page
from argosy_law.sim.report.chart import Chart, Line, time_step
from tests.sim.fleets import setup, started, trace

END, WARMUP = 150.0, 20.0
RESULT: dict[str, float | str | None] = {
    "attainment": 0.87654,
    "gpu_hours": 12.0,
    "gpu_hours_static": 16.0,
    "gpu_hours_static_same_engine": None,
    "replicas_static": "2,3",
}


def run() -> Run:
    """A decode pod that is asked for at 60 s, ready at 110 s. The second prompt takes 1.6 s."""
    rows = [(0.0, 100, 1), (60.0, 1500, 1), (END, 100, 1)]
    world = started(setup(cold_s=50.0), trace(rows))
    world.advance(60.0)
    world.scale("decode", 2)
    world.advance(float("inf"))
    return Run(world, ((60.0, "decode", 1),))


def text(**changed: float | str | None) -> str:
    return page.page(
        run(), RESULT | changed, command="argosy <simulate>", warmup_s=WARMUP, goal=0.9
    )


def picture(title: str, unit: str, lines: Sequence[Line], top: float | None = None) -> str:
    return Chart(title, unit, tuple(lines), END, WARMUP, top).svg()


def headline(shown: str) -> list[tuple[str, str]]:
    return re.findall(r"<div><b>(.*?)</b><span>(.*?)</span></div>", shown)


def test_arrivals_and_attainment_stand_in_the_middle_of_their_interval() -> None:
    shown = text()
    arrivals = [(30.0, 1 / 60), (90.0, 1 / 60), (135.0, 1 / 30)]
    assert picture("Arrivals", "requests per second", [Line("", arrivals, "one")]) in shown
    within = Line("requests within both limits", [(30.0, 1.0), (90.0, 0.0), (135.0, 1.0)], "three")
    goal = Line("goal", [(0.0, 0.9), (END, 0.9)], "goal")
    assert picture("Attainment", "share, by arrival", [within, goal], 1.0) in shown


def test_replicas_are_steps_of_what_was_wanted_and_what_was_ready() -> None:
    lines = [
        Line("prefill wanted", [(0.0, 1)], "one wanted", steps=True),
        Line("prefill ready", [(0.0, 1)], "one ready", steps=True),
        Line("decode wanted", [(0.0, 1), (60.0, 2)], "two wanted", steps=True),
        Line("decode ready", [(0.0, 1), (110.0, 2)], "two ready", steps=True),
    ]
    assert picture("Replicas", "pods", lines) in text()


def test_gpus_stand_beside_those_of_the_best_constant_fleet() -> None:
    held = Line("this run", [(0.0, 4), (60.0, 6)], "one", steps=True)
    best = Line("best constant fleet, known afterwards", [(0, 10), (END, 10)], "goal")
    unit = "from creation to deletion"
    assert picture("GPUs", unit, [held, best]) in text(), "five replicas of two GPUs"
    assert picture("GPUs", unit, [held]) in text(replicas_static=None)


def test_the_headline_has_attainment_and_the_share_of_the_constant_fleets() -> None:
    within, spent = ("0.8765", "within both limits; goal 0.9"), ("12", "GPU-hours")
    share = ("75 %", "of the best constant fleet's GPU-hours")
    assert headline(text()) == [within, spent, share]
    same = ("50 %", "of those of the best one that serves as this run does")
    assert headline(text(gpu_hours_static_same_engine=24.0)) == [within, spent, share, same]
    assert headline(text(gpu_hours=None)) == [within, ("none", "GPU-hours")]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "none"), ("2,<3", "2,&lt;3"), (0.876543, "0.8765"), (1234.56, "1,235"),
        (9999.0, "9,999"), (10_000.0, "10,000"), (123_456.7, "123,457"),
    ],
)  # fmt: skip
def test_the_table_shows_four_digits_and_no_markup(value: float | str | None, shown: str) -> None:
    table = text(gpu_hours_static=None, attainment=value).partition("<table>")[2]
    assert f'<td><code>attainment</code></td><td class="n">{shown}</td>' in table
    assert "<code>gpu_hours_physical" not in table, "what the result has not is left out"


def test_the_command_is_shown_as_it_was_written() -> None:
    assert "<p><code>argosy &lt;simulate&gt;</code></p>" in text()


# --- axes -----------------------------------------------------------------------------------------


def test_a_picture_without_values_has_an_axis_up_to_one() -> None:
    drawn = Chart("<Share>", "of <all>", (Line("", [(0.0, None)], "one"),), 100.0, 0.0).svg()
    assert re.findall(r'<text class="y" x="46" y="([\d.]+)">(.*?)</text>', drawn) == [
        ("180.0", "0"), ("138.5", "0.25"), ("97.0", "0.5"), ("55.5", "0.75"), ("14.0", "1"),
    ]  # fmt: skip
    assert re.findall(r'<path class="grid" d="(.*?)"/>', drawn) == [
        f"M52 {y}H948" for y in (176.0, 134.5, 93.0, 51.5, 10.0)
    ]
    assert "<b>&lt;Share&gt;</b> <i>of &lt;all&gt;</i></figcaption>" in drawn
    assert 'viewBox="0 0 960 200" role="img" aria-label="&lt;Share&gt;">' in drawn
    assert '<path class="one" d=""/>' in drawn


def test_marks_of_time_stand_at_whole_steps_up_to_the_end() -> None:
    drawn = Chart("Share", "of all", (), 7000.0, 9000.0).svg()
    marks = re.findall(r'<text class="x" x="([\d.]+)" y="192">(.*?)</text>', drawn)
    assert [mark for _, mark in marks] == [f"{10 * n} min" for n in range(12)]
    assert [float(x) for x, _ in marks[:3]] == [52.0, 128.8, 205.6]
    assert '<rect class="warmup" x="52" y="10" height="166" width="896.0"/>' in drawn


@pytest.mark.parametrize(
    ("unit", "of", "n"),
    [("min", 60.0, n) for n in (1, 2, 5, 10, 15, 30)]
    + [("h", 3600.0, n) for n in (1, 2, 3, 6, 12, 24, 48, 168)],
)
def test_twelve_steps_of_every_length_fill_an_axis(unit: str, of: float, n: int) -> None:
    assert time_step(12 * of * n) == (of * n, unit, of)
    assert time_step(12 * of * n + 1)[0] > of * n
