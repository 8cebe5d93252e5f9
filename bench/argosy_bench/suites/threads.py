"""Decode steps of the engine's runner under different OpenMP threads, in alternating runs.

    python -m argosy_bench.suites.threads --model DIR [--engines 3] [--alone] VARIANT VARIANT …

A variant is a GOMP_SPINCOUNT such as `20000`; `two:20000` loads the model in one thread and runs
the steps in another. `--engines` processes run side by side on the same cores. The figures are
medians over the runs: the time of a step, how often the process slept in it, and the ratio of the
time to that of the first variant. On a machine with other work only the ratios count; `--alone`
(root only) gives the cores to the steps alone while they run.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from argosy_bench.figures import Figure, Figures, conclude

_STEPS = 15
_BATCHES = (1, 8)


@dataclass(frozen=True, slots=True)
class Step:
    """A decode step of one batch size, as a mean over processes that ran at once."""

    ms: float
    """Median time over `_STEPS` steps."""
    sleeps: float
    """Voluntary context switches of the process per step."""


def figures_of(variants: list[str]) -> tuple[Figure, ...]:
    """Three rows for each variant and batch size."""
    return tuple(
        Figure(f"{variant}_batch_{batch}_{what}", unit, digits=2)
        for variant in variants
        for batch in _BATCHES
        for what, unit in (("ms", "ms"), ("over_first", ""), ("sleeps", "1/step"))
    )


def measure(figures: Figures, asked: argparse.Namespace) -> None:
    """Run the variants in turn, `asked.runs` times, and put the medians."""
    runs: dict[str, list[list[Step]]] = {variant: [] for variant in asked.variants}
    for _ in range(asked.runs):
        for variant, steps in runs.items():
            steps.append(_run(asked.model, variant, asked.engines, asked.alone))
    first = runs[asked.variants[0]]
    for variant, steps in runs.items():
        for at, batch in enumerate(_BATCHES):
            ratios = [run[at].ms / base[at].ms for run, base in zip(steps, first, strict=True)]
            name = f"{variant}_batch_{batch}"
            figures.put(f"{name}_ms", statistics.median(run[at].ms for run in steps))
            figures.put(f"{name}_over_first", statistics.median(ratios))
            figures.put(f"{name}_sleeps", statistics.median(run[at].sleeps for run in steps))


def _run(model: Path, variant: str, engines: int, alone: bool) -> list[Step]:
    """One step of each batch size, in `engines` processes at once."""
    teams, _, spins = variant.rpartition(":")
    command = [sys.executable, "-m", "argosy_bench.suites.threads", "--model", str(model)]
    command += ["--alone"] if alone else []
    env = {**os.environ, "GOMP_SPINCOUNT": spins}
    children = [
        subprocess.Popen(  # noqa: S603 — this module itself
            [*command, "--child", teams or "one"], stdout=subprocess.PIPE, text=True, env=env
        )
        for _ in range(engines)
    ]
    outputs = [child.communicate()[0].splitlines() for child in children]
    measured = [[tuple(map(float, line.split())) for line in lines] for lines in outputs]
    return [
        Step(statistics.mean(ms for ms, _ in batch), statistics.mean(s for _, s in batch))
        for batch in zip(*measured, strict=True)
    ]


def _take_the_cores() -> None:
    """Schedule every thread of this process before all others of the machine; needs root."""
    for task in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(task), os.SCHED_FIFO, os.sched_param(1))


def _child(model: str, teams: str, alone: bool) -> None:
    """Print `ms sleeps` for each batch size. Torch is imported under GOMP_SPINCOUNT here."""
    from argosy_bench.suites.engine import CONTEXT, chunk_of, plan_of
    from argosy_engine.config import EngineConfig
    from argosy_engine.runtime.loop import Worker
    from argosy_engine.runtime.torch.runner import load

    loader = Worker("engine")
    stepper = Worker("steps") if teams == "two" else loader
    config = EngineConfig(model=model, served_name="m", dtype="float32", kv_cache_tokens=4096)
    runner, _ = loader.call(lambda: load(config)).result()
    loader.call(runner.warm_up).result()

    def steps(batch: int) -> tuple[float, float]:
        plan = plan_of(tuple(chunk_of(index, CONTEXT - 1, 1) for index in range(batch)))
        runner.execute(plan)  # the team of threads exists from here on
        if alone:
            _take_the_cores()
        times, before = [], resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        for _ in range(_STEPS):
            began = time.perf_counter()
            runner.execute(plan)
            times.append(time.perf_counter() - began)
        slept = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
        return 1000 * statistics.median(times), slept / _STEPS

    for batch in _BATCHES:
        ms, sleeps = stepper.call(partial(steps, batch)).result()
        sys.stdout.write(f"{ms} {sleeps}\n")


def main() -> int:
    """Run the suite; exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m argosy_bench.suites.threads", description=__doc__
    )
    parser.add_argument("variants", nargs="*")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    if asked.child:
        _child(str(asked.model), asked.child, asked.alone)
        return 0
    if not asked.variants:
        parser.error("name a variant, such as 20000 or two:5000")
    words = ["python -m argosy_bench.suites.threads", *asked.variants]
    words += [f"--engines {asked.engines}", *(["--alone"] if asked.alone else [])]
    figures = Figures(figures_of(asked.variants), " ".join(words))
    figures.notes["model"] = asked.model.name
    measure(figures, asked)
    return conclude(figures, asked.json)


if __name__ == "__main__":
    sys.exit(main())
