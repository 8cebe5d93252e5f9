"""The laws of other autoscalers beside the operator's: same queue, same pods, equal attainment.

A contestant's curve on a trace comes from playing it with tighter and looser aims: ours with goals,
another with all its thresholds times a number. Its GPU-hours are those at an attainment of 0.90, by
interpolation. What else there is to choose, such as how the thresholds of prefill and decode go
together, is chosen once for all traces, from a grid that grows until the best is inside it. So a
rival has one setting, but for how loose it is on each trace. It is played with one looseness for
all, too: the loosest that has 0.90 on each trace, as its user would have to.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import pairwise
from math import ceil, exp, inf, log
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

from argosy_bench.scaling import runs
from argosy_bench.scaling.runs import Asked
from argosy_bench.scaling.traces import Recording
from argosy_law.goals import Goals
from argosy_law.sim import cli, figures
from argosy_law.sim.laws.dynamo import Dynamo
from argosy_law.sim.laws.hpa import HorizontalPodAutoscaler
from argosy_law.sim.laws.keda import Keda
from argosy_law.sim.laws.law import Goodput, Law
from argosy_law.sim.laws.wva import Wva
from argosy_law.sim.replay import ROLES, replay
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.supply import PoolName
from local.figures import Figure, Figures, Target

GOAL = 0.90
BEGIN, MOST = 1.5, 10
"""Replicas of a role at the start, and the most that a law may have: so many times those that the
work keeps busy in the mean. The bound only keeps a law that overshoots from going on."""
FINE, CLOSE = 1.1, 0.12
"""Two looseness this near to each other are not parted further, nor two attainments."""
MOST_STEPS = 12

FIGURES = (
    Figure("ours_vs_best_rival_geomean", target=Target("<=", 0.91)),
    Figure("ours_vs_best_rival_worst", target=Target("<=", 1.02)),
)
"""GPU-hours at equal attainment over those of the cheapest rival of each trace."""

Setting = tuple[float, ...]
"""One number for each knob of a contestant."""


@dataclass(frozen=True, slots=True)
class Knob:
    """What is chosen once for all traces."""

    name: str
    start: float
    step: float = 2.0
    """The grid has the start times powers of it."""
    most: float = inf
    """No value may be as large as this."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What a pod carries within the SLO on one trace, as its owner finds by a load test."""

    prompt_tokens: float
    """Computed within the TTFT limit."""
    sequences: float
    """Of mean context, whose step is within the TPOT limit and which fit."""
    kv: float
    """Share of the KV tokens that these hold."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One law with what its user may choose."""

    name: str
    aim: Callable[[Goals, Carried, float, Setting], tuple[Law[Any], Goals]]
    """The law and its goals for a looseness and a setting: looser means fewer replicas. Thresholds
    are shares of what a pod carries, so that one setting is one for all models and limits."""
    knobs: tuple[Knob, ...] = ()
    step: float = 1.25
    """From the first looseness to the second."""
    loosest: float = inf
    tightest: float = 0.0

    def snap(self, looseness: float) -> float:
        """Return the next looseness that is a power of the step: plays of it come again."""
        power = round(log(looseness) / log(self.step))
        return min(max(self.step**power, self.tightest), self.loosest)


Aim = tuple[Law[Any], Goals]


def _ours(goals: Goals, carried: Carried, looseness: float, setting: Setting) -> Aim:  # noqa: ARG001
    assert goals.slo is not None
    slo = replace(goals.slo, attainment=1 - (1 - GOAL) * looseness)
    return Goodput(), replace(goals, slo=slo)


def _hpa(goals: Goals, carried: Carried, looseness: float, setting: Setting) -> Aim:
    return HorizontalPodAutoscaler(*_thresholds(carried, looseness, setting)), goals


def _keda(goals: Goals, carried: Carried, looseness: float, setting: Setting) -> Aim:
    return Keda(*_thresholds(carried, looseness, setting)), goals


