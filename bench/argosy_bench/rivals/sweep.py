"""One setting for each rival law, chosen on traces, and what every setting costs.

    python -m argosy_bench.rivals.sweep --traces DIR [--only keda,kpa] [--write]

Each setting of a small grid over a rival's thresholds is played on each trace. The one with the
least mean of log(GPU-hours / static) + 12 · max(0, 0.9 - attainment) is chosen; `static` is the
smallest constant fleet that meets the goal, FIFO and first tokens at once. --write puts the choice
into the module that the laws read their thresholds from. Runs are kept in build/bench/rivals.jsonl,
so a sweep goes on where it stopped, and plays again what a change of the code concerns.

A role may have at most twice the replicas of the best constant fleet, as an owner would bound it.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log
from pathlib import Path
from statistics import fmean
from typing import Literal

from argosy_bench.figures import Figure, Figures, conclude
from argosy_bench.laws.kept import code
from argosy_operator.core.scaling.estimate.profiles import PRESETS
from argosy_operator.core.scaling.goals import SLO, Goals, RoleGoal
from argosy_operator.core.scaling.law import LAWS
from argosy_operator.core.scaling.rivals import chosen
from argosy_operator.core.scaling.rivals.table import MAKERS
from argosy_operator.sim import figures, traces
from argosy_operator.sim.reference import hindsight
from argosy_operator.sim.replay import ROLES, Replicas, replay, static
from argosy_operator.sim.traces import Trace
from argosy_operator.sim.world.machine import ColdStart, Replica, Setup

Setting = Mapping[str, float]
Order = Literal["fifo", "deadline"]
WHAT = ("attainment", "GPU-hours/static")

GOAL, COLD_S, WARMUP_S = 0.9, 90.0, 300.0
SHORTFALL = 12.0
"""What a missing share of attainment costs, in logarithms of GPU-hours: 0.01 as much as 13 %."""
PROFILE = "llama-70b-h100-tp4"
MOST_TOKENS = int(PRESETS[PROFILE].kv_tokens)
MOST_OF_STATIC = 2
"""Replicas of a role at most, in those of the best constant fleet."""


@dataclass(frozen=True, slots=True)
class Case:
    """One trace as it is played."""

    folder: str
    scale: float
    ttft_s: float = 1.0
    tpot_s: float = 0.06
    prefix: bool = False


CASES = {
    "azure_conv": Case("azure2023_conv", 8),
    "azure_code": Case("azure2023_code", 6, ttft_s=2.0),
    "m-large": Case("servegen_m-large", 8),
    "m-mid": Case("servegen_m-mid", 8),
    "m-small": Case("servegen_m-small", 24),
    "r1": Case("servegen_r1", 4),
    "mooncake": Case("mooncake_conversation", 3, ttft_s=8.0, tpot_s=0.08, prefix=True),
}


def grid(**values: Sequence[float]) -> tuple[Setting, ...]:
    """Every combination of the values."""
    return tuple(dict(zip(values, row, strict=True)) for row in product(*values.values()))


GRIDS: Mapping[str, tuple[Setting, ...]] = {
    "apa": grid(prefill=(1024, 4096), decode=(16, 24, 40)),
    "dynamo-load": grid(limits=(0.5, 0.75, 1.0), sensitivity=(0.6, 0.8)),
    "dynamo-throughput": grid(itl=(0.6, 0.75, 0.9, 1.0)),
    "heteroscale": grid(target=(200, 300, 500, 800)),
    "hpa": grid(prefill=(1024, 2048, 4096), decode=(16, 24)),
    "hpa-gpu": grid(prefill=(0.4, 0.5, 0.6, 0.7), decode=(0.6,)),
    "keda": grid(prefill=(1024, 2048, 4096), decode=(16, 24)),
    "kpa": grid(prefill=(0.75, 1.5), decode=(16, 24, 36)),
    "llmd-slo": grid(ttft=(0.6, 1.0, 1.5), itl=(0.85, 1.0)),
    "tokenscale": grid(prefill=(1.4, 1.8), decode=(1.0, 1.3, 1.6, 2.0)),
    "wva": grid(kv=(0.15, 0.25, 0.5), up=(0.85, 0.65), down=(0.5,)),
}
"""Thresholds that a user sets, around the default and what the profile can do."""


@dataclass(frozen=True, slots=True)
class Played:
    """One run."""

    law: str
    case: str
    setting: Setting
    attainment: float
    cost: float
    """GPU-hours over those of the best constant fleet."""

    @property
    def score(self) -> float:
        return log(self.cost) + SHORTFALL * max(0.0, GOAL - self.attainment)


class Bench:
    """Plays laws on traces and keeps what came out."""

    def __init__(self, folder: Path, order: Order, upto_s: float, kept: Path) -> None:
        self._folder, self._order, self._upto_s, self._file = folder, order, upto_s, kept
        self._traces: dict[str, Trace] = {}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()
        rows = (json.loads(line) for line in kept.read_text().splitlines())
        self._kept = {row["key"]: row["value"] for row in rows}

    def _remember(self, key: str, value: object) -> None:
        self._kept[key] = value
        with self._file.open("a") as file:
            file.write(json.dumps({"key": key, "value": value}) + "\n")

    def _key(self, policy: str, *parts: object) -> str:
        return json.dumps([code(policy), self._upto_s, policy, *parts], sort_keys=True)

    def _trace(self, name: str) -> Trace:
        case = CASES[name]
        if name not in self._traces:
            path = self._folder / case.folder / "requests.csv"
            with path.open(newline="") as lines:
                trace = traces.read(str(path), lines, most_tokens=MOST_TOKENS)
            whole = traces.scaled(trace, case.scale, 0)
            whole = whole if case.prefix else whole.without_cache()
            self._traces = {name: first(whole, self._upto_s)}
        return self._traces[name]

    def _setup(self, name: str, order: Order) -> Setup:
        case = CASES[name]
        replica = Replica.preset(PROFILE)
        cold = ColdStart(COLD_S)
        return Setup(replica, case.ttft_s, case.tpot_s, cold=cold, order=order)

    def best(self, name: str) -> tuple[Replicas, float]:
        """The smallest constant fleet on FIFO engines, and its GPU-hours."""
        key = self._key("static", name)
        if key not in self._kept:
            trace, setup = self._trace(name), self._setup(name, "fifo")
            fleet = hindsight.smallest(setup, trace, warmup_s=WARMUP_S, goal=GOAL)
            if fleet is None:
                raise SystemExit(f"{name}: no constant fleet meets the goal; leave it out")
            hours = figures.gpu_hours(static(setup, trace, fleet).world, WARMUP_S, trace.end)
            self._remember(key, [dict(fleet), hours])
        fleet, hours = self._kept[key]
        return fleet, hours

    def play(self, law: str, name: str, setting: Setting) -> Played:
        """One run, or what is known of it."""
        fleet, static_hours = self.best(name)
        key = self._key(law, self._order, name, setting)
        if key not in self._kept:
            trace, case = self._trace(name), CASES[name]
            setup = self._setup(name, self._order)
            goals = Goals(
                mode="disaggregated",
                roles=tuple(RoleGoal(r, 1, MOST_OF_STATIC * fleet[r]) for r in ROLES),
                slo=SLO(case.ttft_s, case.tpot_s, GOAL),
                prior=setup.replica.profile,
            )
            made = MAKERS[law](**setting) if law in MAKERS else LAWS[law]
            run = replay(setup, trace, made, goals, fleet)
            attained = figures.attainment(run.world, WARMUP_S)["attainment"]
            hours = figures.gpu_hours(run.world, WARMUP_S, trace.end)
            self._remember(key, [attained, hours])
        attained, hours = self._kept[key]
        return Played(law, name, setting, attained, hours / static_hours)


def first(trace: Trace, upto_s: float) -> Trace:
    """The requests that arrive before that time."""
    most = sum(arrival < upto_s for arrival in trace.arrival)
    cached = trace.cached[:most] if trace.cached else trace.cached
    return Trace(trace.arrival[:most], trace.prompt[:most], trace.output[:most], cached)


def swept(
    bench: Bench, law: str, cases: Sequence[str], settings: Sequence[Setting]
) -> Iterator[tuple[float, list[Played]]]:
    """(score, runs) of each setting."""
    for setting in settings:
        runs = [bench.play(law, case, setting) for case in cases]
        yield fmean(run.score for run in runs), runs


def module(settings: Mapping[str, Setting], cases: Sequence[str]) -> str:
    """The text of the module `chosen`. `cases`: what the newest choice was made on."""
    rows = "".join(f'    "{law}": {json.dumps(dict(settings[law]))},\n' for law in sorted(settings))
    return (
        '"""The thresholds that rivals run with. A rival that is not here has its own defaults.\n\n'
        "`python -m argosy_bench.rivals.sweep --write` writes it: one setting for all traces. The\n"
        f'newest choice was made on {", ".join(cases)}.\n"""\n\n'
        "from collections.abc import Mapping\n\n"
        f"CHOSEN: Mapping[str, Mapping[str, float]] = {{\n{rows}}}\n"
    )


