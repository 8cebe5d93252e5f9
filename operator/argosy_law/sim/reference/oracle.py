"""Replicas over time by one who knows all arrivals beforehand: how little a law could do with.

A schedule has a number of replicas for each role and block of five minutes. Pods are created a cold
start before they are needed. The search starts with more than enough, takes one replica at a time
out of one block, the cheapest loss of requests for the GPU time that is saved first, and stops at
the goal. `cli` calls `play`.

It is a reference and no bound: a better schedule may exist. What a removal loses is counted in the
blocks around it alone. So the whole trace is played in between, what was removed too much is given
back, and the search goes on until nothing more can be removed.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from math import ceil, inf

from argosy_law.sim import figures
from argosy_law.sim.replay import ROLES, Run, started
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import PoolName
from argosy_law.sim.world.machine import Setup

BLOCK_S = 300.0
HEADROOM = 1.5
"""Replicas of the first schedule over those that the work of its busiest minute keeps busy."""
MOST_HEADROOM = 12.0
"""No larger schedule is tried."""
_MINUTE_S = 60.0

Schedule = Mapping[PoolName, Sequence[int]]
"""Replicas of each role in each block."""
Removal = tuple[PoolName, int]
"""One replica of this role less in this block."""


@dataclass(frozen=True, slots=True)
class Task:
    """What the schedule is for."""

    setup: Setup
    trace: Trace
    warmup_s: float
    goal: float
    block_s: float = BLOCK_S

    @property
    def blocks(self) -> int:
        return int(self.trace.end // self.block_s) + 1


def play(task: Task) -> Run | None:
    """The trace under the schedule that was found; None if no schedule meets the goal."""
    schedule = search(task)
    return None if schedule is None else scheduled(task, schedule)


def search(task: Task) -> Schedule | None:
    """The schedule; None if the largest one that is tried does not meet the goal."""
    schedule = _more_than_enough(task)
    if schedule is None:
        return None
    while True:
        removals = list(_cheapest_first(task, schedule))
        few, many = 0, len(removals) + 1  # so many removals keep the goal, so many do not
        while many - few > 1:
            middle = (few + many) // 2
            kept = _share(task, _without(schedule, removals[:middle])) >= task.goal
            few, many = (middle, many) if kept else (few, middle)
        if few == 0:
            return schedule
        schedule = _without(schedule, removals[:few])


def scheduled(task: Task, schedule: Schedule, first: int = 0, last: int | None = None) -> Run:
    """The trace under a schedule; if given, only requests of blocks `first` to before `last`."""
    trace, begin = task.trace, first * task.block_s
    if last is not None:
        rows = slice(*(bisect_left(trace.arrival, n * task.block_s) for n in (first, last)))
        trace = Trace(
            trace.arrival[rows], trace.prompt[rows], trace.output[rows], trace.cached[rows]
        )
    steps = {role: list(wanted(task, schedule[role])) for role in ROLES}
    at_begin = {role: [n for at, n in steps[role] if at <= begin][-1] for role in ROLES}
    world = started(task.setup, trace, at_begin)
    moves: list[tuple[float, PoolName, int]] = []
    later = [(at, role, n) for role in ROLES for at, n in steps[role] if at > begin]
    for at, of, replicas in sorted(later):
        if not world.finished:
            world.advance(at)
            moves.append((at, of, replicas - len(world.wanted(of))))
            world.scale(of, replicas)
    world.advance(inf)
    return Run(world, tuple(moves))


def wanted(task: Task, replicas: Sequence[int]) -> Iterator[tuple[float, int]]:
    """(time, replicas from then on): those of a block are created a cold start before it begins.

    A dip that is shorter than a cold start vanishes: its pods would be created before they leave.
    """
    cold, block_s = task.setup.cold.median_s, task.block_s
    edges = {0.0} | {n * block_s for n in range(1, len(replicas))}
    edges |= {n * block_s - cold for n in range(1, len(replicas)) if n * block_s > cold}
    before = None
    for at in sorted(edges):
        most = max(
            number
            for n, number in enumerate(replicas)
            if n * block_s - cold <= at < (n + 1) * block_s
        )
        if most != before:
            yield at, most
        before = most


def gpu_seconds(task: Task, schedule: Schedule) -> float:
    """GPU-seconds of the schedule in the time that counts, without drains."""
    end, total = task.trace.end, 0.0
    for role in ROLES:
        for (at, replicas), (until, _) in pairwise([*wanted(task, schedule[role]), (end, 0)]):
            total += replicas * max(min(until, end) - max(at, task.warmup_s), 0.0)
    return total * task.setup.replica.machine.gpus


# --- the search ---------------------------------------------------------------------------------


def _share(task: Task, schedule: Schedule) -> float:
    return figures.attainment(scheduled(task, schedule).world, task.warmup_s)["attainment"]


def _more_than_enough(task: Task) -> Schedule | None:
    """A schedule that meets the goal with ease, if one does."""
    busy, headroom = _busy(task), HEADROOM
    while headroom <= MOST_HEADROOM:
        schedule = {role: [ceil(headroom * pods) + 1 for pods in busy[role]] for role in ROLES}
        if _share(task, schedule) >= task.goal:
            return schedule
        headroom *= 1.5
    return None


def _busy(task: Task) -> dict[PoolName, list[float]]:
    """Pods that the work keeps busy in the busiest minute of each block, waiting left out."""
    trace, minutes = task.trace, int(task.trace.end // _MINUTE_S) + 1
    seconds: dict[PoolName, list[float]] = {role: [0.0] * minutes for role in ROLES}
    for n, arrival in enumerate(trace.arrival):
        cached = trace.cached[n : n + 1]
        alone = Trace([0.0], trace.prompt[n : n + 1], trace.output[n : n + 1], cached)
        work = figures.physical_pod_seconds(alone, task.setup, 0.0)
        first = int(arrival // _MINUTE_S)
        answered = arrival + task.setup.tpot_s * trace.output[n]
        last = min(int(answered // _MINUTE_S), minutes - 1)
        seconds["prefill"][first] += work["prefill"]
        for minute in range(first, last + 1):
            seconds["decode"][minute] += work["decode"] / (last + 1 - first)
    return {
        role: [
            max(
                seconds[role][minute] / _MINUTE_S
                for minute in range(minutes)
                if (minute + 1) * _MINUTE_S > n * task.block_s
                and minute * _MINUTE_S < (n + 1) * task.block_s
            )
            for n in range(task.blocks)
        ]
        for role in ROLES
    }


def _cheapest_first(task: Task, schedule: Schedule) -> Iterator[Removal]:
    """Removals in their order, until more requests are lost than the goal allows.

    A loss grows as its surroundings get smaller. So one that was counted earlier is a lower bound,
    and only the cheapest is counted again.
    """
    left = {role: list(schedule[role]) for role in ROLES}
    arrival = task.trace.arrival
    counted = len(arrival) - bisect_left(arrival, task.warmup_s)
    allowed = (1 - task.goal) * counted - _missed(scheduled(task, schedule), task.warmup_s)
    losses = _Losses(task)
    changed: dict[int, int] = {}
    """How often the surroundings of a block have changed."""
    heap = [(-inf, role, block, -1, 0) for role in ROLES for block in range(task.blocks)]
    heapify(heap)
    while heap:
        _, role, block, version, loss = heap[0]
        if left[role][block] == 1:
            heappop(heap)
        elif version != changed.get(block, 0):
            loss, saved = losses.of(left, role, block)
            price = loss / saved if saved > 0 else inf
            heapreplace(heap, (price, role, block, changed.get(block, 0), loss))
        elif heap[0][0] == inf or loss > allowed:
            heappop(heap)
        else:
            allowed -= loss
            left[role][block] -= 1
            for near in range(block - 2, block + 3):
                changed[near] = changed.get(near, 0) + 1
            yield role, block


class _Losses:
    """What removals lose, counted in the blocks around them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._known: dict[tuple[tuple[int, ...], ...], int] = {}

    def of(self, left: Schedule, role: PoolName, block: int) -> tuple[int, float]:
        """(requests that miss the SLO more, GPU-seconds that are saved)."""
        smaller = _without(left, [(role, block)])
        saved = gpu_seconds(self._task, left) - gpu_seconds(self._task, smaller)
        if saved <= 0:
            return 0, 0.0
        return self._missed(smaller, block) - self._missed(left, block), saved

    def _missed(self, schedule: Schedule, block: int) -> int:
        task, first, last = self._task, max(block - 1, 0), block + 2
        seen = last + ceil(task.setup.cold.median_s / task.block_s)
        key = ((first,), *(tuple(schedule[role][first:seen]) for role in ROLES))
        if key not in self._known:
            run = scheduled(task, schedule, first, last)
            self._known[key] = _missed(run, task.warmup_s)
        return self._known[key]


def _missed(run: Run, warmup_s: float) -> int:
    return sum(not (ttft and tpot) for _, ttft, tpot in figures.verdicts(run.world, warmup_s))


def _without(schedule: Schedule, removals: Sequence[Removal]) -> Schedule:
    smaller = {role: list(schedule[role]) for role in ROLES}
    for role, block in removals:
        smaller[role][block] -= 1
    return smaller
