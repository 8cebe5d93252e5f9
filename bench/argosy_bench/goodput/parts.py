"""What DistServe compares: goodput per GPU with prefill and decode together, and apart.

Three workloads of its evaluation with the SLO of each (TTFT, TPOT, 90 % of requests): chatbot
(lengths of ShareGPT), code completion (HumanEval), summarization (LongBench). Requests are Poisson.
All are played on simulated OPT-13B on A100, from DistServe's released profile; the paper takes
larger models for the last two, so its figures are shown beside these and are no targets.

Goodput is the highest rate per GPU at which 90 % of the requests meet both limits. `together` is
vLLM of that time: prompts before any decode goes on, and the times of the profile that DistServe
released for it. `chunked` has prompts in chunks in the steps of decodes, as our engine does it.
`apart` is the best of a few ratios. Throughput is how many requests per second and GPU are
completed when all come at once. The paper's first figure is measured too, and has targets
(`distserve`).
Source: https://arxiv.org/abs/2401.09670, sections 2 and 6, and the artifact's `ae-scripts`.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import exp, inf, log
from statistics import mean, median

from rich.console import Console

from argosy_bench.goodput import distserve
from argosy_law.estimate.capacity import PRESETS
from argosy_law.sim.figures import attainment
from argosy_law.sim.replay import Replicas, static
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.machine import Replica, Setup
from argosy_measure.workloads import WORKLOADS, Workload
from local.figures import Figure, Figures, Target

PROFILE, GOAL = "opt-13b-a100", 0.9
APART: tuple[Replicas, ...] = (
    {"prefill": 1, "decode": 1},
    {"prefill": 2, "decode": 1},
    {"prefill": 1, "decode": 2},
    {"prefill": 3, "decode": 1},
)
TOGETHER: Replicas = {"colocated": 1}
CLOSE = 1.02
"""Ratio of two rates between which a goodput is known."""


PAPER: Mapping[str, str] = {"chatbot": "2.0 to 3.41", "code": "3.2", "summarization": "4.48"}
"""Rate of DistServe over that of vLLM, as the paper reports it."""
TIGHT = (0.4, 0.04)
"""TTFT and TPOT of the paper's first figure, for the chatbot's lengths."""
VLLM = replace(
    PRESETS[PROFILE],
    prefill_base_s=22.05e-3,
    per_prompt_token_s=0.1405e-3,
    per_prompt_token_squared_s=8.08e-9,
    decode_base_s=23.48e-3,
    per_context_token_s=5.93e-7,
    per_sequence_s=0.0607e-3,
)
"""OPT-13B on an A100 with vLLM, as DistServe's repository has it (Apache-2.0)."""

