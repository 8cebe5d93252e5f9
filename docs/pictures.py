"""Draws the dashboards with Vega from what a Prometheus answers to their queries.

`python -m docs.pictures URL --namespace NAMESPACE --fleet FLEET` writes an SVG for each dashboard
into docs/figures: its panels in their grid, of the fleet's last minutes. `make pictures` takes the
fleet that `make demo` has left.
"""

import argparse
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from docs.dashboards import DASHBOARDS, WIDTH, Dashboard, Panel, fill

FIGURES = Path(__file__).parent / "figures"
POINTS = 90
"""Of a curve."""
UNITS = {
    "short": "format(datum.value, datum.value < 1 ? '~g' : '~s')",
    "reqps": "format(datum.value, '~g') + ' req/s'",
    "percentunit": "format(datum.value, '.0%')",
    "s": "datum.value == 0 ? '0' : format(datum.value, '~s') + 's'",
}
"""How the axis writes values of Grafana's units."""
SIDE, BODY, HEIGHT = 60, 330, 150
"""Of a panel, in pixels: its axis, and width and height of what is drawn."""
NAMES = 90
"""Of the width, what names of states need besides the axis."""
LONG = 24
"""A legend with more characters has one entry to a line."""
STATES = {"True": "#5794f2", "False": "#ff9830"}
STYLE = {
    "aria": False,
    "background": "white",
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {"gridColor": "#e8e8e8", "domain": False, "ticks": False, "labelColor": "#555"},
    "title": {"anchor": "start", "frame": "group", "fontSize": 13, "offset": 10, "dx": -SIDE + 8},
    "legend": {"labelLimit": 320, "labelFontSize": 10, "symbolSize": 60, "rowPadding": 1},
    "concat": {"spacing": 28},
}


@dataclass(frozen=True, slots=True)
class Curve:
    legend: str
    points: tuple[float | None, ...]
    """One for each step; None where there is no sample."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a picture shows."""

    end: float
    step_s: float

    @property
    def times(self) -> list[float]:
        """Seconds before the end, oldest first."""
        return [-self.step_s * back for back in reversed(range(POINTS + 1))]


def read_curves(url: str, panel: Panel, span: Span, chosen: Mapping[str, str]) -> Iterator[Curve]:
    """Ask Prometheus for what the panel shows."""
    for query in panel.queries:
        asked: dict[str, str | float] = {
            "query": fill(query.expr, **chosen),
            "start": span.end + span.times[0],
            "end": span.end,
            "step": span.step_s,
        }
        answer = httpx.get(f"{url}/api/v1/query_range", params=asked, timeout=30, trust_env=False)
        answer.raise_for_status()
        for row in answer.json()["data"]["result"]:
            at = {round((when - span.end) / span.step_s): float(v) for when, v in row["values"]}
            values = (at.get(n - POINTS, math.nan) for n in range(POINTS + 1))
            points = tuple(None if math.isnan(v) else float(f"{v:.4g}") for v in values)
            if any(point is not None for point in points):
                yield Curve(name_curve(query.legend, row["metric"]), points)


def name_curve(legend: str, labels: Mapping[str, str]) -> str:
    """Put a series' labels into a legend as Grafana does."""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend)


def leave_out_zeros(curves: list[Curve]) -> list[Curve]:
    """Return the curves that are not 0 all the time: counters of what never happened are many."""
    return [curve for curve in curves if any(curve.points)]


