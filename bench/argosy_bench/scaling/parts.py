"""How good the scaling law is, on shaped loads and on recorded traces, and how fast all of it is.

speed        requests that a constant fleet is played through in a second of CPU
shapes       the law on ramps, steps, bursts and an outage of the metrics
rollouts     a new revision under the law, with a surge of 0, of one set, and of all
canaries     revisions that miss the SLO, and revisions that do not, as canaries
traces       the law on a folder of recorded traces (--traces)
rivals       the laws of other autoscalers on the same traces, with the same queue and attainment

What follows `--` goes to `argosy simulate`, such as `-- --first-token in-batch`.
"""

import argparse
import statistics
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from rich.console import Console

from argosy_bench.scaling import canaries, rivals, rollouts, runs, score, shapes
from argosy_bench.scaling.runs import Asked
from argosy_bench.scaling.score import Row
from argosy_bench.scaling.traces import Recording, chosen
from argosy_law.sim.laws import LAWS
from argosy_law.sim.replay import Replicas, static
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.machine import Replica, Setup
from local.figures import Figure, Figures

SPEED = (Figure("simulated_requests_per_s", "1/s", digits=0),)
PROFILE_ERRORS = ("0.8", "1.2", "none")
_RATE = 16.0
"""Requests per second; six prefill and four decode replicas keep up with them."""
_REPLICAS: Replicas = {"prefill": 6, "decode": 4}


def requests(count: int, seed: int = 0) -> Trace:
    """Poisson arrivals with lognormal lengths, of about 1,100 and 200 tokens on average."""
    rng, at, trace = Random(seed), 0.0, Trace([], [], [])  # noqa: S311 (a load, not a secret)
    for _ in range(count):
        at += rng.expovariate(_RATE)
        trace.arrival.append(at)
        trace.prompt.append(min(int(rng.lognormvariate(6.6, 0.9)) + 1, 30_000))
        trace.output.append(min(int(rng.lognormvariate(4.8, 1.0)) + 1, 4_000))
    return trace


def measure(figures: Figures, count: int, runs: int) -> None:
    """Play the same requests `runs` times, and put the median."""
    trace, replica = requests(count), Replica.preset("llama-70b-h100-tp4")
    setup = Setup(replica, 1.0, 0.06, order="deadline", resumes=True)
    seconds = []
    for _ in range(runs):
        begun = time.process_time()
        run = static(setup, trace, _REPLICAS)
        seconds.append(time.process_time() - begun)
        if not run.world.finished:
            raise RuntimeError("requests are left in the simulated fleet")
    figures.put("simulated_requests_per_s", count / statistics.median(seconds))


def shaped(figures: Figures, seeds: int) -> None:
    """Play the operator's law on the shaped loads."""
    console = Console(highlight=False)
    for text in shapes.measure(figures, LAWS["goodput"], seeds):
        console.print(text, soft_wrap=True)


def compare(
    figures: Figures, asked: Asked, recordings: list[Recording], seeds: int, errors: list[str]
) -> None:
    """Play the law on the traces, print each run as it ends, and put the figures."""
    figures.declare(score.FIGURES)
    rows = list(_played(asked, recordings, seeds, (score.EXACT, *errors)))
    figures.lists["runs"] = [row.columns() for row in rows]
    score.put(figures, rows)


def _played(
    asked: Asked, recordings: list[Recording], seeds: int, errors: Iterable[str]
) -> Iterator[Row]:
    console = Console(highlight=False)
    console.print(f"{asked.policy}\n{HEADER}", soft_wrap=True)
    for error in errors:
        of = [one for one in recordings if one.forecastable or error == score.EXACT]
        for row in runs.play(asked, of, seeds, error):
            console.print(line(row), soft_wrap=True)
            yield row


HEADER = (
    "trace     seed prior  within  ttft  tpot |  GPU-h /static  /same |  static    same | "
    "rev/h  bad min  killed  took"
)


