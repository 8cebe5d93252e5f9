"""Numbers over time, from a run that has ended. `page` draws them.

Times are seconds of the trace. A day has as many points as an hour: intervals grow with the trace.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from argosy_law.sim import figures
from argosy_law.sim.replay import Run
from argosy_law.sim.world.fleet import PoolName

LEAST_S = 60.0
"""The shortest interval in which arrivals and attainment are counted."""
MOST_POINTS = 480

Steps = list[tuple[float, float]]
"""(time, value from then on), from time 0."""


@dataclass(frozen=True, slots=True)
class Interval:
    """What arrived in one interval."""

    start_s: float
    seconds: float
    requests: int
    met: int
    """Of these, how many met both limits."""

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def attainment(self) -> float | None:
        """None: nothing arrived."""
        return self.met / self.requests if self.requests else None


def intervals(run: Run) -> list[Interval]:
    """Of equal length from the start of the trace to the last arrival, the warm-up included."""
    end = run.world.trace.end
    seconds = LEAST_S * max(ceil(end / LEAST_S / MOST_POINTS), 1)
    requests = [0] * (int(end // seconds) + 1)
    met = [0] * len(requests)
    for arrival, ttft, tpot in figures.verdicts(run.world, 0.0):
        requests[int(arrival // seconds)] += 1
        met[int(arrival // seconds)] += ttft and tpot
    return [
        Interval(n * seconds, min(seconds, end - n * seconds) or seconds, *both)
        for n, both in enumerate(zip(requests, met, strict=True))
    ]


def wanted(run: Run, role: PoolName) -> Steps:
    """Replicas that the law had asked for."""
    moves = [(at, by) for at, of, by in run.moves if of == role]
    kept = sum(not pod.draining and not pod.gone for pod in run.world.pods[role])
    return _steps([(0.0, kept - sum(by for _, by in moves)), *moves], run.world.trace.end)


def ready(run: Run, role: PoolName) -> Steps:
    """Replicas that took requests."""
    changes: list[tuple[float, int]] = []
    for pod in run.world.pods[role]:
        until = min(pod.drain_at, pod.gone_at)
        if pod.ready_at < until:
            changes += [(pod.ready_at, 1), (until, -1)]
    return _steps(changes, run.world.trace.end)


def gpus(run: Run) -> Steps:
    """GPUs of all pods from their creation to their deletion."""
    each = run.world.setup.replica.machine.gpus
    changes = [
        change
        for pods in run.world.pods.values()
        for pod in pods
        for change in ((pod.created_at, each), (pod.gone_at, -each))
    ]
    return _steps(changes, run.world.trace.end)


def _steps(changes: Iterable[tuple[float, int]], end: float) -> Steps:
    """The sum of the changes so far, at each time at which it changes."""
    sums: dict[float, float] = {0.0: 0}
    total = 0
    for at, by in sorted(changes):
        if at <= end:
            total += by
            sums[at] = total
    return list(sums.items())
