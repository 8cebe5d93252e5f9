"""One run as a page for people: figures and charts in one HTML file that loads nothing.

`intervals` and the steps of replicas become `Chart`s, drawn as SVG in pure text, and these a
`page`. Times are seconds of the trace. A day has as many points as an hour: intervals grow with the
trace.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from argosy_law.sim import figures
from argosy_law.sim.flags import FIGURES
from argosy_law.sim.replay import Run
from argosy_law.sim.world.fleet import PoolName

LEAST_S = 60.0
"""The shortest interval in which arrivals and attainment are counted."""
MOST_POINTS = 480


def describe_rollout(run: Run, result: Mapping[str, float | str | None]) -> str:
    """The rollout of a run in words, for a terminal; empty without one."""
    rollout = run.rollout
    if rollout is None:
        return ""
    strategy = rollout.plan.strategy
    surge = "" if strategy.surge is None else f", maxSurgeGPUs {strategy.surge}"
    lines = [f"Rollout ({strategy.name}{surge}):"]
    for turn in rollout.turns:
        waits = "waits for " if turn.state in ("NewPodsStart", "OldPodsLeave") else ""
        lines.append(f"{turn.at:8.0f} s  {turn.state}: {waits}{turn.message}")
    took, killed = result["rollout_s"], result["rollout_killed"]
    whole = "It did not end" if took is None else f"It took {took:.0f} s"
    lost = "no request was lost" if not killed else f"{killed} requests were lost"
    lines.append(
        f"{whole}, and {lost}. At most {result['rollout_gpus_over']} GPUs beyond those of the "
        "wanted pods were used."
    )
    met, without = result["rollout_attainment"], result["rollout_attainment_without"]
    if met is not None and without is not None:
        lines.append(
            f"Of the requests that came meanwhile {met:.3f} met both limits; without the rollout "
            f"{without:.3f} would have."
        )
    return "\n".join(lines) + "\n"


Steps = list[tuple[float, float]]
"""(time, value from then on), from time 0."""


@dataclass(frozen=True, slots=True)
class Interval:
    """What arrived in one interval."""

    start_s: float
    seconds: float
    requests: int
    met: int
    """Of these, how many met both limits."""

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def attainment(self) -> float | None:
        """None: nothing arrived."""
        return self.met / self.requests if self.requests else None


def intervals(run: Run) -> list[Interval]:
    """Of equal length from the start of the trace to the last arrival, the warm-up included."""
    end = run.world.trace.end
    seconds = LEAST_S * max(ceil(end / LEAST_S / MOST_POINTS), 1)
    requests = [0] * (int(end // seconds) + 1)
    met = [0] * len(requests)
    for arrival, ttft, tpot in figures.verdicts(run.world, 0.0):
        requests[int(arrival // seconds)] += 1
        met[int(arrival // seconds)] += ttft and tpot
    return [
        Interval(n * seconds, min(seconds, end - n * seconds) or seconds, *both)
        for n, both in enumerate(zip(requests, met, strict=True))
    ]


def wanted(run: Run, role: PoolName) -> Steps:
    """Replicas that the law had asked for."""
    moves = [(at, by) for at, of, by in run.moves if of == role]
    begun = sum(pod.created_at == 0 for pod in run.world.pods[role])
    return _steps([(0.0, begun), *moves], run.world.trace.end)


def ready(run: Run, role: PoolName) -> Steps:
    """Replicas that took requests."""
    changes: list[tuple[float, int]] = []
    for pod in run.world.pods[role]:
        until = min(pod.drain_at, pod.gone_at)
        if pod.ready_at < until:
            changes += [(pod.ready_at, 1), (until, -1)]
    return _steps(changes, run.world.trace.end)


def gpus(run: Run) -> Steps:
    """GPUs of all pods from their creation to their deletion."""
    each = run.world.setup.replica.machine.gpus
    changes = [
        change
        for pods in run.world.pods.values()
        for pod in pods
        for change in ((pod.created_at, each), (pod.gone_at, -each))
    ]
    return _steps(changes, run.world.trace.end)


def _steps(changes: Iterable[tuple[float, int]], end: float) -> Steps:
    """The sum of the changes so far, at each time at which it changes."""
    sums: dict[float, float] = {0.0: 0}
    total = 0
    for at, by in sorted(changes):
        if at <= end:
            total += by
            sums[at] = total
    return list(sums.items())


WIDTH, HEIGHT = 960, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 24
"""Margins around the drawing, in the same units."""
_HOUR_S, _MINUTE_S = 3600.0, 60.0

Point = tuple[float, float | None]
"""(seconds, value); None: there is no value then, and the line breaks."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series."""

    name: str
    """For the legend; empty: it has no entry there."""
    points: Sequence[Point]
    style: str
    """Class of the page's style sheet: a colour, and `wanted` for a dashed line."""
    steps: bool = False
    """Whether a value holds until the next point."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the same time."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    end_s: float
    warmup_s: float
    """Shaded: what is not counted."""
    top: float | None = None
    """The largest value of the axis; None: what the lines need."""

    def svg(self) -> str:
        """The picture with its title and legend."""
        most = self.top or ceiling(
            max((v for line in self.lines for _, v in line.points if v is not None), default=0.0)
        )
        legend = "".join(
            f'<span class="{line.style}"><svg viewBox="0 0 24 8" aria-hidden="true">'
            f'<path d="M0 4H24"/></svg>{escape(line.name)}</span>'
            for line in self.lines
            if line.name
        )
        drawn = "".join(
            f'<path class="{line.style}" d="{self._path(line, most)}"/>' for line in self.lines
        )
        return (
            f"<figure><figcaption><b>{escape(self.title)}</b> <i>{escape(self.unit)}</i>{legend}"
            f'</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{escape(self.title)}">{self._axes(most)}{drawn}</svg></figure>'
        )

    def _x(self, seconds: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.end_s, 1)

    def _y(self, value: float, most: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most, 1)

    def _path(self, line: Line, most: float) -> str:
        words: list[str] = []
        drawing = False
        for at, value in line.points:
            if value is None:
                drawing = False
                continue
            x, y = self._x(at), self._y(value, most)
            words.append(f"{f'H{x}V' if line.steps else f'L{x} '}{y}" if drawing else f"M{x} {y}")
            drawing = True
        if drawing and line.steps:
            words.append(f"H{self._x(self.end_s)}")
        return "".join(words)

    def _axes(self, most: float) -> str:
        floor_y, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        parts = [
            f'<rect class="warmup" x="{LEFT}" y="{TOP}" height="{floor_y - TOP}" '
            f'width="{round(self._x(min(self.warmup_s, self.end_s)) - LEFT, 1)}"/>'
        ]
        for n in range(5):
            value, y = most * n / 4, self._y(most * n / 4, most)
            parts.append(f'<path class="grid" d="M{LEFT} {y}H{right}"/>')
            parts.append(f'<text class="y" x="{LEFT - 6}" y="{y + 4}">{value:g}</text>')
        step, unit, seconds = time_step(self.end_s)
        for n in range(int(self.end_s / step) + 1):
            label = f"{n * step / seconds:g} {unit}"
            parts.append(f'<text class="x" x="{self._x(n * step)}" y="{HEIGHT - 8}">{label}</text>')
        return "".join(parts)


def ceiling(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten: quarters of it are short to write."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(power * n for n in (1, 2, 4, 8, 10) if power * n >= value)


def time_step(seconds: float) -> tuple[float, str, float]:
    """(seconds between marks, their unit, seconds of the unit), for at most twelve marks."""
    units = [("min", _MINUTE_S, n) for n in (1, 2, 5, 10, 15, 30)]
    units += [("h", _HOUR_S, n) for n in (1, 2, 3, 6, 12, 24, 48, 168)]
    for unit, of, n in units:
        if seconds <= 12 * of * n:
            return of * n, unit, of
    return seconds / 12, "h", _HOUR_S


STYLE = """
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
<style>{STYLE}</style></head><body>
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
    end, parts = run.world.trace.end, intervals(run)
    middle = [part.start_s + part.seconds / 2 for part in parts]
    arrivals = [(at, part.per_s) for at, part in zip(middle, parts, strict=True)]
    within = [(at, part.attainment) for at, part in zip(middle, parts, strict=True)]
    replicas = [
        Line(f"{role} {word}", of(run, role), f"{colour} {word}", steps=True)
        for role, colour in zip(run.world.roles, ("one", "two"), strict=False)
        for word, of in (("wanted", wanted), ("ready", ready))
    ]
    held = [Line("this run", gpus(run), "one", steps=True)]
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
