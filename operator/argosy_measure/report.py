"""A load as one HTML page that loads nothing: pictures by matplotlib as SVG, in the page's colours.

Matplotlib draws in the colours of `_COLOURS`, which are then replaced by variables of the style
sheet, so that the pictures follow a dark screen too.
"""

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from math import ceil
from random import Random
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from argosy_law.sim.report import STYLE
from argosy_measure.score import Limits, Row, Score
from argosy_measure.watch import write_ms

_COLOURS = {
    name: f"#0000{number:02x}"
    for number, name in enumerate(("ink", "dim", "faint", "one", "two", "three"), 1)
}
_SIZE = (480 / 72, 250 / 72)
"""Half of the page's width: a column of it on a wide screen, nearly all of a telephone's."""
_MOST_POINTS = 3000
"""Of the scatter; more of them are drawn by chance."""
_LEAST_IN_BIN = 20
_MOST_BINS = 60
_LAYOUT = """
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));
gap:.6em 1.6em}
.charts figure{margin:0;min-width:0}.charts text{font-family:system-ui,sans-serif}
.charts path{stroke:none;stroke-width:1}.charts table{align-self:start}
code{overflow-wrap:anywhere}
"""


def page(rows: Sequence[Row], limits: Limits, got: Score, command: str) -> str:
    """Write the page. `command`: what was asked for, as it was written."""
    charts = (
        ("Attainment", "share of requests within both limits, by time of sending", _attainment),
        ("Arrivals and requests in flight", "per second, and at once", _in_flight),
        ("TTFT", "share of requests at or below", _ttft),
        ("TPOT", "share of requests at or below", _tpot),
        ("TTFT and TPOT", "a point a request; the box is what meets both limits", _joint),
    )
    drawn = "".join(
        f"<figure><figcaption><b>{title}</b> <i>{what}</i></figcaption>"
        f"{_draw(title, draw, rows, limits)}</figure>"
        for title, what, draw in charts
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>argosy bench</title>
<meta name="viewport" content="width=device-width">
<style>{STYLE}{_LAYOUT}</style></head><body>
<h1>What a load measured</h1><p><code>{escape(command)}</code></p>
<div class="main">{_headline(limits, got)}</div>
{_warn(got)}<div class="charts">{drawn}
<table>{_table(got)}</table></div>
</body></html>
"""


def _draw(
    title: str,
    draw: Callable[[Axes, Sequence[Row], Limits], None],
    rows: Sequence[Row],
    limits: Limits,
) -> str:
    """Draw a picture as the text of an `svg` element."""
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": title,
        "font.size": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": _COLOURS["faint"],
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": _COLOURS["faint"],
        "legend.frameon": False,
        "path.simplify": True,
        **dict.fromkeys(("text.color", "axes.labelcolor"), _COLOURS["dim"]),
        **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), _COLOURS["dim"]),
        **dict.fromkeys(("xtick.color", "ytick.color"), _COLOURS["faint"]),
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.add_subplot()
        draw(axes, rows, limits)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _embed(file.getvalue(), title)


def _embed(svg: str, title: str) -> str:
    """Make a picture part of a page: its own ids, the page's colours and width."""
    svg = svg[svg.index("<svg") :]
    prefix = re.sub(r"\W", "-", title.lower())
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for name, colour in _COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def _bins(rows: Sequence[Row]) -> tuple[float, list[list[Row]]]:
    """Divide the time of sending into bins of equal length, in seconds."""
    end = max(row.at_s for row in rows) or 1.0
    count = min(_MOST_BINS, ceil(len(rows) / _LEAST_IN_BIN))
    bins: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        bins[min(int(row.at_s / end * count), count - 1)].append(row)
    return end / count, bins


def _attainment(axes: Axes, rows: Sequence[Row], limits: Limits) -> None:
    seconds, bins = _bins(rows)
    points = [
        ((n + 0.5) * seconds, sum(row.meets(limits) for row in of) / len(of))
        for n, of in enumerate(bins)
        if of
    ]
    at, shares = zip(*points, strict=True)
    axes.plot(at, shares, color=_COLOURS["three"], marker="o", markersize=3, label="measured")
    _mark(axes.axhline, limits.goal, f"goal {limits.goal:g}")
    axes.set(ylim=(0, 1.03), xlabel="seconds", xlim=(0, None))
    _explain(axes)


def _in_flight(axes: Axes, rows: Sequence[Row], _: Limits) -> None:
    seconds, bins = _bins(rows)
    edges = [n * seconds for n in range(len(bins) + 1)]
    axes.stairs(
        [len(of) / seconds for of in bins],
        edges,
        baseline=None,
        color=_COLOURS["one"],
        label="arrivals per second",
    )
    changes = sorted([(row.at_s, 1) for row in rows] + [(row.ended_s, -1) for row in rows])
    every, running = max(1, len(changes) // 1000), 0
    points = [(0.0, 0)]
    for number, (at_s, by) in enumerate(changes):
        running += by
        if number % every == 0 or number == len(changes) - 1:
            points.append((at_s, running))
    at, values = zip(*points, strict=True)
    axes.step(at, values, where="post", color=_COLOURS["two"], label="in flight")
    axes.set(xlabel="seconds", xlim=(0, None), ylim=(0, None))
    _explain(axes)


def _ttft(axes: Axes, rows: Sequence[Row], limits: Limits) -> None:
    _shares(axes, [row.ttft_s for row in rows], limits.ttft_s, limits.goal)


def _tpot(axes: Axes, rows: Sequence[Row], limits: Limits) -> None:
    # An answer of one token has none, and misses nothing by it; a failed one has no place here.
    values = [row.tpot_s for row in rows if row.tpot_s is not None]
    _shares(axes, values, limits.tpot_s, limits.goal)


def _shares(axes: Axes, values: Sequence[float | None], limit_s: float, goal: float) -> None:
    """Draw the share of requests at or below each value; those without one never are."""
    measured = sorted(value * 1e3 for value in values if value is not None)
    if measured:
        shares = [(n + 1) / len(values) for n in range(len(measured))]
        axes.step(measured, shares, where="post", color=_COLOURS["one"])
    _mark(axes.axvline, limit_s * 1e3, f"limit {write_ms(limit_s)}")
    _mark(axes.axhline, goal, f"goal {goal:g}", ":")
    if measured and measured[-1] > 20 * max(measured[0], 0.01):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(0, None)
    axes.set(ylim=(0, 1.03), xlabel="milliseconds")
    _explain(axes)


def _joint(axes: Axes, rows: Sequence[Row], limits: Limits) -> None:
    if len(rows) > _MOST_POINTS:
        rows = Random(0).sample(rows, _MOST_POINTS)  # noqa: S311 - which points are drawn
    for meets, colour, label in ((True, "three", "within both"), (False, "two", "missed")):
        points = [
            (row.ttft_s * 1e3, row.tpot_s * 1e3)
            for row in rows
            if row.ttft_s is not None and row.tpot_s is not None and row.meets(limits) == meets
        ]
        if points:
            ttft, tpot = zip(*points, strict=True)
            axes.plot(ttft, tpot, "o", color=_COLOURS[colour], markersize=3, alpha=0.6, label=label)
    box = Rectangle((0, 0), limits.ttft_s * 1e3, limits.tpot_s * 1e3, fill=False, linestyle="--")
    box.set_edgecolor(_COLOURS["dim"])
    axes.add_patch(box)
    axes.autoscale_view()
    axes.set(xlabel="TTFT, milliseconds", ylabel="TPOT, milliseconds")
    axes.set(xlim=(0, None), ylim=(0, None))
    drawn = [row.ttft_s * 1e3 for row in rows if row.ttft_s]
    if drawn and max(drawn) > 20 * min(drawn):
        axes.set_xscale("log")
        axes.set_xlim(min(drawn) * 0.8, max(*drawn, limits.ttft_s * 1e3) * 1.2)
        axes.xaxis.set_major_formatter("{x:g}")
    if axes.get_legend_handles_labels()[0]:
        _explain(axes)


def _mark(line: Callable[..., object], at: float, label: str, style: str = "--") -> None:
    line(at, color=_COLOURS["dim"], linestyle=style, linewidth=1.2, label=label)


def _explain(axes: Axes) -> None:
    """Write the legend above the picture, where it hides nothing."""
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderpad=0)


def _headline(limits: Limits, got: Score) -> str:
    shown = (
        (f"{got.attainment:.3f}", f"within both limits; goal {limits.goal:g}"),
        (f"{got.goodput_per_s:.2f}/s", f"goodput, of {got.requests_per_s:.2f} requests/s"),
        (write_ms(got.ttft_s.p90), f"TTFT p90; limit {write_ms(limits.ttft_s)}"),
        (write_ms(got.tpot_s.p90), f"TPOT p90; limit {write_ms(limits.tpot_s)}"),
    )
    return "".join(f"<div><b>{value}</b><span>{words}</span></div>" for value, words in shown)


def _warn(got: Score) -> str:
    if not got.client_overloaded:
        return ""
    return (
        f"<p><b>The client itself sent {got.late} requests late:</b> the machine that sent them "
        "was too slow, and these figures are not the server's alone.</p>\n"
    )


def _table(got: Score) -> str:
    percentiles = [
        (name, " / ".join(write_ms(value) for value in (of.p50, of.p90, of.p99)))
        for name, of in (("TTFT", got.ttft_s), ("TPOT", got.tpot_s), ("sent late by", got.late_s))
    ]
    rows = [
        ("requests", f"{got.requests:,}"),
        ("within both limits", f"{got.met:,}"),
        ("failed", f"{got.failed:,}"),
        ("95 % interval of the attainment", f"{got.low:.3f} to {got.high:.3f}"),
        ("seconds", f"{got.seconds:.1f}"),
        ("tokens per second", f"{got.tokens_per_s:.0f}"),
        ("percentiles", "50 / 90 / 99"),
        *percentiles,
    ]
    return "".join(f'<tr><td>{name}</td><td class="n">{value}</td></tr>' for name, value in rows)