def _thresholds(carried: Carried, looseness: float, setting: Setting) -> tuple[float, float]:
    """Return the prompt tokens of prefill and the sequences of decode."""
    prefill, decode = looseness * carried.prompt_tokens, looseness * carried.sequences
    return prefill / setting[0], decode


def _wva(goals: Goals, carried: Carried, looseness: float, setting: Setting) -> Aim:
    kv, kept = setting
    of = min(kv * looseness * carried.kv, 1.0)
    return Wva(of, looseness, down=kept * Wva().up), goals


def _dynamo(goals: Goals, carried: Carried, looseness: float, setting: Setting) -> Aim:  # noqa: ARG001
    return Dynamo(setting[0] * looseness, looseness), goals


CONTESTANTS = {
    one.name: one
    for one in (
        Contestant("goodput", _ours, step=2.0, loosest=4.0, tightest=0.1),
        Contestant("hpa", _hpa, (Knob("decode over prefill", 2.0),), step=1.4),
        Contestant("keda", _keda, (Knob("decode over prefill", 2.0),), step=1.4),
        Contestant(
            "wva",
            _wva,
            (Knob("KV over busy prefill", 1.0), Knob("down over up", 0.6, 1.4, 1.0)),
        ),
        Contestant("dynamo", _dynamo, (Knob("TTFT over ITL", 1.0),), tightest=0.4),
    )
}
OURS = "goodput"
RIVALS = [name for name in CONTESTANTS if name != OURS]


@dataclass(frozen=True, slots=True)
class Point:
    """One play."""

    looseness: float
    attainment: float
    gpu_hours: float


def at_goal(points: Iterable[Point]) -> Point | None:
    """Return the point at an attainment of `GOAL`; None if no point has it.

    Of the points those count for whose attainment no other needs less. ln(GPU-hours) and
    ln(looseness) are linear in the attainment between two of them. If all have more, the cheapest
    counts as it is.
    """
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.gpu_hours, -point.attainment)):
        if not front or point.attainment > front[-1].attainment:
            front.append(point)
    if not front or front[-1].attainment < GOAL:
        return None
    for low, high in pairwise(front):
        if low.attainment < GOAL <= high.attainment:
            share = (GOAL - low.attainment) / (high.attainment - low.attainment)
            looseness, gpu_hours = (
                exp(log(a) + share * (log(b) - log(a)))
                for a, b in (
                    (low.looseness, high.looseness),
                    (low.gpu_hours, high.gpu_hours),
                )
            )
            return Point(looseness, GOAL, gpu_hours)
    return front[0]


def curve(
    play: Callable[[float], Point],
    begin: float,
    *,
    step: float = 1.25,
    tightest: float = 0.0,
    loosest: float = inf,
) -> list[Point]:
    """Play until two aims that are close to each other have the goal between them.

    From `begin` looser while the goal is met, tighter while it is not, in steps that double in the
    logarithm; then the middle of the two that have the goal between them. A law that overshoots may
    be cheaper with a tighter aim, so the cheapest that meets the goal has a dearer one before it.
    """
    points = {begin: play(begin)}
    first = step
    for _ in range(MOST_STEPS):
        met = [p for p in points.values() if p.attainment >= GOAL]
        missed = [p for p in points.values() if p.attainment < GOAL]
        if met and missed:
            high = max(met, key=lambda p: p.looseness)
            low = min(missed, key=lambda p: abs(log(p.looseness / high.looseness)))
            apart = max(low.looseness, high.looseness) / min(low.looseness, high.looseness)
            if apart <= FINE or high.attainment - low.attainment <= CLOSE:
                break
            at = (low.looseness * high.looseness) ** 0.5
        elif met:
            at = min(max(points) * step, loosest)
            step = min(step * step, 4.0)
        else:
            at = max(min(points) / step, tightest)
            step = min(step * step, 4.0)
        if at in points:
            break
        points[at] = play(at)
    for _ in range(MOST_STEPS):
        met = [p for p in points.values() if p.attainment >= GOAL]
        best = min(met, key=lambda p: p.gpu_hours, default=None)
        if best is None or best.looseness > min(points):
            break
        at = max(best.looseness / first**2, tightest)
        if at in points:
            break
        points[at] = play(at)
    return sorted(points.values(), key=lambda p: p.looseness)


