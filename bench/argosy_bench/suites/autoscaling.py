"""How good the scaling law is on recorded traces, and how fast the simulator is.

    python -m argosy_bench.suites.autoscaling --json build/bench/autoscaling.json
    python -m argosy_bench.suites.autoscaling --traces DIR [--policy LAW] [--only NAME,NAME] …

The project has no traces: `--traces` names a folder of them, as `argosy_bench/scaling/traces.py`
describes it. Without it, only the speed is measured: requests that a constant fleet is played
through in a second of CPU. The law is not in that figure: it runs every 15 simulated seconds,
whatever the number of requests.

A short round while a law is changed takes one seed and some traces (`--seeds 1 --only conv,r1`).
Everything after `--` goes to `argosy simulate`, such as `-- --first-token in-batch`.
"""

import argparse
import statistics
import time
from pathlib import Path
from random import Random

from rich.console import Console

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_bench.scaling import runs, score
from argosy_bench.scaling.runs import Asked
from argosy_bench.scaling.score import Row
from argosy_bench.scaling.traces import RECORDINGS, Recording
from argosy_operator.sim.replay import Replicas, static
from argosy_operator.sim.traces import Trace
from argosy_operator.sim.world.machine import Replica, Setup

SPEED = (
    Figure("simulated_requests_per_s", "1/s", Target(">=", 100_000, of_the_machine=True), digits=0),
)
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
    trace, setup = requests(count), Setup(Replica.preset("llama-70b-h100-tp4"), 1.0, 0.06)
    seconds = []
    for _ in range(runs):
        begun = time.process_time()
        run = static(setup, trace, _REPLICAS)
        seconds.append(time.process_time() - begun)
        if not run.world.finished:
            raise RuntimeError("requests are left in the simulated fleet")
    figures.put("simulated_requests_per_s", count / statistics.median(seconds))


def compare(
    figures: Figures, asked: Asked, recordings: list[Recording], seeds: int, errors: list[str]
) -> None:
    """Play the law on the traces, print each run as it ends, and put the figures."""
    console = Console(highlight=False)
    console.print(HEADER, soft_wrap=True)
    rows: list[Row] = []
    for error in (score.EXACT, *errors):
        of = [one for one in recordings if one.forecastable or error == score.EXACT]
        for row in runs.play(asked, of, seeds, error):
            rows.append(row)
            console.print(line(row), soft_wrap=True)
    figures.lists["runs"] = [row.shown() for row in rows]
    figures.notes["policy"] = asked.policy
    score.put(figures, rows)


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


def chosen(names: str | None) -> list[Recording]:
    """The recordings of these names, all for None. SystemExit for a name that is none."""
    if names is None:
        return list(RECORDINGS)
    of = {recording.name: recording for recording in RECORDINGS}
    if unknown := [name for name in names.split(",") if name not in of]:
        raise SystemExit(f"--only {','.join(unknown)}: write some of {', '.join(of)}")
    return [of[name] for name in names.split(",")]


def main() -> int:
    """Run the suite; exit status 1 if a target of the product is missed."""
    asked = _parser().parse_args()
    speed = asked.traces is None or asked.requests is not None
    rows = (SPEED if speed else ()) + (score.FIGURES if asked.traces else ())
    figures = Figures(rows, "python -m argosy_bench.suites.autoscaling")
    if speed:
        measure(figures, asked.requests or 100_000, asked.runs)
    if asked.traces:
        recordings = chosen(asked.only)
        if absent := [f for r in recordings for f in r.files(asked.traces) if not f.is_file()]:
            raise SystemExit(f"--traces {asked.traces}: there is no {absent[0]}")
        errors = list(PROFILE_ERRORS) if asked.profile_errors else []
        common = Asked(asked.traces, asked.scratch, asked.policy, tuple(asked.more))
        compare(figures, common, recordings, asked.seeds, errors)
    return conclude(figures, asked.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m argosy_bench.suites.autoscaling", description=__doc__
    )
    add = parser.add_argument
    add("--requests", type=int, help="for the speed (100000; with --traces it is not measured)")
    add("--runs", type=int, default=5, help="of the speed")
    add("--traces", type=Path, help="folder of traces")
    add("--policy", default="goodput", help="the law, as argosy simulate takes it")
    add("--only", metavar="NAME,…", help="only these traces")
    add("--seeds", type=int, default=3, help="0, 1, … of the copies' delays and the scrapes")
    add("--profile-errors", action="store_true", help="also with priors that are wrong or absent")
    add("--scratch", type=Path, default=Path("build/bench/autoscaling"), help="results of the runs")
    add("--json", type=Path, help="write the figures file here")
    add("more", nargs="*", help="after --: more flags of argosy simulate")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
