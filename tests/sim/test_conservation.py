"""Whatever is scaled and however requests come: each is served once, and nothing is left behind."""

from dataclasses import replace
from math import inf, isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.sim.world.fleet import PoolName, World
from argosy_law.sim.world.machine import Programs
from argosy_law.sim.world.pods import DecodePod, PrefillPod
from tests.sim.fleets import MACHINE, ROUND, decode_pod, played, setup, started, trace

ROWS = st.lists(
    st.tuples(st.floats(0, 60), st.integers(1, 3000), st.integers(1, 400)), min_size=1, max_size=60
)
MOVES = st.lists(
    st.tuples(st.floats(0, 90), st.sampled_from(("prefill", "decode")), st.integers(1, 4)),
    max_size=12,
)


def moved(world: World, moves: list[tuple[float, PoolName, int]]) -> World:
    for at, role, replicas in sorted(moves):
        world.advance(at)
        world.scale(role, replicas)
    world.advance(inf)
    return world


@settings(max_examples=60, deadline=None)
@given(
    ROWS,
    MOVES,
    st.sampled_from((2.0, 1e6)),
    st.booleans(),
    st.sampled_from((None, Programs())),
    st.booleans(),
)
def test_every_request_ends_once_and_gives_back_what_it_had(
    rows: list[tuple[float, int, int]],
    moves: list[tuple[float, PoolName, int]],
    drain_s: float,
    resumes: bool,
    programs: Programs | None,
    migrates: bool,
) -> None:
    requests = trace(sorted(rows))
    of = setup(
        machine=MACHINE, drain_s=drain_s, resumes=resumes, programs=programs, migrates=migrates
    )
    world = moved(started(of, requests), moves)
    assert world.finished
    assert sum(world.sums.verdicts.values()) == world.ended == len(requests)
    answered = [i for i, last in enumerate(world.last) if not isnan(last)]
    assert len(answered) == len(requests) - world.killed
    assert world.killed == 0 or (drain_s == 2.0 and not resumes)
    assert world.sums.output == sum(requests.output[i] for i in answered)
    for i in answered:
        assert requests.arrival[i] < world.first[i] <= world.last[i]
    for pod in (pod for pods in world.pods.values() for pod in pods if not pod.gone):
        assert pod.open == 0
        if isinstance(pod, PrefillPod):
            assert (pod.tokens, pod.computed, list(pod.queue)) == (0, 0, [])
        elif isinstance(pod, DecodePod):
            assert (pod.kv_free, pod.context, pod.jump) == (10_000, 0, 0)
    assert world.wanted("prefill")
    assert world.wanted("decode")


@settings(max_examples=40, deadline=None)
@given(ROWS, MOVES, st.integers(0, 3))
def test_equal_seeds_give_equal_runs(
    rows: list[tuple[float, int, int]], moves: list[tuple[float, PoolName, int]], seed: int
) -> None:
    of = setup(machine=MACHINE, sigma=0.4, seed=seed)
    first, second = (moved(started(of, trace(sorted(rows))), moves) for _ in range(2))
    assert (first.first, first.last) == (second.first, second.last)
    assert [p.gone_at for p in first.pods["decode"]] == [p.gone_at for p in second.pods["decode"]]


@settings(max_examples=40, deadline=None)
@given(ROWS, st.lists(st.floats(0, 400), max_size=40))
def test_looking_at_the_world_changes_nothing(
    rows: list[tuple[float, int, int]], stops: list[float]
) -> None:
    requests = trace(sorted(rows))
    seen = started(setup(machine=MACHINE), requests)
    for at in sorted(stops):
        seen.advance(at)
        decode_pod(seen).counted(at)
    seen.advance(inf)
    assert seen.last == played(setup(machine=MACHINE), requests).last


def one_step_at_a_time(rows: list[tuple[float, int, int]], sequences: int) -> list[float]:
    """Last tokens of requests that come with their KV, by a loop over the steps of one pod.

    Written from the model's definition and from nothing of the simulator.
    """
    waiting, batch, last, now = list(range(len(rows))), {}, [0.0] * len(rows), 0.0
    free = int(ROUND.kv_tokens)
    landed: list[int] = []
    while waiting or landed or batch:
        while waiting and rows[waiting[0]][0] <= now:
            need = rows[waiting[0]][1] + rows[waiting[0]][2]
            if need > free:
                break
            free -= need
            landed.append(waiting.pop(0))
        while landed and len(batch) < sequences:
            batch[landed.pop(0)] = 1
        if not batch:
            now = rows[waiting[0]][0]
            continue
        context = sum(rows[i][1] + done for i, done in batch.items())
        now += ROUND.decode_base_s + len(batch) * ROUND.per_sequence_s
        now += context * ROUND.per_context_token_s
        for i in list(batch):
            batch[i] += 1
            if batch[i] == rows[i][2]:
                last[i] = now
                free += rows[i][1] + rows[i][2]
                del batch[i]
    return last


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(1, 3000), st.integers(2, 60)),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from((3, 256)),
)
def test_jumps_over_many_steps_end_answers_when_single_steps_do(
    rows: list[tuple[float, int, int]], sequences: int
) -> None:
    # of two that come at the same moment, one would begin alone
    rows = [(at + n * 1.237e-4, *tokens) for n, (at, *tokens) in enumerate(sorted(rows))]
    # prefill takes no time, so a request arrives with its KV
    instant = replace(ROUND, prefill_base_s=0.0, per_prompt_token_s=0.0)
    world = played(setup(instant, sequences=sequences, step_tokens=10**9), trace(rows))
    assert world.last == pytest.approx(one_step_at_a_time(rows, sequences), abs=1e-6)
