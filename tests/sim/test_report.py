"""The page of a run: series that can be worked out by hand, and a file that loads nothing."""

import json
import re
from html.parser import HTMLParser
from math import inf
from pathlib import Path

import pytest

from argosy_law.sim import cli
from argosy_law.sim.replay import Run, static
from argosy_law.sim.report import series
from argosy_law.sim.report.chart import Chart, Line, ceiling, time_step
from tests.sim.fleets import setup, started, trace
from tests.sim.test_simulate import arguments


def test_requests_are_counted_in_the_minute_of_their_arrival() -> None:
    # TTFT of 100 tokens alone is 0.2 s, of 1500 tokens 1.6 s; the limit is 1 s
    rows = [(0.0, 100, 1), (59.9, 1500, 1), (60.0, 1500, 1), (200.0, 100, 1), (210.0, 100, 1)]
    parts = series.intervals(static(setup(), trace(rows), {"prefill": 1, "decode": 1}))
    assert [(part.start_s, part.seconds) for part in parts] == [
        (0.0, 60.0), (60.0, 60.0), (120.0, 60.0), (180.0, 30.0),
    ]  # fmt: skip
    assert [(part.requests, part.met) for part in parts] == [(2, 1), (1, 0), (0, 0), (2, 2)]
    assert [part.attainment for part in parts] == [0.5, 0.0, None, 1.0]
    assert [part.per_s for part in parts] == [2 / 60, 1 / 60, 0.0, 2 / 30]


@pytest.mark.parametrize(
    ("end", "seconds"), [(60.0, 60.0), (28_800.0, 60.0), (28_801.0, 120.0), (86_400.0, 180.0)]
)
def test_a_long_trace_has_no_more_points_than_a_short_one(end: float, seconds: float) -> None:
    run = static(setup(), trace([(0.0, 10, 1), (end, 10, 1)]), {"prefill": 1, "decode": 1})
    parts = series.intervals(run)
    assert parts[0].seconds == seconds
    assert sum(part.requests for part in parts) == 2
    assert len(parts) <= series.MOST_POINTS + 1


def test_replicas_and_gpus_follow_the_pods() -> None:
    world = started(setup(cold_s=50.0), trace([(0.0, 10, 2), (300.0, 10, 2)]))
    world.advance(100.0)
    world.scale("decode", 3)
    world.advance(200.0)
    world.scale("decode", 2)
    world.advance(inf)
    run = Run(world, ((100.0, "decode", 2), (200.0, "decode", -1)))
    assert series.wanted(run, "prefill") == [(0.0, 1)]
    assert series.wanted(run, "decode") == [(0.0, 1), (100.0, 3), (200.0, 2)]
    assert series.ready(run, "prefill") == [(0.0, 1)]
    assert series.ready(run, "decode") == [(0.0, 1), (150.0, 3), (200.0, 2)]
    assert series.gpus(run) == [(0.0, 4), (100.0, 8), (200.0, 6)]


def test_a_pod_that_was_never_ready_is_wanted_and_paid_alone() -> None:
    world = started(setup(cold_s=50.0), trace([(0.0, 10, 2), (300.0, 10, 2)]))
    world.advance(100.0)
    world.scale("prefill", 2)
    world.advance(120.0)
    world.scale("prefill", 1)
    world.advance(inf)
    run = Run(world, ((100.0, "prefill", 1), (120.0, "prefill", -1)))
    assert series.wanted(run, "prefill") == [(0.0, 1), (100.0, 2), (120.0, 1)]
    assert series.ready(run, "prefill") == [(0.0, 1)]
    assert series.gpus(run) == [(0.0, 4), (100.0, 6), (120.0, 4)]


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.3, 0.4), (1, 1), (1.01, 2), (4, 4), (7, 8), (8.5, 10), (90, 100)]
)
def test_an_axis_ends_at_a_number_that_is_easily_quartered(value: float, top: float) -> None:
    assert ceiling(value) == pytest.approx(top)


@pytest.mark.parametrize(
    ("seconds", "step"),
    [
        (60, (60, "min", 60)), (720, (60, "min", 60)), (721, (120, "min", 60)),
        (7200, (600, "min", 60)), (86_400, (7200, "h", 3600)), (1e8, (1e8 / 12, "h", 3600)),
    ],
)  # fmt: skip
def test_an_axis_of_time_has_at_most_twelve_marks(
    seconds: float, step: tuple[float, str, float]
) -> None:
    assert time_step(seconds) == step


def test_a_line_breaks_where_there_is_no_value_and_steps_reach_the_end() -> None:
    gap = Line("a<b", [(0, 0.0), (50, 1.0), (60, None), (75, 0.5), (100, 0.5)], "one")
    steps = Line("steps", [(0, 0.0), (50, 1.0)], "two", steps=True)
    drawn = Chart("Share", "of all", (gap, steps), 100.0, 25.0, top=1.0).svg()
    assert 'class="one" d="M52.0 176.0L500.0 10.0M724.0 93.0L948.0 93.0"' in drawn
    assert 'class="two" d="M52.0 176.0H500.0V10.0H948.0"' in drawn
    assert '<rect class="warmup" x="52" y="10" height="166" width="224.0"/>' in drawn
    assert "a&lt;b</span>" in drawn
    assert "a<b" not in drawn
    assert drawn.count("<span") == 2
    alone = Line("", gap.points, "one")
    assert "<span" not in Chart("Share", "of all", (alone,), 100.0, 25.0).svg()


class Places(HTMLParser):
    """What a page would load, and whether each element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]
        self.loaded += [tag] * (tag in ("script", "link", "img", "iframe"))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_every_figure_and_loads_nothing(tmp_path: Path) -> None:
    out, report = tmp_path / "out.json", tmp_path / "report <1>.html"
    flags = {"policy": "goodput", "scale": "3", "report": str(report)}
    assert cli.main(arguments(out, **flags)) == 0
    text, result = report.read_text(), json.loads(out.read_text())
    places = Places()
    places.feed(text)
    assert (places.loaded, places.open) == ([], [])
    assert "url(" not in text
    assert "@import" not in text
    assert all(f"<code>{name}</code>" in text for name in result)
    assert f"{100 * result['gpu_hours'] / result['gpu_hours_static']:.0f} %" in text
    assert "report &lt;1&gt;.html" in text
    assert len(re.findall("<figure>", text)) == 4


def test_a_fleet_that_no_goal_can_be_met_with_has_a_page_too(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert cli.main(arguments(tmp_path / "out.json", ttft="0.01", report=str(report))) == 0
    assert "best constant fleet, known afterwards" not in report.read_text()
    assert '<td class="n">none</td>' in report.read_text()


def test_a_report_without_a_folder_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = {"report": str(tmp_path / "none" / "r.html")}
    assert cli.main(arguments(tmp_path / "out.json", **flags)) == 2
    assert f"--report {tmp_path / 'none' / 'r.html'}: there is no folder" in capsys.readouterr().err
