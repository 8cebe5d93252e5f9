"""The steps of the search for a schedule, on traces whose losses are counted by hand.

A prompt of 100 tokens fills a step of 0.2 s, so one prefill pod answers five prompts in a second.
"""

import pytest

from argosy_law.sim import figures
from argosy_law.sim.reference import oracle
from argosy_law.sim.reference.oracle import Schedule, Task
from argosy_law.sim.traces import Trace
from tests.sim.fleets import setup, trace

TTFT_S = 0.3


def task(requests: Trace, *, goal: float = 0.9, warmup_s: float = 0.0) -> Task:
    of = setup(cold_s=10.0, ttft_s=TTFT_S, step_tokens=100)
    return Task(of, requests, warmup_s=warmup_s, goal=goal, block_s=60.0)


def pairs(*at: float, until: float = 170.0) -> Trace:
    """Two prompts at each time: one pod answers the second after 0.4 s, two pods after 0.2 s.

    And one alone every ten seconds, which one pod answers in time.
    """
    alone = [10.0 * n for n in range(int(until / 10) + 1)]
    return trace(sorted((s, 100, 1) for s in (*alone, *at, *at)))


def test_the_work_of_a_block_is_that_of_its_busiest_minute() -> None:
    of = setup(tpot_s=0.05, step_tokens=1000)
    # The answer of the second request takes 101 · 0.05 s, so half of it is in each minute.
    requests = trace([(10.0, 1000, 1), (57.0, 1000, 101), (170.0, 500, 1)])
    busy = oracle._busy(Task(of, requests, 0.0, 0.9, block_s=90.0))
    assert busy["prefill"] == [pytest.approx(2.2 / 60), pytest.approx(0.55 / 60)]
    decode = figures.physical_pod_seconds(trace([(0.0, 1000, 101)]), of, 0.0)["decode"]
    assert busy["decode"] == [pytest.approx(decode / 2 / 60)] * 2
    halves = oracle._busy(Task(of, requests, 0.0, 0.9, block_s=60.0))
    assert halves["prefill"] == [pytest.approx(2.2 / 60), 0.0, pytest.approx(0.55 / 60)]
    assert halves["decode"] == [pytest.approx(decode / 2 / 60)] * 2 + [0.0]


def test_what_is_cached_is_no_work() -> None:
    of = setup(step_tokens=1000)
    requests = trace([(0.0, 1000, 1), (70.0, 1000, 1)])
    requests.cached = [0, 500]
    busy = oracle._busy(Task(of, requests, 0.0, 0.9, block_s=60.0))
    assert busy["prefill"] == [pytest.approx(1.1 / 60), pytest.approx(0.55 / 60)]


def test_an_answer_that_outlasts_the_trace_is_work_of_its_last_minute() -> None:
    of = setup(tpot_s=0.05)
    requests = trace([(50.0, 100, 2000)])
    busy = oracle._busy(Task(of, requests, 0.0, 0.9, block_s=60.0))
    decode = figures.physical_pod_seconds(requests, of, 0.0)["decode"]
    assert busy["decode"] == [pytest.approx(decode / 60)]


def test_the_first_schedule_is_half_as_much_again_and_a_pod() -> None:
    # 100 prompts in the first minute are 20 s of work: a third of a pod
    of = task(trace([(0.5 * n, 100, 1) for n in range(100)] + [(90.0, 100, 1)]))
    assert oracle._more_than_enough(of) == {"prefill": [2, 2], "decode": [1, 1]}


def test_a_removal_loses_the_requests_of_its_block_and_saves_its_time() -> None:
    of = task(pairs(72.5, 85.5))
    left: Schedule = {"prefill": [2, 2, 2], "decode": [1, 1, 1]}
    losses = oracle._Losses(of)
    # each pod has two GPUs, and those of the next block are created ten seconds before it
    assert losses.of(left, "prefill", 1) == (2, 2 * 50.0)
    assert losses.of(left, "prefill", 0) == (0, 2 * 50.0)
    assert losses.of(left, "prefill", 2) == (0, 2 * 50.0)


def test_what_a_removal_loses_two_blocks_later_is_not_counted() -> None:
    # 120 s of work at once: two pods have done it by 121 s, and one by 181 s
    of = task(trace(sorted([*((61.0, 100, 1),) * 600, *((10.0 * n, 100, 1) for n in range(20))])))
    left: Schedule = {"prefill": [2, 2, 1, 1], "decode": [1, 1, 1, 1]}
    # one of the many, and those from 130 to 170 s, but not the one at 180 s
    assert oracle._Losses(of).of(left, "prefill", 1)[0] == 6


def test_a_removal_that_a_cold_start_fills_saves_nothing_and_loses_nothing() -> None:
    requests = pairs(72.5, 85.5)
    of = Task(setup(cold_s=60.0, ttft_s=TTFT_S, step_tokens=100), requests, 0.0, 0.9, block_s=60.0)
    left: Schedule = {"prefill": [2, 2, 2], "decode": [1, 1, 1]}
    assert oracle._Losses(of).of(left, "prefill", 1) == (0, 0.0)


def test_what_arrives_in_the_warm_up_is_not_lost() -> None:
    requests = pairs(72.5, 85.5)
    left: Schedule = {"prefill": [2, 2, 2], "decode": [1, 1, 1]}
    assert oracle._Losses(task(requests, warmup_s=72.6)).of(left, "prefill", 1)[0] == 1
    assert oracle._Losses(task(requests, warmup_s=86.0)).of(left, "prefill", 1)[0] == 0


def removed(of: Task, schedule: Schedule) -> list[tuple[str, int]]:
    return sorted(oracle._cheapest_first(of, schedule))


def test_all_but_one_replica_are_removed_where_nothing_is_lost() -> None:
    schedule: Schedule = {"prefill": [3, 4, 2], "decode": [1, 2, 1]}
    assert removed(task(pairs()), schedule) == [
        ("decode", 1), ("prefill", 0), ("prefill", 0), ("prefill", 1), ("prefill", 1),
        ("prefill", 1), ("prefill", 2),
    ]  # fmt: skip


def test_what_loses_more_than_the_goal_allows_stays() -> None:
    # 18 alone and two pairs, of which one request each is lost: 22 · 0.1 are allowed, 22 · 0.09 not
    schedule: Schedule = {"prefill": [2, 2, 2], "decode": [1, 1, 1]}
    everything = [("prefill", 0), ("prefill", 1), ("prefill", 2)]
    assert removed(task(pairs(72.5, 85.5), goal=0.9), schedule) == everything
    assert removed(task(pairs(72.5, 85.5), goal=0.92), schedule) == [("prefill", 0), ("prefill", 2)]


def test_a_removal_is_counted_again_once_its_surroundings_are_smaller() -> None:
    # three pods answer three prompts at once in time, and so do two but for one
    requests = trace(sorted([*((70.0 + 4 * n, 100, 1) for n in (0, 0, 0)), (170.0, 100, 1)]))
    schedule: Schedule = {"prefill": [1, 3, 1], "decode": [1, 1, 1]}
    # four requests: one may be lost, two may not
    assert removed(task(requests, goal=0.7), schedule) == [("prefill", 1)]
    assert removed(task(requests, goal=0.5), schedule) == [("prefill", 1), ("prefill", 1)]


def test_the_schedule_that_is_found_has_a_pod_more_where_pairs_come() -> None:
    found = oracle.search(task(pairs(72.5, 75.5, 85.5), goal=0.95))
    assert found == {"prefill": [1, 2, 1], "decode": [1, 1, 1]}