def line(row: Row) -> str:
    """One run under `HEADER`."""
    of = row.result
    return (
        f"{row.recording.name:9} {row.seed:4} {row.error:>5}  {row.attainment:6.3f} "
        f"{of['attainment_ttft']:5.3f} {of['attainment_tpot']:5.3f} | {row.gpu_hours:6.1f}  "
        f"{row.over_static:6.3f} {row.over_same_engine:6.3f} | {of['replicas_static']:>7} "
        f"{of['replicas_static_same_engine']:>7} | {row.reversals_per_hour:5.2f}  "
        f"{of['violation_minutes']:7}  {of['requests_killed']:6}  {of['wall_s']:.0f} s"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("--requests", type=int, default=100_000, help="of speed (100000)")
    add("--seeds", type=int, default=3, help="0, 1, … of loads, and of the copies' delays (3)")
    add("--traces", type=Path, help="folder of traces")
    add("--names", metavar="NAME,…", help="only these traces of the folder")
    add("--policy", default="goodput", help="the law, as argosy simulate takes it")
    add("--rivals", metavar="LAW,…", default=",".join(rivals.RIVALS), help="the laws of rivals")
    add("--choose-on", metavar="NAME,…", help="settings of rivals are chosen on these (all)")
    add("--processes", type=int, default=1, help="plays of rivals at the same time (1)")
    add("--picture", type=Path, metavar="FILE", help="write the curves of rivals here, as SVG")
    add("--one-search", action="store_true", help="constant fleets of the first seed for all")
    add("--profile-errors", action="store_true", help="also with priors that are wrong or absent")
    add("--scratch", type=Path, default=Path("build/bench/scaling"), help="results of the runs")
    add("more", nargs="*", help="after --: more flags of argosy simulate")


def _measure_speed(figures: Figures, asked: argparse.Namespace) -> None:
    figures.declare(SPEED)
    measure(figures, asked.requests, 5)


def _measure_shapes(figures: Figures, asked: argparse.Namespace) -> None:
    figures.declare(shapes.FIGURES)
    shaped(figures, asked.seeds)


def _measure_rollouts(figures: Figures, asked: argparse.Namespace) -> None:
    figures.declare(rollouts.FIGURES)
    console = Console(highlight=False)
    for text in rollouts.measure(figures, asked.seeds):
        console.print(text, soft_wrap=True)


def _measure_canaries(figures: Figures, asked: argparse.Namespace) -> None:  # noqa: ARG001
    figures.declare(canaries.FIGURES)
    console = Console(highlight=False)
    for text in canaries.measure(figures):
        console.print(text, soft_wrap=True)


def _recordings(asked: argparse.Namespace) -> list[Recording]:
    recordings = chosen(asked.names)
    if absent := [f for r in recordings for f in r.files(asked.traces) if not f.is_file()]:
        raise SystemExit(f"--traces {asked.traces}: there is no {absent[0]}")
    return recordings


def _measure_traces(figures: Figures, asked: argparse.Namespace) -> None:
    if asked.traces is None:
        figures.notes["traces"] = "not played: name their folder with --traces"
        return
    recordings = _recordings(asked)
    errors = list(PROFILE_ERRORS) if asked.profile_errors else []
    common = Asked(asked.traces, asked.scratch, asked.policy, tuple(asked.more), asked.one_search)
    compare(figures, common, recordings, asked.seeds, errors)
    figures.notes["policy"] = asked.policy


def _measure_rivals(figures: Figures, asked: argparse.Namespace) -> None:
    if asked.traces is None:
        figures.notes["rivals"] = "not played: name the folder of traces with --traces"
        return
    recordings = _recordings(asked)
    names = asked.rivals.split(",")
    if unknown := [name for name in names if name not in rivals.RIVALS]:
        raise SystemExit(f"--rivals {','.join(unknown)}: write some of {', '.join(rivals.RIVALS)}")
    common = Asked(asked.traces, asked.scratch, more=tuple(asked.more))
    courses = {one.name: rivals.Course(one, common) for one in recordings}
    some = [one.name for one in chosen(asked.choose_on) if one.name in courses]
    figures.declare(rivals.FIGURES)
    console = Console(highlight=False)
    rivals.compare(
        figures,
        rivals.Players(asked.scratch, asked.processes, partial(console.print, soft_wrap=True)),
        names,
        list(courses.values()),
        [courses[name] for name in some] or list(courses.values()),
    )
    if asked.picture is not None:
        asked.picture.write_text(rivals.picture(figures.lists["points"]))


PARTS = {
    "speed": _measure_speed,
    "shapes": _measure_shapes,
    "rollouts": _measure_rollouts,
    "canaries": _measure_canaries,
    "traces": _measure_traces,
    "rivals": _measure_rivals,
}