def main() -> int:
    """Sweep, show the table, and write the choice if asked to."""
    parser = argparse.ArgumentParser(
        prog="python -m argosy_bench.rivals.sweep", description=__doc__
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder of traces")
    parser.add_argument("--cases", default=",".join(CASES), help="which of them")
    parser.add_argument("--only", default=",".join(GRIDS), help="which laws")
    parser.add_argument("--order", default="fifo", choices=("fifo", "deadline"))
    parser.add_argument("--upto", type=float, default=86_400, help="seconds of each trace")
    parser.add_argument("--chosen", action="store_true", help="no grid, only what was chosen")
    parser.add_argument("--write", action="store_true", help="put the choice into the laws")
    parser.add_argument("--json", type=Path, help="write the figures file here")
    parser.add_argument("--kept", type=Path, default=Path("build/bench/rivals.jsonl"))
    asked = parser.parse_args()
    cases, laws = asked.cases.split(","), asked.only.split(",")
    if wrong := [c for c in cases if c not in CASES] + [law for law in laws if law not in LAWS]:
        parser.error(f"{', '.join(wrong)}: cases are {', '.join(CASES)}; laws {', '.join(LAWS)}")
    bench = Bench(asked.traces, asked.order, asked.upto, asked.kept)
    settings: dict[str, Setting] = dict(chosen.CHOSEN)
    rows = [Figure(f"{law} {c} {what}") for law in laws for c in cases for what in WHAT]
    figures = Figures(rows, "python -m argosy_bench.rivals.sweep")
    for law in laws:
        grid_of_law = GRIDS.get(law, ({},))
        if asked.chosen:
            grid_of_law = (chosen.CHOSEN.get(law, {}),)
        score, runs = min(swept(bench, law, cases, grid_of_law), key=lambda row: row[0])
        if law in GRIDS:
            settings[law] = runs[0].setting
        figures.notes[law] = f"{dict(runs[0].setting)} {score:.3f}"
        for run in runs:
            figures.put(f"{law} {run.case} {WHAT[0]}", run.attainment)
            figures.put(f"{law} {run.case} {WHAT[1]}", run.cost)
    if asked.write:
        Path(chosen.__file__).write_text(module(settings, cases))
    return conclude(figures, asked.json)


if __name__ == "__main__":
    raise SystemExit(main())
