"""How good the scaling law is, on shaped loads and on recorded traces, and how fast all of it is.

    python -m argosy_bench.suites.autoscaling --json build/bench/autoscaling.json
    python -m argosy_bench.suites.autoscaling --traces DIR [--policy LAW] [--only NAME,NAME] …

Without traces, which are not in the repository, it measures

- the simulator's speed: requests that a constant fleet is played through in a second of CPU, with
  the product's defaults. The law is not in that figure: it runs every 15 simulated seconds,
  whatever the number of requests;
- the law on ramps, steps, bursts and an outage of the metrics (`argosy_bench/scaling/shapes.py`);
- what the law has learnt after thirty days, and how long a decision takes (`…/learner.py`);
- how soon it says that an SLO is out of reach (`…/unreachable.py`).

`--traces` names a folder of traces, as `argosy_bench/scaling/traces.py` describes it, and adds the
figures over these. A short round while a law is changed takes some traces and one seed, and nothing
else (`--only conv,r1 --seeds 1`). `--oracle` and `--rivals` also play these, which takes longer
(`argosy_bench/laws`). What follows `--` goes to `argosy simulate`, such as
`-- --first-token in-batch`.
"""

import argparse
import statistics
import time
from itertools import chain
from pathlib import Path
from random import Random

from rich.console import Console

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_bench.laws import equal, page
from argosy_bench.laws.player import Law, Player
from argosy_bench.scaling import learner, runs, score, shapes, unreachable
from argosy_bench.scaling.runs import Asked
from argosy_bench.scaling.score import Row
from argosy_bench.scaling.traces import Recording, chosen
from argosy_operator.sim.laws import LAWS
from argosy_operator.sim.replay import Replicas, static
from argosy_operator.sim.traces import Trace
from argosy_operator.sim.world.machine import Replica, Setup

SPEED = (Figure("simulated_requests_per_s", "1/s", digits=0),)
WITHOUT_TRACES = SPEED + shapes.FIGURES + learner.FIGURES + unreachable.FIGURES
ORACLE = (Figure("gpu_hours_vs_oracle_mean", target=Target("<=", 1.10)),)
RIVALS = (Figure("gpu_hours_vs_best_rival_at_equal_attainment", target=Target("<=", 0.80)),)
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
    """Play the operator's law on the shaped loads, let it learn for thirty days, and time it."""
    console, law = Console(highlight=False), learner.Timed(LAWS["goodput"])
    for text in chain(shapes.measure(figures, law, seeds), learner.measure_error(figures)):
        console.print(text, soft_wrap=True)
    figures.put("decide_ms_p99", law.p99_ms())


def compare(
    figures: Figures, asked: Asked, recordings: list[Recording], seeds: int, errors: list[str]
) -> list[Row]:
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
    return rows


