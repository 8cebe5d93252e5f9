"""What both worlds made of the same requests: shares of requests, GPU-seconds, replicas by minute.

The simulator plays the requests several times, each with other moments of scrapes, which nobody
chooses in a cluster either. Its figures are means over these plays.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path

from argosy_bench.scaling.cluster.fleet import GPUS, PROFILE, Reading, gpu_seconds
from argosy_law.sim import cli
from argosy_law.sim.replay import Run
from local.demo.traffic.score import Limits, Seen, longest_gap_s, met
from local.figures import Figure, Figures, Target

FIGURES = (
    Figure("sim_vs_cluster_attainment_points", "points", Target("<=", 3.0), digits=2),
    Figure("sim_vs_cluster_gpu_seconds_ratio", target=Target("<=", 1.05)),
    Figure("cluster_attainment"),
    Figure("simulated_attainment"),
    Figure("simulated_attainment_least"),
    Figure("simulated_attainment_most"),
    Figure("cluster_gpu_seconds", "s", digits=0),
    Figure("simulated_gpu_seconds", "s", digits=0),
    Figure("simulated_gpu_seconds_least", "s", digits=0),
    Figure("simulated_gpu_seconds_most", "s", digits=0),
    Figure("cluster_ttft_p50_s", "s"),
    Figure("simulated_ttft_p50_s", "s"),
    Figure("cluster_ttft_p90_s", "s"),
    Figure("simulated_ttft_p90_s", "s"),
    Figure("cluster_tpot_p90_s", "s", digits=4),
    Figure("simulated_tpot_p90_s", "s", digits=4),
    Figure("cold_start_s", "s", digits=2),
    Figure("client_late_p99_s", "s"),
    Figure("longest_time_without_reading_s", "s"),
    Figure("requests", digits=0),
    Figure("requests_refused", digits=0),
    Figure("simulated_requests_refused", digits=1),
    Figure("requests_lost", target=Target("==", 0), digits=0),
)
"""The ratio is the larger of the two over the smaller."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What both worlds are told."""

    simulated: Path
    """The requests, `idle_s` later than in the cluster."""
    idle_s: float
    limits: Limits
    warmup_s: float
    """Requests and GPUs before this are not counted."""
    end_s: float
    """When the last request arrives."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the cluster did."""

    seen: Sequence[Seen]
    readings: Sequence[Reading]
    cold_s: float


def put(figures: Figures, asked: Asked, cluster: Recorded, seeds: int) -> None:
    """Play the requests in the simulator, and put all figures."""
    counted = [one for one in cluster.seen if one.due_s >= asked.warmup_s]
    share = sum(met(one, asked.limits) for one in counted) / len(counted)
    held = gpu_seconds(list(cluster.readings), asked.warmup_s, asked.end_s)
    plays = [_play(asked, cluster.cold_s, seed) for seed in range(seeds)]
    shares = [float(result["attainment"] or 0) for _, result in plays]
    seconds = [float(result["gpu_hours"] or 0) * 3600 for _, result in plays]
    simulated = statistics.mean(seconds)
    figures.put("sim_vs_cluster_attainment_points", 100 * abs(share - statistics.mean(shares)))
    figures.put(
        "sim_vs_cluster_gpu_seconds_ratio", max(held, simulated) / max(min(held, simulated), 1)
    )
    figures.put("cluster_attainment", share)
    figures.put("cluster_gpu_seconds", held)
    for name, values in (("attainment", shares), ("gpu_seconds", seconds)):
        figures.put(f"simulated_{name}", statistics.mean(values))
        figures.put(f"simulated_{name}_least", min(values))
        figures.put(f"simulated_{name}_most", max(values))
    _put_latencies(figures, asked, counted, [run for run, _ in plays])
    figures.put("cold_start_s", cluster.cold_s)
    figures.put("client_late_p99_s", _quantile((one.late_s for one in cluster.seen), 0.99))
    gap_s = longest_gap_s([one.at_s for one in cluster.readings], asked.end_s)
    figures.put("longest_time_without_reading_s", gap_s)
    figures.put("requests", len(counted))
    outcomes = [one.outcome for one in cluster.seen]
    figures.put("requests_refused", outcomes.count("shed"))
    refused = [float(result["requests_refused"] or 0) for _, result in plays]
    figures.put("simulated_requests_refused", statistics.mean(refused))
    figures.put("requests_lost", len(outcomes) - outcomes.count("ok") - outcomes.count("shed"))
    figures.lists["minutes"] = list(_minutes(asked, cluster, [run for run, _ in plays]))


