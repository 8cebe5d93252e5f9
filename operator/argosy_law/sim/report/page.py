"""The page of one run: its figures and charts in one HTML file that loads nothing."""

from collections.abc import Mapping
from html import escape

from argosy_law.sim.flags import FIGURES
from argosy_law.sim.replay import Run
from argosy_law.sim.report import series
from argosy_law.sim.report.chart import Chart, Line

_STYLE = """
:root{--ink:#1b1f24;--paper:#fff;--faint:#d8dee4;--shade:#f1f3f5;--one:#0b62c4;--two:#c2570c;
--three:#1a7f4b;--dim:#57606a}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#11151a;--faint:#30363d;
--shade:#1b2128;--one:#6cb0ff;--two:#ff9a52;--three:#5fce93;--dim:#9aa5b1}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:980px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin:0}h1+p{color:var(--dim);margin:.3em 0 1.5em}
.main{display:flex;flex-wrap:wrap;gap:1em 2.5em;margin:0 0 1.5em}
.main div{min-width:8em}.main b{display:block;font-size:1.7em;font-weight:600}
.main span{color:var(--dim)}
figure{margin:0 0 1.4em}figure svg{width:100%;height:auto;display:block}
figcaption{margin-bottom:.2em}figcaption i{color:var(--dim);font-style:normal}
figcaption span{margin-left:1.2em;white-space:nowrap}
figcaption svg{width:24px;height:8px;display:inline-block;margin-right:.4em}
path{fill:none;stroke:var(--ink);stroke-width:1.6}
.one path,path.one{stroke:var(--one)}.two path,path.two{stroke:var(--two)}
.three path,path.three{stroke:var(--three)}
.wanted path,path.wanted{stroke-dasharray:3 3;stroke-width:1.2}
.goal path,path.goal{stroke:var(--dim);stroke-dasharray:6 4;stroke-width:1}
path.grid{stroke:var(--faint);stroke-width:1}.warmup{fill:var(--shade)}
text{font-size:12px;fill:var(--dim)}text.y{text-anchor:end}text.x{text-anchor:middle}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25em .8em .25em 0;
border-top:1px solid var(--faint);vertical-align:top}td.n{text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}
"""


def page(
    run: Run,
    result: Mapping[str, float | str | None],
    *,
    command: str,
    warmup_s: float,
    goal: float,
) -> str:
    """The HTML text. `command`: what was asked for, as it was written."""
    charts = "\n".join(chart.svg() for chart in _charts(run, result, warmup_s, goal))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>argosy simulate</title>
<meta name="viewport" content="width=device-width">
<style>{_STYLE}</style></head><body>
<h1>What a scaling law made of a trace</h1><p><code>{escape(command)}</code></p>
<div class="main">{_headline(result, goal)}</div>
{charts}
<p>Shaded: the warm-up, which no figure counts.</p>
<table><tr><th>figure</th><th>value</th><th>meaning</th></tr>{_table(result)}</table>
</body></html>
"""


def _charts(
    run: Run, result: Mapping[str, float | str | None], warmup_s: float, goal: float
) -> list[Chart]:
    end, parts = run.world.trace.end, series.intervals(run)
    middle = [part.start_s + part.seconds / 2 for part in parts]
    arrivals = [(at, part.per_s) for at, part in zip(middle, parts, strict=True)]
    within = [(at, part.attainment) for at, part in zip(middle, parts, strict=True)]
    replicas = [
        Line(f"{role} {word}", of(run, role), f"{colour} {word}", steps=True)
        for role, colour in zip(run.world.roles, ("one", "two"), strict=False)
        for word, of in (("wanted", series.wanted), ("ready", series.ready))
    ]
    held = [Line("this run", series.gpus(run), "one", steps=True)]
    fleet = result["replicas_static"]
    if isinstance(fleet, str):
        each = run.world.setup.replica.machine.gpus
        best = each * sum(map(int, fleet.split(",")))
        held.append(Line("best constant fleet, known afterwards", [(0, best), (end, best)], "goal"))
    reached = [
        Line("requests within both limits", within, "three"),
        Line("goal", [(0.0, goal), (end, goal)], "goal"),
    ]
    return [
        Chart("Arrivals", "requests per second", (Line("", arrivals, "one"),), end, warmup_s),
        Chart("Attainment", "share, by arrival", tuple(reached), end, warmup_s, top=1.0),
        Chart("Replicas", "pods", tuple(replicas), end, warmup_s),
        Chart("GPUs", "from creation to deletion", tuple(held), end, warmup_s),
    ]


def _headline(result: Mapping[str, float | str | None], goal: float) -> str:
    attainment, spent = result["attainment"], result["gpu_hours"]
    shown = [(_number(attainment), f"within both limits; goal {goal:g}")]
    shown.append((_number(spent), "GPU-hours"))
    for name, words in (
        ("gpu_hours_static", "of the best constant fleet's GPU-hours"),
        ("gpu_hours_static_same_engine", "of those of the best one that serves as this run does"),
    ):
        of = result[name]
        if isinstance(spent, float) and isinstance(of, float):
            shown.append((f"{100 * spent / of:.0f} %", words))
    return "".join(f"<div><b>{value}</b><span>{words}</span></div>" for value, words in shown)


def _table(result: Mapping[str, float | str | None]) -> str:
    return "".join(
        f'<tr><td><code>{name}</code></td><td class="n">{_number(result[name])}</td>'
        f"<td>{escape(meaning)}</td></tr>"
        for name, meaning in FIGURES.items()
        if name in result
    )


def _number(value: float | str | None) -> str:
    if value is None:
        return "none"
    return (
        escape(value)
        if isinstance(value, str)
        else f"{value:,.4g}"
        if value < 1e4
        else f"{value:,.0f}"
    )