def choose(
    knobs: Sequence[Knob], cost: Callable[[Setting], float]
) -> tuple[Setting, dict[Setting, float]]:
    """Return the cheapest setting, and the cost of each that was tried.

    Knob by knob the grid grows by its step in the direction in which the cost falls, until the best
    has a dearer neighbour on both sides or the next one is not allowed.
    """
    best: Setting = tuple(knob.start for knob in knobs)
    costs = {best: cost(best)}
    before = None
    while before != best:
        before = best
        for index, knob in enumerate(knobs):
            while True:
                values = [best[index] / knob.step, best[index] * knob.step]
                tried = [
                    (*best[:index], value, *best[index + 1 :])
                    for value in values
                    if value < knob.most
                ]
                for setting in tried:
                    if not any(_alike(setting, other) for other in costs):
                        costs[setting] = cost(setting)
                cheapest = min(costs, key=costs.__getitem__)
                if cheapest == best:
                    break
                best = cheapest
    return best, costs


def _alike(one: Setting, other: Setting) -> bool:
    """Whether two settings are the same but for rounding."""
    return all(abs(a - b) < 1e-9 * a for a, b in zip(one, other, strict=True))


# --- on traces ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Course:
    """One trace, and what every contestant is given on it."""

    recording: Recording
    asked: Asked

    @property
    def name(self) -> str:
        return self.recording.name


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is read of a course."""

    options: cli.Options
    trace: Trace
    busy: Mapping[PoolName, float]
    """Replicas that the work keeps busy in the mean."""

    @property
    def gpu_hours(self) -> float:
        """What the work takes without waiting, idling or starting."""
        setup, warmup_s = self.options.setup, self.options.warmup_s
        return figures.physical_gpu_hours(self.trace, setup, warmup_s, ROLES)

    @property
    def carried(self) -> Carried:
        """What a pod carries of these requests within their SLO."""
        setup, trace = self.options.setup, self.trace
        replica, profile = setup.replica, setup.replica.profile
        context = sum(
            output * (prompt + output / 2)
            for prompt, output in zip(trace.prompt, trace.output, strict=True)
        ) / sum(trace.output)
        each_s = profile.per_sequence_s + profile.per_context_token_s * context
        fit = min((setup.tpot_s - profile.decode_base_s) / each_s, profile.kv_tokens / context)
        sequences = max(min(fit, replica.max_num_seqs), 1.0)
        step = replica.max_num_batched_tokens
        tokens = setup.ttft_s / profile.prefill_s(step) * step
        return Carried(tokens, sequences, sequences * context / profile.kv_tokens)


@lru_cache(maxsize=1)
def load(course: Course) -> Loaded:
    """Read a trace. UsageError or TraceError for what cannot be played."""
    asked = course.asked
    asked.scratch.mkdir(parents=True, exist_ok=True)
    flags = [
        *course.recording.flags(asked.folder, asked.scratch), *asked.more,
        "--profile", runs.PROFILE, "--cold", str(runs.COLD_S), "--policy", OURS,
        "--goal", str(GOAL), "--out", str(asked.scratch / "unused.json"),
    ]  # fmt: skip
    options = cli.parse(flags)
    trace = cli.trace_of(options)
    busy = figures.physical_pod_seconds(trace, options.setup, 0.0)
    return Loaded(options, trace, {role: busy[role] / trace.end for role in ROLES})


def play(course: Course, name: str, setting: Setting, looseness: float) -> Point:
    """Play one law on one trace; GPU-hours over those of the work alone."""
    loaded = load(course)
    options, trace = loaded.options, loaded.trace
    bounds = tuple(
        replace(role, max=ceil(MOST * loaded.busy[role.role])) for role in options.goals.roles
    )
    goals = replace(options.goals, roles=bounds)
    law, goals = CONTESTANTS[name].aim(goals, loaded.carried, looseness, setting)
    start = {role: ceil(BEGIN * busy) for role, busy in loaded.busy.items()}
    run = replay(options.setup, trace, law, goals, start)
    return Point(
        looseness,
        figures.attainment(run.world, options.warmup_s)["attainment"],
        figures.gpu_hours(run.world, options.warmup_s, trace.end) / loaded.gpu_hours,
    )


def _curve(course: Course, name: str, setting: Setting, begin: float) -> list[Point]:
    one = CONTESTANTS[name]
    return curve(
        partial(play, course, name, setting), begin,
        step=one.step, tightest=one.tightest, loosest=one.loosest,
    )  # fmt: skip


class Players:
    """Play several traces at once, and keep what was played in a file."""

    def __init__(self, scratch: Path, processes: int, say: Callable[[str], None]) -> None:
        self.say = say
        self._pool = ProcessPoolExecutor(processes)
        scratch.mkdir(parents=True, exist_ok=True)
        self._file = scratch / "points.json"
        self._points: dict[str, list[list[float]]] = (
            json.loads(self._file.read_text()) if self._file.exists() else {}
        )
        self._near: dict[str, list[float]] = {}
        """Of each contestant: looseness at the goal of the curves so far."""

    def curves(
        self, courses: Sequence[Course], settings: Mapping[str, Setting]
    ) -> dict[tuple[str, str], list[Point]]:
        """Return the curve of each law, with its setting, on each trace."""
        found, waiting = {}, {}
        for course in courses:
            for name, setting in settings.items():
                key = _key(course, name, setting)
                if key in self._points:
                    found[name, course.name] = self._known(key)
                    continue
                near = self._near.get(name)
                begin = CONTESTANTS[name].snap(median(near)) if near else 1.0
                future = self._pool.submit(_curve, course, name, setting, begin)
                waiting[future] = course, name, setting
        for future in as_completed(waiting):
            course, name, setting = waiting[future]
            points = found[name, course.name] = future.result()
            self._keep(_key(course, name, setting), points)
            if (at := at_goal(points)) is not None:
                self._near.setdefault(name, []).append(at.looseness)
            plays = ", ".join(
                f"{p.attainment:.3f} for {p.gpu_hours:.3f} ({p.looseness:.3g})" for p in points
            )
            self.say(f"{course.name} {name} {_words(setting)}: {plays}")
        return found

    def at_once(
        self, courses: Sequence[Course], name: str, setting: Setting, looseness: float
    ) -> dict[str, Point]:
        """Return the play of each trace with the same looseness."""
        found, waiting = {}, {}
        for course in courses:
            key = f"{_key(course, name, setting)} {looseness:g}"
            if key in self._points:
                (found[course.name],) = self._known(key)
            else:
                future = self._pool.submit(play, course, name, setting, looseness)
                waiting[future] = course.name, key
        for future in as_completed(waiting):
            trace, key = waiting[future]
            found[trace] = future.result()
            self._keep(key, [found[trace]])
        return found

    def _known(self, key: str) -> list[Point]:
        return [Point(*row) for row in self._points[key]]

    def _keep(self, key: str, points: Sequence[Point]) -> None:
        self._points[key] = [[p.looseness, p.attainment, p.gpu_hours] for p in points]
        self._file.write_text(json.dumps(self._points, indent=0) + "\n")


def _words(setting: Setting) -> str:
    return ",".join(f"{value:.3g}" for value in setting) or "as it is"


_CODE = (
    "observe.py", "goals.py", "decision.py", "pace/gates.py", "signals/*.py",
    "sim/replay.py", "sim/figures.py", "sim/traces.py", "sim/rates.py", "sim/world/*.py",
    "sim/laws/*.py",
)  # fmt: skip
"""What the laws of others and the simulated fleet consist of."""


def _key(course: Course, name: str, setting: Setting) -> str:
    """Equal keys: a play would come out the same."""
    return f"{course.name} {name} {_words(setting)} {_digest(course, name)}"


@cache
def _digest(course: Course, name: str) -> str:
    code = Path(cli.__file__).parents[1]
    of = ("**/*.py",) if name == OURS else _CODE
    files = sorted({path for place in of for path in code.glob(place)})
    same = (course.recording, course.asked.more, BEGIN, MOST, runs.PROFILE, runs.COLD_S)
    digest = hashlib.sha256(repr(same).encode())
    for path in (Path(__file__), *files, *course.recording.files(course.asked.folder)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# --- the comparison -----------------------------------------------------------------------------


Curves = Mapping[tuple[str, str], Sequence[Point]]
"""By law and trace."""


def setting_of(players: Players, courses: Sequence[Course], name: str) -> Setting:
    """Choose one setting of a law for all these traces: the least mean of ln(GPU-hours) at the
    goal. A trace on which the goal is out of reach rules a setting out."""

    def cost(setting: Setting) -> float:
        curves = players.curves(courses, {name: setting})
        return mean(log(at.gpu_hours) if (at := at_goal(c)) else inf for c in curves.values())

    best, costs = choose(CONTESTANTS[name].knobs, cost)
    tried = ", ".join(f"{_words(setting)}: {exp(of):.3f}" for setting, of in costs.items())
    players.say(f"{name} has {_words(best)} of {tried}")
    return best


def one_looseness(
    players: Players, courses: Sequence[Course], name: str, setting: Setting, curves: Curves
) -> dict[str, Point]:
    """Return the plays of the loosest aim that has the goal on each trace; empty if none has."""
    at = [at_goal(curves[name, course.name]) for course in courses]
    if None in at:
        return {}
    looseness = min(one.looseness for one in at if one is not None)
    for _ in range(MOST_STEPS):
        looseness = float(f"{looseness:.3g}")
        plays = players.at_once(courses, name, setting, looseness)
        if all(point.attainment >= GOAL for point in plays.values()):
            return plays
        looseness /= 1.05
    return {}


def ratios(curves: Curves, name: str, traces: Sequence[str]) -> dict[str, float]:
    """Return our GPU-hours over those of a rival, on each trace on which both have the goal."""
    both = {t: (at_goal(curves[OURS, t]), at_goal(curves[name, t])) for t in traces}
    return {t: us.gpu_hours / it.gpu_hours for t, (us, it) in both.items() if us and it}


def compare(
    out: Figures,
    players: Players,
    rivals: Sequence[str],
    courses: Sequence[Course],
    some: Sequence[Course],
) -> None:
    """Choose settings on some courses, play all, and put the figures and what is behind them."""
    names, traces = [OURS, *rivals], [course.name for course in courses]
    settings = {name: setting_of(players, some, name) for name in names}
    curves = players.curves(courses, settings)
    out.lists["points"] = [
        {"trace": trace, "law": name, "attainment": p.attainment, "gpu_hours": p.gpu_hours}
        for trace in traces
        for name in names
        for p in curves[name, trace]
    ]
    put(out, curves, rivals, traces)
    for name in names:
        found = ratios(curves, name, traces)
        row = ", ".join(f"{trace} {ratio:.3f}" for trace, ratio in found.items())
        players.say(f"ours / {name}: {row}; mean {geometric_mean(found.values()):.3f}")
    out.lists["rivals"] = []
    for name in names:
        plays = one_looseness(players, courses, name, settings[name], curves)
        for trace in traces:
            at, alone = at_goal(curves[name, trace]), plays.get(trace)
            out.lists["rivals"].append(
                {
                    "law": name,
                    "trace": trace,
                    "setting": _words(settings[name]),
                    "gpu_hours_at_goal": None if at is None else round(at.gpu_hours, 4),
                    "attainment_at_goal": None if at is None else round(at.attainment, 4),
                    "looseness_of_all": None if alone is None else alone.looseness,
                    "attainment": None if alone is None else round(alone.attainment, 4),
                    "gpu_hours": None if alone is None else round(alone.gpu_hours, 4),
                }
            )
        if plays:
            row = ", ".join(
                f"{t} {p.attainment:.3f} for {p.gpu_hours:.3f}" for t, p in plays.items()
            )
            players.say(
                f"{name} with one looseness, {next(iter(plays.values())).looseness:g}: {row}"
            )


def put(out: Figures, curves: Curves, rivals: Sequence[str], traces: Sequence[str]) -> None:
    """Put our GPU-hours over those of the cheapest rival of each trace."""
    of = [ratios(curves, name, traces) for name in rivals]
    best = [max(found) for t in traces if (found := [r[t] for r in of if t in r])]
    if best:
        out.put("ours_vs_best_rival_geomean", geometric_mean(best))
        out.put("ours_vs_best_rival_worst", max(best))


# --- the picture --------------------------------------------------------------------------------

COLOURS = {
    "goodput": "#0b6e4f",
    "hpa": "#8a6d33",
    "keda": "#7b4fa3",
    "wva": "#c1440e",
    "dynamo": "#33658a",
}
WIDTH, HEIGHT, COLUMNS = 260, 190, 3
LEAST, MOST_SHOWN = 0.6, 4.0
"""The lowest attainment and the most GPU-hours, over those of the work alone, that are drawn."""


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Draw attainment over GPU-hours as SVG, one panel for each trace."""
    traces = list(dict.fromkeys(row["trace"] for row in rows))
    high = 44 + (HEIGHT + 50) * ceil(len(traces) / COLUMNS) + 20
    wide = 46 + (WIDTH + 40) * COLUMNS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
        'font-family="sans-serif" font-size="11">',
        "<title>Attainment over GPU-hours of several laws</title>",
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
    ]
    for index, (name, colour) in enumerate(COLOURS.items()):
        left = 46 + 110 * index
        parts.append(f'<circle cx="{left}" cy="16" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + 8}" y="20">{name}</text>')
    for index, trace in enumerate(traces):
        place = f"{46 + (WIDTH + 40) * (index % COLUMNS)} {50 + (HEIGHT + 50) * (index // COLUMNS)}"
        parts.append(f'<g transform="translate({place})">')
        parts.extend(_panel(trace, [row for row in rows if row["trace"] == trace]))
        parts.append("</g>")
    parts.append(
        f'<text x="46" y="{high - 8}">right: GPU-hours over those of the work alone; up: share of '
        f"requests within the SLO; dashed: the goal, {GOAL:g}</text></svg>"
    )
    return "\n".join(parts) + "\n"