def _play(asked: Asked, cold_s: float, seed: int) -> tuple[Run, dict[str, float | str | None]]:
    """`argosy simulate` with the fleet's settings: defaults, as in `fleet.manifest`."""
    options = cli.parse([
        "--trace", str(asked.simulated), "--profile", PROFILE, "--policy", "goodput",
        "--cold", f"{cold_s:.3f}", "--warmup", f"{asked.idle_s + asked.warmup_s:g}",
        "--ttft", f"{asked.limits.ttft_s:g}", "--tpot", f"{asked.limits.tpot_s:g}",
        "--start", "1,1", "--static", "1,1", "--static-same-engine", "1,1",
        "--inbox", "between-steps", "--seed", str(seed), "--out", "result.json",
    ])  # fmt: skip
    return cli.simulate(options, cli.trace_of(options))


def _put_latencies(
    figures: Figures, asked: Asked, counted: Iterable[Seen], runs: Sequence[Run]
) -> None:
    answered = [one for one in counted if one.outcome == "ok"]
    ttft = [one.ttft_s for one in answered if one.ttft_s is not None]
    tpot = [one.tpot_s for one in answered if one.tpot_s is not None]
    figures.put("cluster_ttft_p50_s", _quantile(ttft, 0.5))
    figures.put("cluster_ttft_p90_s", _quantile(ttft, 0.9))
    figures.put("cluster_tpot_p90_s", _quantile(tpot, 0.9))
    ttft, tpot = [], []
    for run in runs:
        world = run.world
        for index, arrival in enumerate(world.trace.arrival):
            if arrival < asked.idle_s + asked.warmup_s or isnan(world.last[index]):
                continue
            ttft.append(world.first[index] - arrival)
            steps = world.trace.output[index] - 1
            if steps:
                tpot.append((world.last[index] - world.first[index]) / steps)
    figures.put("simulated_ttft_p50_s", _quantile(ttft, 0.5))
    figures.put("simulated_ttft_p90_s", _quantile(ttft, 0.9))
    figures.put("simulated_tpot_p90_s", _quantile(tpot, 0.9))


def _quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _minutes(asked: Asked, cluster: Recorded, runs: Sequence[Run]) -> Iterable[dict[str, object]]:
    """Replicas and shares in each minute, both worlds side by side."""
    for begin in range(0, int(asked.end_s), 60):
        end = min(begin + 60.0, asked.end_s)
        due = [one for one in cluster.seen if begin <= one.due_s < end]
        row: dict[str, object] = {"from_s": begin, "requests": len(due)}
        row["cluster_within"] = round(
            sum(met(one, asked.limits) for one in due) / (len(due) or 1), 3
        )
        row["cluster_replicas"] = gpu_seconds(list(cluster.readings), begin, end) / GPUS
        row["simulated_replicas"] = statistics.mean(
            _pod_seconds(run, begin + asked.idle_s, end + asked.idle_s) for run in runs
        )
        for name in ("cluster_replicas", "simulated_replicas"):
            row[name] = round(float(str(row[name])) / (end - begin), 2)
        row["simulated_within"] = round(
            statistics.mean(_within(run, begin + asked.idle_s, end + asked.idle_s) for run in runs),
            3,
        )
        yield row


def _pod_seconds(run: Run, begin: float, end: float) -> float:
    return sum(
        max(min(pod.gone_at, end) - max(pod.created_at, begin), 0.0)
        for pods in run.world.pods.values()
        for pod in pods
    )


def _within(run: Run, begin: float, end: float) -> float:
    world, setup = run.world, run.world.setup
    rows = [row for row, at in enumerate(world.trace.arrival) if begin <= at < end]
    return sum(
        world.first[row] - world.trace.arrival[row] <= setup.ttft_s
        and world.last[row] - world.first[row]
        <= setup.tpot_s * (world.trace.output[row] - 1) + 1e-9
        for row in rows
    ) / (len(rows) or 1)
