"""The simulator beside the cluster: the same requests, for a quarter of an hour.

Starts a one-machine Kubernetes of its own with the chart, and a fleet with an SLO and the product's
defaults otherwise. Requests come open loop. `argosy simulate` then plays the same requests with the
cold start that was measured, and the figures say how far its attainment and its GPU-seconds are
from the cluster's. Without --trace the requests are made: Poisson, with one swing of the rate.

The records of the run stay in the folder --keep; --again compares them with the simulator as it is
now, without a cluster. The law must be that of the run.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from argosy_bench.scaling.cluster import load
from argosy_bench.scaling.cluster.compare import FIGURES, Asked, Recorded, put
from argosy_bench.scaling.cluster.fleet import NAME, Reading, Watch, manifest, phase_s, running
from argosy_law.sim import traces
from argosy_law.sim.traces import Trace
from local.demo.traffic.score import Limits
from local.demo.traffic.watch import Records
from local.figures import Figures

KEEP = Path("build/bench/sim-vs-cluster")
IDLE_S = 30.0
"""From the first scrapes of the whole fleet to second 0. The simulator begins with as much idle
time, so that both laws have seen it."""
PATIENCE_S = 180.0
"""How long the last answers may take."""


def measure(figures: Figures, asked: argparse.Namespace) -> None:
    """Play the requests in both worlds and put every figure."""
    figures.declare(FIGURES)
    folder = asked.again or asked.keep
    if asked.again is None:
        _record(asked, folder)
    told, cluster, notes = _kept(folder)
    figures.notes |= notes
    put(figures, told, cluster, asked.plays)


def requests_of(asked: argparse.Namespace) -> Trace:
    """The requests of the warm-up and of the counted time."""
    seconds = asked.warmup + asked.seconds
    if asked.trace is None:
        return load.growing(load.made(seconds, asked.seed), asked.warmup, asked.seed)
    whole = traces.scaled(load.read(asked.trace), asked.scale, asked.seed)
    cut = load.stretch(whole, asked.begin, seconds)
    if not cut.arrival or cut.end < asked.warmup:
        raise SystemExit(f"--from {asked.begin:g}: {asked.trace} has no requests there")
    return load.growing(cut, asked.warmup, asked.seed)


def _record(asked: argparse.Namespace, folder: Path) -> None:
    """Play the requests on a cluster, and write all that was seen into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / "trace.csv"
    trace.write_text("\n".join(load.lines(requests_of(asked))) + "\n")
    records = folder / "requests.jsonl"
    records.unlink(missing_ok=True)
    with running(manifest(asked.ttft, asked.tpot)) as (kube, url):
        begin = time.monotonic() + IDLE_S
        words = [sys.executable, "-m", "argosy_bench.scaling.cluster.client"]
        words += [url, NAME, str(trace), str(records), str(begin)]
        watch = Watch(kube)
        with watch.reading(begin):
            limit_s = IDLE_S + asked.warmup + asked.seconds + PATIENCE_S
            done = subprocess.run(words, timeout=limit_s, check=False)  # noqa: S603 - our client
    if done.returncode:
        raise SystemExit(f"the client ended with exit status {done.returncode}")
    readings = "".join(json.dumps(asdict(reading)) + "\n" for reading in watch.readings)
    (folder / "readings.jsonl").write_text(readings)
    facts = {"warmup_s": asked.warmup, "ttft_s": asked.ttft, "tpot_s": asked.tpot}
    notes = {"trace": asked.trace.parent.name if asked.trace else "made", "scale": asked.scale}
    notes["from_s"] = asked.begin
    document = {**facts, "cold_s": watch.cold_s, "notes": notes}
    (folder / "facts.json").write_text(json.dumps(document, indent=2) + "\n")


def _kept(folder: Path) -> tuple[Asked, Recorded, dict[str, Any]]:
    """What an earlier run, or this one, has written. SystemExit if the folder has none."""
    try:
        facts = json.loads((folder / "facts.json").read_text())
        lines = (folder / "readings.jsonl").read_text().splitlines()
    except OSError as error:
        raise SystemExit(f"{folder}: no records of a run: {error.strerror}") from None
    seen = Records(folder / "requests.jsonl").read()
    readings = [Reading(**json.loads(line)) for line in lines]
    trace = folder / "trace.csv"
    idle_s = IDLE_S + phase_s(readings)
    simulated = folder / "simulated.csv"
    simulated.write_text("\n".join(load.lines(load.later(load.read(trace), idle_s))) + "\n")
    told = Asked(
        simulated,
        idle_s,
        Limits(facts["ttft_s"], facts["tpot_s"]),
        facts["warmup_s"],
        load.read(trace).end,
    )
    return told, Recorded(seen, readings, facts["cold_s"]), facts["notes"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comparison with a cluster."""
    add = parser.add_argument_group("cluster").add_argument
    add("--trace", type=Path, help="CSV file of requests, as argosy simulate takes it")
    add("--from", dest="begin", type=float, default=0.0, help="second of the trace to begin at")
    add("--scale", type=float, default=1.0, help="copies of each request of the trace")
    add("--seconds", type=float, default=900.0, help="how long requests count (900)")
    add("--warmup", type=float, default=180.0, help="before that, of the same trace (180)")
    add("--ttft", type=float, default=1.0, help="limit of the time to first token, in seconds")
    add("--tpot", type=float, default=0.06, help="limit of the time per output token, in seconds")
    add("--seed", type=int, default=0, help="of made requests, and of the copies' delays")
    add("--plays", type=int, default=20, help="plays of the simulator (20)")
    add("--keep", type=Path, default=KEEP, help="folder for the records of the run")
    add("--again", type=Path, metavar="FOLDER", help="compare these records, without a cluster")
