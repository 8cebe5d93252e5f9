"""Colocated pods compute prompts beside or between the steps of their batch."""

from math import inf, isnan
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.goals import Windows
from argosy_law.observe import Value
from argosy_law.signals import samples
from argosy_law.signals.samples import assemble
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.colocated import ColocatedWorld
from argosy_law.sim.world.machine import Setup
from argosy_law.sim.world.pods import ColocatedPod
from argosy_law.sim.world.scrape import Scraper
from tests.sim.fleets import ROUND, poisson, setup, trace

Batching = Literal["chunked", "prefill-first"]
ROWS = st.lists(
    st.tuples(st.floats(0, 30), st.integers(1, 3000), st.integers(1, 200)), min_size=1, max_size=50
)
BATCHING = st.sampled_from(("chunked", "prefill-first"))


def started(of: Setup, requests: Trace, pods: int = 1) -> ColocatedWorld:
    world = ColocatedWorld(of, requests)
    world.scale("colocated", pods, warm=True)
    return world


def played(of: Setup, requests: Trace, pods: int = 1) -> ColocatedWorld:
    world = started(of, requests, pods)
    world.advance(inf)
    return world


def the_pod(world: ColocatedWorld, index: int = 0) -> ColocatedPod:
    pod = world.pods["colocated"][index]
    assert isinstance(pod, ColocatedPod)
    return pod


@pytest.mark.parametrize("batching", ["chunked", "prefill-first"])
def test_a_lone_request_takes_its_prompt_and_its_steps(batching: Batching) -> None:
    world = played(setup(batching=batching), trace([(2.0, 100, 3)]))
    assert world.first == [pytest.approx(2.2)]
    assert world.last == [pytest.approx(2.2 + 0.01201 + 0.01202)]


def test_a_chunk_makes_the_decodes_step_longer() -> None:
    # the second comes in the first one's first decode step, which ends at 0.21201
    world = played(setup(), trace([(0.0, 100, 3), (0.205, 50, 1)]))
    mixed = 0.1 + 0.001 + 102e-5 + 0.050  # the longer base, a sequence, its context, the chunk
    assert world.first[1] == pytest.approx(0.21201 + mixed)
    assert world.last == [pytest.approx(0.21201 + mixed)] * 2
    pod = the_pod(world)
    assert (pod.steps, pod.prompt_steps) == (2, 1)
    assert (pod.prefill_tokens, pod.prefill_requests) == (150, 2)


def test_prefill_first_lets_decodes_stand_still() -> None:
    world = played(setup(batching="prefill-first"), trace([(0.0, 100, 3), (0.205, 50, 1)]))
    assert world.first[1] == pytest.approx(0.21201 + 0.150)
    assert world.last[0] == pytest.approx(0.21201 + 0.150 + 0.01202)
    pod = the_pod(world)
    assert (pod.steps, pod.prompt_steps) == (2, 2)


def test_requests_of_a_full_batch_or_full_memory_wait_for_an_end() -> None:
    world = played(setup(sequences=1), trace([(0.0, 10, 20), (0.0, 10, 2)]))
    assert world.first[1] == pytest.approx(world.last[0] + 0.11)
    rows = [(0.0, 1, 1), (0.05, 4000, 500), (0.05, 5000, 500), (0.06, 1, 1)]
    full = played(setup(step_tokens=100_000), trace(rows))  # 10,000 tokens: two exactly
    assert full.first[1] == full.first[2] == pytest.approx(0.101 + 0.1 + 9.0)
    assert full.first[3] == pytest.approx(full.last[1] + 0.101)


def one_step_at_a_time(
    rows: list[tuple[float, int, int]], batching: Batching, budget: int, most: int
) -> tuple[list[float], list[float]]:
    """First and last tokens by a loop over the steps of one pod, from the model's definition."""
    first, last, now = [0.0] * len(rows), [0.0] * len(rows), 0.0
    line, batch, running = list(range(len(rows))), dict[int, int](), dict[int, int]()
    free = int(ROUND.kv_tokens)
    while line or running or batch:
        left = budget - (len(batch) if batching == "chunked" else 0)
        chunks = {}
        for i in [*running, *line]:
            if left <= 0 or rows[i][0] > now:
                break
            if i in line:
                if rows[i][1] + rows[i][2] > free or len(batch) + len(chunks) >= most:
                    break
                free -= rows[i][1] + rows[i][2]
                line.remove(i)
                running[i] = 0
            chunks[i] = min(rows[i][1] - running[i], left)
            left -= chunks[i]
        if not chunks and not batch:
            now = rows[line[0]][0]
            continue
        decoding = batch and not (chunks and batching == "prefill-first")
        base = max(
            ROUND.prefill_base_s if chunks else 0.0, ROUND.decode_base_s if decoding else 0.0
        )
        now += base + ROUND.per_prompt_token_s * sum(chunks.values())
        if decoding:
            now += ROUND.per_sequence_s * len(batch)
            now += ROUND.per_context_token_s * sum(rows[i][1] + n for i, n in batch.items())
            batch = {i: n + 1 for i, n in batch.items()}
        for i, count in chunks.items():
            running[i] += count
            if running[i] == rows[i][1]:
                del running[i]
                batch[i], first[i] = 1, now
        for i in [i for i, n in batch.items() if n == rows[i][2]]:
            del batch[i]
            last[i] = now
            free += rows[i][1] + rows[i][2]
    return first, last


