"""The page of a run: series that can be worked out by hand, and a file that loads nothing."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from argosy_law.sim import cli
from argosy_law.sim.replay import static
from argosy_law.sim.report import intervals
from tests.sim.fleets import setup, trace
from tests.sim.test_simulate import arguments


def test_requests_are_counted_in_the_minute_of_their_arrival() -> None:
    # TTFT of 100 tokens alone is 0.2 s, of 1500 tokens 1.6 s; the limit is 1 s
    rows = [(0.0, 100, 1), (59.9, 1500, 1), (60.0, 1500, 1), (200.0, 100, 1), (210.0, 100, 1)]
    parts = intervals(static(setup(), trace(rows), {"prefill": 1, "decode": 1}))
    assert [(part.start_s, part.seconds) for part in parts] == [
        (0.0, 60.0), (60.0, 60.0), (120.0, 60.0), (180.0, 30.0),
    ]  # fmt: skip
    assert [(part.requests, part.met) for part in parts] == [(2, 1), (1, 0), (0, 0), (2, 2)]
    assert [part.attainment for part in parts] == [0.5, 0.0, None, 1.0]
    assert [part.per_s for part in parts] == [2 / 60, 1 / 60, 0.0, 2 / 30]


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


def test_a_report_without_a_folder_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = {"report": str(tmp_path / "none" / "r.html")}
    assert cli.main(arguments(tmp_path / "out.json", **flags)) == 2
    assert f"--report {tmp_path / 'none' / 'r.html'}: there is no folder" in capsys.readouterr().err
