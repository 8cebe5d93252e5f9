"""Decode pods that take what comes to them between two steps."""

from dataclasses import replace
from math import inf, isnan
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_law.sim import cli
from argosy_law.sim.inbox import InboxWorld, next_edge
from argosy_law.sim.replay import started as begun
from argosy_law.sim.world.fleet import PoolName, World
from argosy_law.sim.world.machine import Setup
from argosy_law.sim.world.pods import DecodePod, PrefillPod
from tests.sim.fleets import MACHINE, ROUND, decode_pod, prefill_pod, setup, trace
from tests.sim.test_conservation import MOVES, ROWS, moved
from tests.sim.test_simulate import arguments

SLOW = replace(ROUND, decode_base_s=0.1, per_sequence_s=0.0, per_context_token_s=0.0)
"""Decode steps of 100 ms."""


def started(of: Setup, rows: list[tuple[float, int, int]]) -> World:
    of = replace(of, inbox="between-steps")
    return begun(of, trace(rows), {"prefill": 1, "decode": 1})


def times(rows: list[tuple[float, int, int]]) -> tuple[list[float], list[float]]:
    """First and last tokens."""
    world = started(setup(SLOW), rows)
    world.advance(inf)
    return world.first, world.last


def test_a_request_waits_for_two_edges_of_its_decode_pod() -> None:
    # the first has its prompt at 0.2 s, and its steps end at 0.3, 0.4, ... until 2.2 s
    world = started(setup(SLOW), [(0.0, 100, 21), (0.55, 150, 3)])
    assert isinstance(world, InboxWorld)
    world.advance(0.59)
    assert (decode_pod(world).open, prefill_pod(world).open) == (2, 1)
    assert (prefill_pod(world).tokens, list(prefill_pod(world).queue)) == (150, [])
    world.advance(0.61)
    assert list(prefill_pod(world).queue) == [1]
    world.advance(inf)
    # asked for at 0.6, computed at 0.85, seen at 0.9, where it also joins the batch
    assert world.first == [pytest.approx(0.2), pytest.approx(0.9)]
    assert world.last == [pytest.approx(2.2), pytest.approx(1.1)]


def test_an_idle_pod_takes_a_request_and_its_first_token_at_once() -> None:
    first, last = times([(0.0, 100, 2), (0.55, 100, 1)])
    assert first == [pytest.approx(0.2), pytest.approx(0.75)]
    assert last == [pytest.approx(0.3), pytest.approx(0.75)]


def test_an_answer_of_one_token_ends_with_the_edge_that_shows_it() -> None:
    first, last = times([(0.0, 100, 21), (0.55, 150, 1)])
    assert first[1] == last[1] == pytest.approx(0.9)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_prompt_is_lost_with_its_pod_before_it_is_asked_for(resumes: bool) -> None:
    of = setup(SLOW, drain_s=0.01, resumes=resumes)
    world = started(of, [(0.0, 100, 21), (0.55, 100, 3)])
    world.advance(0.56)
    world.scale("prefill", 0)
    world.advance(0.61)
    assert (world.killed, list(world.held)) == ((0, [1]) if resumes else (1, []))
    assert decode_pod(world).open == 1
    world.scale("prefill", 1, warm=True)
    world.advance(inf)
    assert world.finished
    assert isnan(world.last[1]) is not resumes


@given(st.floats(0, 49))
def test_the_next_edge_is_the_end_of_the_step_that_runs(at: float) -> None:
    pod = DecodePod(name="d", created_at=0.0, ready_at=0.0, kv_free=1)
    assert next_edge(pod, at) == at
    pod.jump, pod.jump_at, pod.first_s, pod.growth_s = 100, 0.0, 0.5, 0.0
    edge = next_edge(pod, at)
    assert at <= edge <= at + 0.5
    assert edge / 0.5 == round(edge / 0.5)


@settings(max_examples=60, deadline=None)
@given(ROWS, MOVES, st.sampled_from((2.0, 1e6)), st.booleans(), st.booleans())
def test_every_request_ends_once_and_gives_back_what_it_had(
    rows: list[tuple[float, int, int]],
    moves: list[tuple[float, PoolName, int]],
    drain_s: float,
    resumes: bool,
    waits: bool,
) -> None:
    order = "deadline" if waits else "fifo"
    of = setup(machine=MACHINE, drain_s=drain_s, resumes=resumes, order=order)
    world = moved(started(of, sorted(rows)), moves)
    assert world.finished
    assert sum(world.sums.verdicts.values()) == world.ended == len(rows)
    answered = [i for i, last in enumerate(world.last) if not isnan(last)]
    assert len(answered) == len(rows) - world.killed
    for i in answered:
        assert world.trace.arrival[i] < world.first[i] <= world.last[i] + 1e-9
    for pod in (pod for pods in world.pods.values() for pod in pods if not pod.gone):
        assert pod.open == 0
        if isinstance(pod, PrefillPod):
            assert (pod.tokens, pod.computed, list(pod.queue)) == (0, 0, [])
        elif isinstance(pod, DecodePod):
            assert (pod.kv_free, pod.context, pod.jump) == (10_000, 0, 0)


def test_the_flag_shows_first_tokens_later_and_answers_as_quick(tmp_path: Path) -> None:
    medians = []
    for inbox in ("at-once", "between-steps"):
        flags = arguments(tmp_path / "x.json", policy="static:3,2", scale="2", inbox=inbox)
        options = cli.parse(flags)
        world = cli.play(options, cli.trace_of(options), None).world
        waits = [f - at for f, at in zip(world.first, world.trace.arrival, strict=True)]
        medians.append(median(wait for wait in waits if not isnan(wait)))
    # half a step to be asked for and half a step to be seen, of 25 to 60 ms each
    assert 0.02 < medians[1] - medians[0] < 0.06