def draw_panel(panel: Panel, curves: list[Curve], span: Span) -> dict[str, Any]:
    """Return the panel in Vega-Lite."""
    minutes = [round(second / 60, 3) for second in span.times]
    x = {
        "field": "x",
        "type": "quantitative",
        "scale": {"domain": [minutes[0], 0], "nice": False},
        "axis": {"title": None, "grid": False, "tickCount": 5,
                 "labelExpr": "datum.value == 0 ? 'now' : datum.value + ' min'"},
    }  # fmt: skip
    if panel.kind == "state-timeline":
        return _bars(panel, curves, minutes, x)
    curves = leave_out_zeros(curves) or curves
    rows = [
        {"x": minute, "y": point, "of": curve.legend}
        for curve in curves
        for minute, point in zip(minutes, curve.points, strict=True)
    ]
    most = max((row["y"] for row in rows if row["y"] is not None), default=0)
    top = panel.most or most or 1
    columns = 1 if any(len(curve.legend) > LONG for curve in curves) else 3
    return {
        "title": panel.title,
        "width": BODY,
        "height": HEIGHT,
        "data": {"values": rows},
        "mark": {"type": "line", "strokeWidth": 1.5, "invalid": "break-paths-show-path-domains"},
        "encoding": {
            "x": x,
            "y": {
                "field": "y",
                "type": "quantitative",
                "scale": {"domain": [0, top], "nice": panel.most is None},
                "axis": {"title": None, "tickCount": 4, "labelExpr": UNITS[panel.unit],
                         "minExtent": SIDE, "maxExtent": SIDE},
            },
            "color": {
                "field": "of",
                "type": "nominal",
                "sort": [curve.legend for curve in curves],
                "scale": {"scheme": "tableau10" if len(curves) <= 10 else "tableau20"},
                "legend": {"title": None, "orient": "bottom", "columns": columns,
                           "symbolType": "stroke", "symbolStrokeWidth": 2},
            },
        },
    }  # fmt: skip


def _bars(
    panel: Panel, curves: list[Curve], minutes: list[float], x: dict[str, Any]
) -> dict[str, Any]:
    """A bar for each stretch of one state, as Grafana's state timeline has it."""
    rows = [
        {"x": minutes[first], "until": minutes[min(end, POINTS)], "of": curve.legend, "is": state}
        for curve in curves
        for first, end, state in stretches(curve.points)
    ]
    return {
        "title": panel.title,
        "width": BODY,
        "height": HEIGHT if len(curves) < 14 else 11 * len(curves),
        "data": {"values": rows},
        "mark": {"type": "bar", "height": {"band": 0.8}},
        "encoding": {
            "x": x | {"scale": x["scale"] | {"range": [NAMES, BODY]}},
            "x2": {"field": "until"},
            "y": {
                "field": "of",
                "type": "nominal",
                "axis": {"title": None, "offset": -NAMES, "labelFontSize": 9},
            },
            "color": {
                "field": "is",
                "type": "nominal",
                "scale": {"domain": list(STATES), "range": list(STATES.values())},
                "legend": {"title": None, "orient": "bottom"},
            },
        },
    }


def stretches(points: tuple[float | None, ...]) -> Iterator[tuple[int, int, str]]:
    """Yield the first index, the one after the last, and the state of each stretch of one state."""
    first = 0
    for at in range(1, len(points) + 1):
        if at == len(points) or points[at] != points[first]:
            if points[first] is not None:
                yield first, at, str(points[first] == 1)
            first = at


def draw(dashboard: Dashboard, url: str, span: Span, chosen: Mapping[str, str]) -> str:
    """Return the SVG of a dashboard."""
    panels = [
        draw_panel(panel, list(read_curves(url, panel, span, chosen)), span)
        for panel in dashboard.panels
    ]
    whole = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": {"text": dashboard.title, "fontSize": 18, "offset": 16},
        "concat": panels,
        "columns": 24 // WIDTH,
        "resolve": {"scale": {"color": "independent"}},
        "config": STYLE,
    }
    import vl_convert  # the extra `pictures` has it

    svg: str = vl_convert.vegalite_to_svg(json.dumps(whole))
    svg = re.sub(r' (class|pointer-events)="[^"]*"', "", svg)
    return re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", svg)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.pictures", description=__doc__)
    parser.add_argument("url", help="of a Prometheus that scrapes the fleet and the operator")
    parser.add_argument("--namespace", default="demo", help="of the fleet")
    parser.add_argument("--fleet", default="sim-70b")
    parser.add_argument("--system", default="argosy-system", help="namespace of the operator")
    parser.add_argument("--minutes", type=float, default=5)
    asked = parser.parse_args()
    step_s = asked.minutes * 60 / POINTS
    span = Span(time.time(), step_s)
    for dashboard in DASHBOARDS:
        chosen = {
            "namespace": asked.system if dashboard.name == "operator" else asked.namespace,
            "fleet": asked.fleet,
            "__rate_interval": f"{max(10, round(2 * step_s))}s",
        }
        path = FIGURES / f"dashboard-{dashboard.name}.svg"
        path.write_text(draw(dashboard, asked.url, span, chosen) + "\n")
        print(path)


if __name__ == "__main__":
    main()