_OF_EACH = (
    ("goodput_apart", "1/s"), ("goodput_together", "1/s"), ("goodput_chunked", "1/s"),
    ("throughput_together", "1/s"), ("apart_over_together", ""), ("apart_over_chunked", ""),
    ("gpus_for_slo_over_throughput", ""), ("ttft_met_above_goodput", ""),
    ("tpot_met_above_goodput", ""), ("best_prefill_per_decode", ""),
    ("prompt_mean", ""), ("output_mean", ""),
)  # fmt: skip
FIGURES = (
    *(Figure(f"{name}_{what}", unit) for name in WORKLOADS for what, unit in _OF_EACH),
    Figure("throughput_apart_over_chunked", target=Target("<=", 1.0)),
    Figure("tight_apart_over_chunked", target=Target(">=", 1.0)),
)
"""Per GPU. `…_met_above_goodput`: shares within one limit where together is offered a fifth more
than its goodput; the lower one is the limit that it misses first. The last two have the lengths of
the chatbot: throughput without any SLO, and goodput where both limits are tight."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """How a fleet serves."""

    replicas: Replicas
    vllm: bool = False

    @property
    def gpus(self) -> int:
        return sum(self.replicas.values()) * Replica.preset(PROFILE).machine.gpus


class Bench:
    """Plays workloads with so many requests."""

    def __init__(self, requests: int, seed: int) -> None:
        self._requests, self._seed = requests, seed

    def shares(self, of: Workload, fleet: Fleet, rate: float) -> dict[str, float]:
        """Attainment of both limits and of each, at `rate` requests per second."""
        trace = self.requests(of, rate)
        run = static(self._setup(of, fleet), trace, fleet.replicas)
        return attainment(run.world, trace.arrival[self._requests // 10])

    def goodput(self, of: Workload, fleet: Fleet) -> float:
        """Requests per second and GPU, within 2 %; 0 if not even one in 20 s is served so."""

        def met(rate: float) -> bool:
            return self.shares(of, fleet, rate)["attainment"] >= GOAL

        return most(met, 0.05) / fleet.gpus

    def requests(self, of: Workload, rate: float = inf) -> Trace:
        """Return the requests of a run."""
        return of.requests(rate, self._requests, self._seed)

    def throughput(self, of: Workload, fleet: Fleet) -> float:
        """Completed requests per second and GPU when all come at once."""
        trace = self.requests(of)
        run = static(self._setup(of, fleet), trace, fleet.replicas)
        return self._requests / max(run.world.last) / fleet.gpus

    @staticmethod
    def _setup(of: Workload, fleet: Fleet) -> Setup:
        ours = Replica.preset(PROFILE)
        assert of.slo is not None
        ttft_s, tpot_s = of.slo
        if fleet.vllm:
            vllm = replace(ours, profile=VLLM)
            return Setup(vllm, ttft_s, tpot_s, batching="prefill-first")
        return Setup(ours, ttft_s, tpot_s)


def most(met: Callable[[float], bool], least: float) -> float:
    """The highest rate that is met, within `CLOSE`; 0 if `least` is not."""
    if not met(least):
        return 0.0
    low, high = least, 2 * least
    while met(high):
        low, high = high, 2 * high
    while high / low > CLOSE:
        middle = exp((log(low) + log(high)) / 2)
        low, high = (middle, high) if met(middle) else (low, middle)
    return low


def compare(name: str, bench: Bench) -> dict[str, float]:
    """Return the figures of one workload."""
    of, together = WORKLOADS[name], Fleet(TOGETHER, vllm=True)
    goodputs = [bench.goodput(of, Fleet(replicas)) for replicas in APART]
    apart, mixed = max(goodputs), bench.goodput(of, together)
    chunked, through = bench.goodput(of, Fleet(TOGETHER)), bench.throughput(of, together)
    best = APART[goodputs.index(apart)]
    if not mixed or not chunked:
        raise SystemExit(f"{name}: together, one GPU serves no request in 20 s within the SLO")
    above = bench.shares(of, together, 1.2 * mixed * together.gpus)
    drawn = bench.requests(of)
    values = {
        "goodput_apart": apart,
        "goodput_together": mixed,
        "goodput_chunked": chunked,
        "throughput_together": through,
        "apart_over_together": apart / mixed,
        "apart_over_chunked": apart / chunked,
        "gpus_for_slo_over_throughput": through / mixed,
        "ttft_met_above_goodput": above["attainment_ttft"],
        "tpot_met_above_goodput": above["attainment_tpot"],
        "best_prefill_per_decode": best["prefill"] / best["decode"],
        "prompt_mean": mean(drawn.prompt),
        "output_mean": mean(drawn.output),
    }
    return {f"{name}_{what}": value for what, value in values.items()}


def crossover(bench: Bench) -> dict[str, float]:
    """Return where requests are better served apart, and where together."""
    chat = WORKLOADS["chatbot"]
    tight = replace(chat, slo=TIGHT)
    most_apart = max(bench.throughput(chat, Fleet(replicas)) for replicas in APART)
    best_apart = max(bench.goodput(tight, Fleet(replicas)) for replicas in APART)
    return {
        "throughput_apart_over_chunked": most_apart / bench.throughput(chat, Fleet(TOGETHER)),
        "tight_apart_over_chunked": best_apart / bench.goodput(tight, Fleet(TOGETHER)),
    }


def measure(figures: Figures, benches: list[Bench]) -> Iterator[str]:
    """Put the figures of all workloads, each the median of the benches; a line for each."""
    for name in (*WORKLOADS, ""):
        found = [compare(name, bench) if name else crossover(bench) for bench in benches]
        for figure in found[0]:
            figures.put_each(figure, [values[figure] for values in found])
        if name:
            apart, together, ratio = (
                median(values[f"{name}_{what}"] for values in found)
                for what in ("goodput_apart", "goodput_together", "apart_over_together")
            )
            yield (
                f"{name}: {apart:.2f} requests per second and GPU apart, {together:.2f} together, "
                f"{ratio:.2f} times as much (the paper: {PAPER[name]})"
            )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--requests", type=int, default=3000, help="of each probe of a rate (3000)")
    parser.add_argument("--seeds", type=int, default=3, help="0, 1, … of the workloads (3)")


def _measure_workloads(figures: Figures, asked: argparse.Namespace) -> None:
    figures.declare(FIGURES)
    console = Console(highlight=False)
    for line in measure(figures, [Bench(asked.requests, seed) for seed in range(asked.seeds)]):
        console.print(line, soft_wrap=True)


def _measure_distserve(figures: Figures, _: argparse.Namespace) -> None:
    figures.declare(distserve.FIGURES)
    distserve.measure(figures)


PARTS = {"workloads": _measure_workloads, "distserve": _measure_distserve}