@settings(max_examples=100, deadline=None)
@given(ROWS, BATCHING, st.sampled_from((300, 2048)), st.sampled_from((3, 256)))
def test_jumps_end_answers_when_single_steps_do(
    rows: list[tuple[float, int, int]], batching: Batching, budget: int, most: int
) -> None:
    # of two that come at the same moment, one would begin alone
    rows = [(at + n * 1.237e-4, *tokens) for n, (at, *tokens) in enumerate(sorted(rows))]
    of = setup(batching=batching, step_tokens=budget, sequences=most)
    world = played(of, trace(rows))
    first, last = one_step_at_a_time(rows, batching, budget, most)
    assert world.first == pytest.approx(first, abs=1e-6)
    assert world.last == pytest.approx(last, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    ROWS,
    st.lists(st.tuples(st.floats(0, 60), st.integers(1, 4)), max_size=10),
    st.sampled_from((2.0, 1e6)),
    BATCHING,
    st.sampled_from(("fifo", "deadline")),
    st.booleans(),
)
def test_every_request_ends_once_and_gives_back_what_it_had(
    rows: list[tuple[float, int, int]],
    moves: list[tuple[float, int]],
    drain_s: float,
    batching: Batching,
    order: Literal["fifo", "deadline"],
    resumes: bool,
) -> None:
    of = setup(drain_s=drain_s, batching=batching, order=order, resumes=resumes)
    world = started(of, trace(sorted(rows)))
    for at, replicas in sorted(moves):
        world.advance(at)
        world.scale("colocated", replicas)
    world.advance(inf)
    assert world.finished
    assert sum(world.sums.verdicts.values()) == world.ended == len(rows)
    assert sum(not isnan(last) for last in world.last) == len(rows) - world.killed
    assert world.killed == 0 or (drain_s == 2.0 and not resumes)
    assert world.waiting_tokens == 0
    for index, pod in enumerate(world.pods["colocated"]):
        if not pod.gone:
            pod = the_pod(world, index)
            assert (pod.open, pod.tokens, pod.computed, pod.context) == (0, 0, 0, 0)
            assert (pod.kv_free, pod.jump, pod.stalled) == (10_000, 0, False)


def test_the_queue_serves_who_can_still_meet_the_limit() -> None:
    requests = poisson(8.0, 1500, 300, 5)  # twice what a pod computes
    shares = []
    for order in ("fifo", "deadline"):
        world = played(setup(ttft_s=2.0, order=order), requests)
        shares.append(
            (world.sums.verdicts[True, True] + world.sums.verdicts[True, False]) / world.ended
        )
    assert shares[0] < 0.1
    assert shares[1] > 0.25


@pytest.mark.parametrize("batching", ["chunked", "prefill-first"])
def test_a_law_sees_steps_of_colocated_pods(batching: Batching) -> None:
    world = started(setup(batching=batching), poisson(1.0, 400, 100, 20), pods=2)
    scraper = Scraper(world, Windows(), 0.0)
    while world.now < 300.0:
        scraper.advance(world.now + 15.0)
    metrics = assemble(scraper.round(), Windows())
    role = metrics.role("colocated")
    assert role.pods_reporting == 2
    assert isinstance(role.running, Value)
    rows = role.steps
    assert rows
    assert all(row.prefill_tokens == 100 * row.prefill_requests for row in rows)
    seconds = [pod.counted(world.now)[0] for pod in map(the_pod, [world] * 2, range(2))]
    counted = next(one for one in scraper.round().series if one.name == "argosy_step_seconds_total")
    assert counted.samples[-1][1] <= max(seconds)
    assert {one.labels["role"] for one in scraper.round().series} == {"gateway", "colocated"}
    assert samples.OUTSTANDING in {one.name for one in scraper.round().series}
