"""What a token and a request cost in the gateway, and what a fleet behind it keeps up."""

import argparse
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from argosy_bench.gateway import handovers, isolation, kv, overload, resume, routing, streams, trust
from argosy_bench.gateway.load import Load
from local.figures import Figures
from local.weights.smollm2 import default_out

Measure = Callable[[Figures, argparse.Namespace], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("--runs", type=int, default=3, help="of isolation and of resume (3)")
    add("--requests", type=int, default=900, help="of trust, to all pairs together (900)")
    add("--overload-s", type=float, default=60.0, help="length of the overload (60)")
    add("--queue", choices=overload.QUEUES, default=overload.QUEUES[-1], help="of the overload")
    add("--model", type=Path, default=default_out("float32"), help="weights of kv")


def _run(measure: Callable[[Figures, argparse.Namespace], Awaitable[None]]) -> Measure:
    def run(figures: Figures, asked: argparse.Namespace) -> None:
        uvloop.run(measure(figures, asked))  # type: ignore[arg-type]

    return run


PARTS: dict[str, Measure] = {
    "streams": _run(lambda figures, _: streams.measure_streams(figures, Load())),
    "requests": _run(lambda figures, _: streams.measure_requests(figures)),
    "handovers": _run(lambda figures, _: handovers.measure(figures)),
    "readers": _run(lambda figures, _: streams.measure_readers(figures)),
    "picks": _run(lambda figures, _: routing.measure_picks(figures)),
    "affinity": _run(lambda figures, _: routing.measure_affinity(figures)),
    "trust": _run(lambda figures, asked: trust.measure(figures, asked.requests)),
    "overload": _run(
        lambda figures, asked: overload.measure(figures, asked.queue, asked.overload_s)
    ),
    "isolation": _run(lambda figures, asked: isolation.measure(figures, asked.runs)),
    "resume": _run(lambda figures, asked: resume.measure(figures, asked.runs)),
    "kv": lambda figures, asked: kv.measure(figures, asked.model),
}
