"""The schedule of one who knows all arrivals, beside brute force on traces of a few minutes."""

from itertools import pairwise, product
from random import Random

import pytest

from argosy_law.sim import figures
from argosy_law.sim.reference import hindsight, oracle
from argosy_law.sim.reference.oracle import Schedule, Task
from argosy_law.sim.replay import static
from argosy_law.sim.traces import Trace
from tests.sim.fleets import setup, trace

QUIET, BUSY = 1.5, 5.0
"""Requests per second; one prefill pod computes five prompts of 100 tokens in a second."""


def waves(*per_s: float, seed: int) -> Trace:
    """A minute at each rate."""
    rng, rows = Random(seed), []
    for minute, rate in enumerate(per_s):
        at = 60.0 * minute
        while (at := at + rng.expovariate(rate)) < 60.0 * (minute + 1):
            rows.append((at, 100, 20))
    return trace(rows)


def task(seed: int, *per_s: float, cold_s: float = 10.0) -> Task:
    of = setup(cold_s=cold_s, ttft_s=0.6, tpot_s=0.03)
    return Task(of, waves(*per_s, seed=seed), warmup_s=5.0, goal=0.9, block_s=60.0)


def attained(of: Task, schedule: Schedule) -> float:
    return figures.attainment(oracle.scheduled(of, schedule).world, of.warmup_s)["attainment"]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("rates", [(QUIET, BUSY), (BUSY, QUIET), (QUIET, BUSY, QUIET)])
def test_it_costs_what_the_cheapest_of_all_schedules_costs(
    seed: int, rates: tuple[float, ...]
) -> None:
    of = task(seed, *rates)
    found = oracle.search(of)
    assert found is not None
    assert attained(of, found) >= 0.9
    blocks = len(rates)
    cheapest = min(
        oracle.gpu_seconds(of, schedule)
        for numbers in product(range(1, 4), repeat=blocks)
        for more in product(range(1, 3), repeat=blocks)
        if attained(of, schedule := {"prefill": numbers, "decode": more}) >= 0.9
    )
    one = 60.0 * of.setup.replica.machine.gpus
    assert cheapest <= oracle.gpu_seconds(of, found) <= cheapest + one


def test_pods_are_there_when_the_block_begins_and_leave_when_it_ends() -> None:
    of = task(1, QUIET, BUSY, QUIET)
    schedule: Schedule = {"prefill": (1, 3, 2), "decode": (1, 1, 1)}
    assert list(oracle.wanted(of, (1, 3, 2))) == [(0.0, 1), (50.0, 3), (120.0, 2)]
    run = oracle.scheduled(of, schedule)
    assert run.moves == ((50.0, "prefill", 2), (120.0, "prefill", -1))
    new = [pod for pod in run.world.pods["prefill"] if pod.created_at > 0]
    assert [pod.ready_at for pod in new] == [60.0, 60.0]
    prefill = 1 * 45 + 3 * 70 + 2 * (of.trace.end - 120)
    assert oracle.gpu_seconds(of, schedule) == pytest.approx(2 * (prefill + of.trace.end - 5))
    drains = 2 * 5.0  # the pod that leaves ends its work first
    hours = figures.gpu_hours(run.world, 5.0, of.trace.end)
    assert 0 <= 3600 * hours - oracle.gpu_seconds(of, schedule) < drains


def test_a_dip_that_is_shorter_than_a_cold_start_is_filled() -> None:
    of = task(1, BUSY, QUIET, BUSY, cold_s=60.0)
    assert list(oracle.wanted(of, (3, 1, 3))) == [(0.0, 3)]
    of = task(1, BUSY, QUIET, BUSY, cold_s=59.0)
    assert list(oracle.wanted(of, (3, 1, 3))) == [(0.0, 3), (60.0, 1), (61.0, 3)]
    of = task(1, BUSY, QUIET, BUSY, cold_s=90.0)
    assert list(oracle.wanted(of, (1, 2, 3))) == [(0.0, 2), (30.0, 3)]


def test_a_constant_schedule_plays_as_a_constant_fleet() -> None:
    of = task(4, BUSY, QUIET)
    run = oracle.scheduled(of, {"prefill": (2, 2), "decode": (1, 1)})
    alone = static(of.setup, of.trace, {"prefill": 2, "decode": 1})
    assert (run.world.last, run.moves) == (alone.world.last, ())


def test_a_window_has_the_requests_of_its_blocks_and_the_replicas_of_its_time() -> None:
    of = task(4, BUSY, QUIET, BUSY, QUIET)
    schedule: Schedule = {"prefill": (3, 1, 2, 1), "decode": (1, 1, 2, 1)}
    world = oracle.scheduled(of, schedule, 1, 3).world
    assert 60.0 <= world.trace.arrival[0] < world.trace.end < 180.0
    assert len(world.trace) == sum(60 <= at < 180 for at in of.trace.arrival)
    assert [pod.created_at for pod in world.pods["prefill"]] == [0.0, 110.0]
    assert world.finished


def test_it_costs_no_more_than_the_best_constant_fleet_where_the_load_changes() -> None:
    of = task(7, QUIET, BUSY, QUIET, QUIET, BUSY, QUIET)
    run = oracle.play(of)
    best = hindsight.smallest(of.setup, of.trace, warmup_s=5.0, goal=0.9)
    assert run is not None
    assert best is not None
    constant = sum(best.values()) * of.setup.replica.machine.gpus * (of.trace.end - 5.0) / 3600
    assert figures.attainment(run.world, 5.0)["attainment"] >= 0.9
    assert figures.gpu_hours(run.world, 5.0, of.trace.end) < 0.9 * constant
    assert all(later[0] >= earlier[0] for earlier, later in pairwise(run.moves))


def test_a_goal_that_no_replicas_meet_has_no_schedule() -> None:
    slow = Task(setup(tpot_s=0.001), waves(QUIET, seed=1), 5.0, 0.9, 60.0)
    assert oracle.play(slow) is None