def against_oracle(
    figures: Figures, player: Player, recordings: list[Recording], law: str
) -> list[str]:
    """The law's GPU-hours over the oracle's, with the first seed; put the mean over the traces.

    A table of them, for the page.
    """
    lines = [
        "| trace | attainment | GPU-hours / constant | oracle: attainment | GPU-hours / constant "
        "| GPU-hours / oracle |",
        "|---|---|---|---|---|---|",
    ]
    ratios: dict[str, float] = {}
    for recording in recordings:
        ours, best = (player.play(recording, 0, Law(policy)) for policy in (law, "oracle"))
        ratios[recording.name] = ratio = ours.gpu_hours / best.gpu_hours
        cells = (ours.attainment, ours.cost, best.attainment, best.cost, ratio)
        lines.append(f"| {recording.name} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    mean = statistics.fmean(ratios.values())
    figures.put("gpu_hours_vs_oracle_mean", mean)
    figures.lists["oracle"] = [{"trace": n, "gpu_hours_vs_oracle": r} for n, r in ratios.items()]
    return [*lines, f"| mean | | | | | {mean:.3f} |"]


def against_rivals(
    figures: Figures, player: Player, recordings: list[Recording], rivals: list[str], seeds: int
) -> None:
    """Our GPU-hours over those of the cheapest rival at equal attainment, trace by trace."""
    rows: list[dict[str, object]] = []
    ratios = []
    for recording in recordings:
        of = equal.curves(player, recording, (equal.OURS, *rivals), seeds, "fifo")
        if (found := equal.against_best(of)) is not None:
            ratios.append(found[0])
        ratio, rival = found or (None, None)
        rows.append({"trace": recording.name, "rival": rival, "gpu_hours_vs_rival": ratio})
    figures.lists["rivals"] = rows
    if ratios:
        name = "gpu_hours_vs_best_rival_at_equal_attainment"
        figures.put(name, statistics.geometric_mean(ratios))


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


def main() -> int:
    """Run the suite; exit status 1 if a target of the product is missed."""
    asked = _parser().parse_args()
    whole = asked.only is None
    if not whole and asked.traces is None:
        raise SystemExit("--only chooses among the traces of a folder: give --traces too")
    if asked.traces is None and (asked.oracle or asked.rivals or asked.write):
        raise SystemExit("--oracle, --rivals and --write are about traces: give --traces too")
    rows: tuple[Figure, ...] = WITHOUT_TRACES if whole else ()
    rows += score.FIGURES if asked.traces else ()
    rows += ORACLE if asked.oracle else ()
    rows += RIVALS if asked.rivals else ()
    figures = Figures(rows, "python -m argosy_bench.suites.autoscaling")
    if whole:
        measure(figures, asked.requests, asked.runs)
        shaped(figures, asked.seeds)
        unreachable.measure(figures)
    if asked.traces:
        recordings = chosen(asked.only)
        if absent := [f for r in recordings for f in r.files(asked.traces) if not f.is_file()]:
            raise SystemExit(f"--traces {asked.traces}: there is no {absent[0]}")
        errors = list(PROFILE_ERRORS) if asked.profile_errors else []
        common = Asked(
            asked.traces, asked.scratch, asked.policy, tuple(asked.more), asked.one_search
        )
        played = compare(figures, common, recordings, asked.seeds, errors)
        player = Player(asked.traces, asked.scratch, tuple(asked.more))
        if asked.oracle:
            lines = against_oracle(figures, player, chosen(asked.oracle), asked.policy)
            if asked.write:
                page.write(equal.PAGE, "oracle", [*page.measured(1), "", *lines])
        if asked.rivals:
            against_rivals(figures, player, recordings, asked.rivals.split(","), asked.seeds)
        if asked.write:
            page.update(equal.PAGE, "traces", score.table(played, page.commit()))
    return conclude(figures, asked.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m argosy_bench.suites.autoscaling", description=__doc__
    )
    add = parser.add_argument
    add("--requests", type=int, default=100_000, help="for the speed")
    add("--runs", type=int, default=5, help="of the speed")
    add("--traces", type=Path, help="folder of traces")
    add("--policy", default="goodput", help="the law, as argosy simulate takes it")
    add("--only", metavar="NAME,…", help="only these traces, and no shapes")
    add("--seeds", type=int, default=3, help="0, 1, … of the copies' delays and the scrapes")
    add("--one-search", action="store_true", help="constant fleets of the first seed for all")
    add("--profile-errors", action="store_true", help="also with priors that are wrong or absent")
    add("--oracle", metavar="NAME,…", help="traces on which the oracle is played: minutes each")
    add("--rivals", metavar="LAW,…", help="rivals to compare with at equal attainment")
    add("--write", action="store_true", help="put the tables into docs/measured")
    add("--scratch", type=Path, default=Path("build/bench/autoscaling"), help="results of the runs")
    add("--json", type=Path, help="write the figures file here")
    add("more", nargs="*", help="after --: more flags of argosy simulate")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
