"""Decode steps of real engines' runners under different spinning, in alternating runs.

    python -m tests.engine_torch.measure_steps --model DIR [--engines 3] [--alone] SPINS SPINS …

SPINS is a GOMP_SPINCOUNT; `two:SPINS` loads in one thread and steps in another, as engines did
before they had a thread for both. `--engines` processes run side by side on the same cores. Prints
medians over the runs: the time of a decode step, how often the process slept in it, and the ratio
of the time to that of the first variant. On a machine with other work only such ratios count;
`--alone` (root only) takes the cores from all other processes while the steps run.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

_STEPS = 15
_BATCHES = (1, 8)


def _take_the_cores() -> None:
    """Put every thread of this process before all others of the machine; needs root."""
    for task in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(task), os.SCHED_FIFO, os.sched_param(1))


def _child(model: str, teams: str, alone: bool) -> None:
    from argosy_bench.suites.engine import CONTEXT, chunk_of, load, plan_of
    from argosy_engine.config import EngineConfig
    from argosy_engine.runtime.worker import Worker

    loader = Worker("engine")
    stepper = Worker("steps") if teams == "two" else loader
    config = EngineConfig(model=model, served_name="m", dtype="float32", kv_cache_tokens=4096)
    runner, _ = loader.call(lambda: load(config)).result()
    loader.call(runner.warm_up).result()

    def steps(batch: int) -> tuple[float, float]:
        plan = plan_of(tuple(chunk_of(index, CONTEXT - 1, 1) for index in range(batch)))
        runner.execute(plan)  # the team exists from here on
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
        print(*stepper.call(lambda batch=batch: steps(batch)).result())


def _run(model: Path, variant: str, engines: int, alone: bool) -> list[float]:
    """(ms, sleeps) of each batch, averaged over processes that run at once."""
    teams, _, spins = variant.rpartition(":")
    command = [sys.executable, "-m", "tests.engine_torch.measure_steps", "--model", str(model)]
    command += ["--alone"] if alone else []
    children = [
        subprocess.Popen(
            [*command, "--child", teams or "one"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "GOMP_SPINCOUNT": spins},
        )
        for _ in range(engines)
    ]
    figures = [[float(word) for word in child.communicate()[0].split()] for child in children]
    return [statistics.mean(one) for one in zip(*figures, strict=True)]


def main() -> int:
    """Command line; see the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("variants", nargs="*")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        _child(str(args.model), args.child, args.alone)
        return 0
    runs: dict[str, list[list[float]]] = {variant: [] for variant in args.variants}
    for _ in range(args.runs):
        for variant, found in runs.items():
            found.append(_run(args.model, variant, args.engines, args.alone))
    first = next(iter(runs.values()))
    for variant, found in runs.items():
        for at, batch in enumerate(_BATCHES):
            ms = statistics.median(one[2 * at] for one in found)
            slept = statistics.median(one[2 * at + 1] for one in found)
            ratio = statistics.median(
                one[2 * at] / base[2 * at] for one, base in zip(found, first, strict=True)
            )
            print(f"{variant:12} batch {batch}: {ms:7.1f} ms {ratio:5.2f} {slept:6.0f} sleeps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
