"""Constants of a simulated engine (`sim:PRESET`), fitted to the steps of the real one.

    python -m argosy_bench.engine.fit --model DIR [--dtype bfloat16] [--seconds 100]

One thread computes prompts of 64 to 2,048 tokens and steps of 1 to 64 decodes with 64 to 1,024
tokens of context each, in turn. The least CPU time of each counts, because other work on the
machine only ever slows a step down. Prints both polynomials of `SimProfile`, and how far the worst
step is from them. The times of a run with more threads are shorter; this is one core.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np

from argosy_bench.engine.steps import chunk_of, decodes_of, plan_of
from argosy_engine.config import EngineConfig
from argosy_engine.core.step import StepPlan
from argosy_engine.runtime.torch.runner import load

PROMPTS = (64, 128, 256, 512, 1024, 2048)
DECODES = (1, 4, 8, 16, 32, 64)
CONTEXTS = (64, 512, 1024)


def fitted(columns: Sequence[tuple[float, ...]], ms: Sequence[float]) -> tuple[list[float], float]:
    """Coefficients of the columns, and the largest relative error; relative least squares."""
    rows, times = np.array(columns, dtype=float), np.array(ms)
    found = np.linalg.lstsq(rows / times[:, None], np.ones(len(times)), rcond=None)[0]
    return found.tolist(), float(np.abs(rows @ found / times - 1).max())


def main(argv: list[str] | None = None) -> int:
    """Measure, fit, print."""
    parser = argparse.ArgumentParser(prog="python -m argosy_bench.engine.fit")
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--seconds", type=float, default=100.0)
    asked = parser.parse_args(argv)
    tokens = max(DECODES) * max(CONTEXTS)
    config = EngineConfig(
        model=asked.model, served_name="m", dtype=asked.dtype, threads=1, kv_cache_tokens=tokens
    )
    runner, _ = load(config)
    runner.warm_up()
    plans: dict[tuple[int, ...], StepPlan] = {
        (length,): plan_of((chunk_of(0, 0, length),)) for length in PROMPTS
    }
    plans |= {(count, size): decodes_of(count, size) for count in DECODES for size in CONTEXTS}
    best: dict[tuple[int, ...], float] = {}
    ends = time.monotonic() + asked.seconds
    while not best or time.monotonic() < ends:
        for name, plan in plans.items():
            began = time.thread_time()
            runner.execute(plan)
            took = 1000 * (time.thread_time() - began)
            best[name] = min(best.get(name, took), took)
    runner.close()
    prefill = [(1.0, name[0], name[0] ** 2) for name in best if len(name) == 1]
    step = [(1.0, name[0] * name[1], name[0]) for name in best if len(name) == 2]
    for title, columns, size in (("prefill", prefill, 1), ("decode step", step, 2)):
        found, error = fitted(columns, [ms for name, ms in best.items() if len(name) == size])
        shown = " ".join(f"{value:.4g}" for value in found)
        sys.stdout.write(f"{title}, ms: {shown} (largest error {error:.0%})\n")
    sys.stdout.write(f"{runner.facts['cpu_isa']}, {runner.facts['dtype']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
