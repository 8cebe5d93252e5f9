"""How fast the simulator is: requests that a constant fleet is played through in a second of CPU.

    python -m argosy_bench.suites.autoscaling --json build/bench/autoscaling.json

The law is not in it: it runs every 15 simulated seconds, whatever the number of requests.
"""

import argparse
import statistics
import time
from pathlib import Path
from random import Random

from argosy_bench.figures import Figure, Figures, Target, conclude
from argosy_operator.sim.replay import Replicas, static
from argosy_operator.sim.traces import Trace
from argosy_operator.sim.world.machine import Replica, Setup

FIGURES = (
    Figure("simulated_requests_per_s", "1/s", Target(">=", 100_000, of_the_machine=True), digits=0),
)
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


def main() -> int:
    """Run the suite; exit status 1 if a target of the product is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m argosy_bench.suites.autoscaling", description=__doc__
    )
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures file here")
    asked = parser.parse_args()
    figures = Figures(FIGURES, "python -m argosy_bench.suites.autoscaling")
    measure(figures, asked.requests, asked.runs)
    return conclude(figures, asked.json)


if __name__ == "__main__":
    raise SystemExit(main())