def _panel(trace: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def x(hours: float) -> float:
        return round(WIDTH * (hours - 1) / (MOST_SHOWN - 1), 1)

    def y(attainment: float) -> float:
        return round(HEIGHT * (1 - attainment) / (1 - LEAST), 1)

    parts = [
        f'<text y="-6" font-weight="bold">{trace}</text>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999999"/>',
        f'<path d="M0 {y(GOAL)}H{WIDTH}" stroke="#999999" stroke-dasharray="4 3"/>',
    ]
    for tick in (1, 2, 3, 4):
        parts.append(f'<text x="{x(tick)}" y="{HEIGHT + 14}" text-anchor="middle">{tick}</text>')
    for share in (LEAST, 0.8, 1.0):
        parts.append(f'<text x="-4" y="{y(share) + 4}" text-anchor="end">{share:g}</text>')
    for name, colour in COLOURS.items():
        shown = [
            (x(row["gpu_hours"]), y(row["attainment"]))
            for row in rows
            if row["law"] == name and row["attainment"] >= LEAST and row["gpu_hours"] <= MOST_SHOWN
        ]
        line = " ".join(f"{a},{b}" for a, b in shown)
        width = 2.5 if name == OURS else 1
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        )
        parts += [f'<circle cx="{a}" cy="{b}" r="{width + 1}" fill="{colour}"/>' for a, b in shown]
    return parts
