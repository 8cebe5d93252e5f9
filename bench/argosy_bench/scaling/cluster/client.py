"""Sends the requests of a file to a gateway, open loop, as a process of its own.

    python -m argosy_bench.scaling.cluster.client URL MODEL TRACE.csv OUT.jsonl BEGIN

BEGIN is second 0 of the trace on the machine's monotonic clock. Each finished request becomes a
line of OUT.jsonl, as the demo's client writes it.
"""

import asyncio
import sys
from pathlib import Path

from argosy_bench.scaling.cluster import load
from local.demo.traffic.client import run
from local.demo.traffic.plan import Due


def dues(path: Path) -> list[Due]:
    """The requests of a file as the demo's client takes them."""
    trace = load.read(path)
    return [
        Due(arrival, 0, prompt, output)
        for arrival, prompt, output in zip(trace.arrival, trace.prompt, trace.output, strict=True)
    ]


if __name__ == "__main__":
    url, model, requests, out, begin = sys.argv[1:]
    with Path(out).open("w") as records:
        asyncio.run(run(url, model, records, float(begin), dues(Path(requests))))
