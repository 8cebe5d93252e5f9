"""Requests go through the simulated pods at times that can be worked out by hand."""

from dataclasses import replace
from math import inf, isnan

import pytest

from argosy_law.sim.replay import static
from argosy_law.sim.traces import Trace
from argosy_law.sim.world.fleet import World
from argosy_law.sim.world.machine import Programs, Setup
from tests.sim.fleets import (
    MACHINE,
    ROUND,
    decode_pod,
    played,
    poisson,
    prefill_pod,
    setup,
    started,
    trace,
)


def played_together(of: Setup, requests: Trace) -> World:
    """On one colocated pod."""
    return static(of, requests, {"colocated": 1}).world


def test_a_lone_request_takes_its_prefill_and_its_steps() -> None:
    world = played(setup(), trace([(2.0, 100, 3)]))
    assert world.first == [pytest.approx(2.2)]  # 0.1 + 100 tokens of 1 ms
    # steps of one sequence: 0.011 + 10 µs for each of 101, then 102 tokens
    assert world.last == [pytest.approx(2.2 + 0.01201 + 0.01202)]
    assert world.sums.verdicts[True, True] == 1


def test_kv_travels_before_the_second_token() -> None:
    world = played(setup(machine=MACHINE), trace([(0.0, 100, 2)]))
    assert world.first == [pytest.approx(0.2)]
    assert world.last == [pytest.approx(0.2 + 0.1 + 0.01201)]
    pod = decode_pod(world)
    assert (pod.transfers, pod.transfer_s) == (1, pytest.approx(0.1))


def test_a_prompt_longer_than_a_step_is_computed_in_chunks_and_shares_its_last_step() -> None:
    world = played(setup(step_tokens=200), trace([(0.0, 500, 1), (0.1, 100, 1)]))
    # 200, 200, then 100 with the other prompt's 100
    assert world.first == [pytest.approx(0.9)] * 2
    pod = prefill_pod(world)
    assert (pod.steps, pod.prefill_requests, pod.prefill_tokens) == (3, 4, 600)
    assert pod.seconds == pytest.approx(0.9)


def test_attention_over_the_prompt_takes_as_long_in_chunks_as_at_once() -> None:
    squared = replace(ROUND, per_prompt_token_squared_s=1e-6)
    world = played(setup(squared, step_tokens=200), trace([(0.0, 500, 1)]))
    assert world.first == [pytest.approx(3 * 0.1 + 0.5 + 0.25)]
    cached = trace([(0.0, 300, 1)])
    cached.cached = [200]
    world = played(setup(squared), cached)
    assert world.first == [pytest.approx(0.1 + 0.1 + 1e-6 * (300**2 - 200**2))]


def test_steps_are_counted_when_they_end_in_the_middle_of_a_jump_too() -> None:
    world = started(setup(), trace([(0.0, 100, 1000), (0.0, 100, 1000)]), prefill=2)
    world.advance(0.2)
    pod = decode_pod(world)
    now, context, expected = 0.2, 202, [0.0, 0, 0, 0]
    while now + 0.012 + 1e-5 * context <= 3.0:
        seconds = 0.012 + 1e-5 * context
        now += seconds
        expected = [
            expected[0] + seconds, expected[1] + 1, expected[2] + 2, expected[3] + context
        ]  # fmt: skip
        context += 2
    world.advance(3.0)
    assert pod.steps == 0 or pod.jump  # in the middle of a jump
    assert pod.counted(3.0) == pytest.approx(tuple(expected))
    world.advance(inf)
    assert pod.counted(1e9) == (pod.seconds, 999, 2 * 999, pod.context_tokens)


def test_a_sequence_joins_at_the_next_edge_of_a_step() -> None:
    profile_steps = 0.01201  # the first request's first step, from 0.2 on
    world = played(setup(), trace([(0.0, 100, 3), (0.005, 1, 2)]), prefill=2)
    assert world.first[1] == pytest.approx(0.106)
    # the second decodes alone from 0.106 and is done before the first one's KV is there
    assert world.last[1] == pytest.approx(0.106 + 0.01 + 0.001 + 2e-5)
    both = played(setup(), trace([(0.0, 100, 3), (0.105, 1, 2)]), prefill=2)
    assert both.first[1] == pytest.approx(0.206)
    edge = 0.2 + profile_steps
    assert both.last[1] == pytest.approx(edge + 0.01 + 2 * 0.001 + (102 + 2) * 1e-5)
    assert both.last[0] == both.last[1]


def test_programs_take_time_for_a_request_and_for_each_transfer() -> None:
    """To idle pods; a token of KV takes a millisecond."""
    of = setup(machine=MACHINE, programs=Programs(way_s=0.02, transfer_s=0.5))
    world = played(of, trace([(0.0, 100, 2)]))
    assert world.first == [pytest.approx(0.2 + 0.02)]
    assert world.last == [pytest.approx(0.2 + 0.1 + 0.5 + 0.01201 + 0.02)]
    pod = decode_pod(world)
    assert (pod.transfers, pod.transfer_s) == (1, pytest.approx(0.6))
    assert pod.link_free_at == pytest.approx(0.3), "what is waited for does not use the link"


def test_a_request_waits_for_the_step_that_runs_and_for_the_one_that_is_launched() -> None:
    """A first one decodes alone from 0.2 on, in steps of 11 ms and 10 µs for each token."""
    steps = [0.011 + 1e-5 * context for context in range(101, 140)]
    edges = [0.2 + sum(steps[:n]) for n in range(30)]
    rows = [(0.0, 100, 1000), (0.205, 1, 2)]
    ideal, real = (
        played(setup(programs=of), trace(rows), prefill=2) for of in (None, Programs(0.0, 0.0))
    )
    assert ideal.first[1] == pytest.approx(0.205 + 0.101)
    known_at = edges[2]
    leaves_at = next(edge for edge in edges if edge > ideal.first[1])
    assert real.first[1] == pytest.approx(leaves_at + known_at - 0.205)
    assert real.last[1] - ideal.last[1] == pytest.approx(known_at - 0.205)
    lone = played(setup(programs=Programs()), trace([rows[0], (0.205, 1, 1)]), prefill=2)
    assert lone.last[1] == lone.first[1], "of one token, too"
    colocated = [
        played_together(setup(programs=of), trace(rows)) for of in (None, Programs(0.02, 0.0))
    ]
    late_s = colocated[1].first[1] - colocated[0].first[1]
    assert late_s == pytest.approx(0.02 + steps[1])
    assert colocated[1].last[1] - colocated[0].last[1] == pytest.approx(late_s)


def test_a_sequence_waits_until_there_is_room_for_its_prompt_and_its_answer() -> None:
    def ends(outputs: tuple[int, int]) -> list[float]:
        rows = [(0.0, 4000, outputs[0]), (0.0, 4000, outputs[1]), (0.0, 10, 2)]
        return played(setup(step_tokens=100_000), trace(rows)).last

    first, second, third = ends((1000, 1000))  # 10,000 tokens: both fit
    assert second - first == pytest.approx(4.1, rel=0.3)  # its prompt came 4.1 s later
    assert first < third  # no room for a third one
    first, second, third = ends((1000, 1001))
    assert second > first + 1000 * 0.05  # it began when the first had ended
    assert third > first  # first in, first out: it waits behind the second


def test_requests_go_to_the_pods_with_the_least_work() -> None:
    rows = [(0.0, 1000, 2), (0.0, 10, 2), (0.0, 10, 2), (0.0, 10, 2)]
    world = played(setup(), trace(rows), prefill=2, decode=2)
    assert prefill_pod(world, 0).prefill_tokens == 1000
    assert prefill_pod(world, 1).prefill_tokens == 30
    assert decode_pod(world, 0).transfers == decode_pod(world, 1).transfers == 2


def test_without_a_ready_pod_requests_wait_in_the_gateway() -> None:
    world = started(setup(cold_s=5.0), trace([(1.0, 100, 2), (2.0, 100, 2)]), prefill=0)
    world.scale("prefill", 1)
    world.advance(4.9)
    assert list(world.held) == [0, 1]
    world.advance(inf)
    assert world.first == [pytest.approx(5.2), pytest.approx(5.4)]


def test_a_leaving_pod_takes_nothing_new_and_goes_when_it_is_empty() -> None:
    world = started(setup(), trace([(0.0, 10, 11), (1.0, 10, 2)]), decode=2)
    world.advance(0.15)
    world.scale("decode", 1)
    world.advance(inf)
    first, second = world.pods["decode"]
    # the second one had nothing: it goes at once
    assert (first.gone_at, second.gone_at) == (inf, 0.15)
    world = started(setup(), trace([(0.0, 10, 11), (0.0, 10, 21), (1.0, 10, 2)]), decode=2)
    world.advance(0.15)
    world.scale("decode", 1)
    leaving = world.pods["decode"][1]
    assert leaving.draining
    world.advance(inf)
    assert leaving.gone_at == world.last[1]
    assert decode_pod(world, 0).transfers == 2


def test_a_leaving_pod_is_called_back_without_a_cold_start() -> None:
    world = started(setup(), trace([(0.0, 10, 500), (0.0, 10, 500)]), decode=2)
    world.advance(0.2)
    world.scale("decode", 1)
    world.scale("decode", 2)
    world.advance(inf)
    assert len(world.pods["decode"]) == 2
    assert [pod.gone_at for pod in world.pods["decode"]] == [inf, inf]


def test_what_a_pod_has_when_its_drain_runs_out_of_time_is_killed_and_counts_as_a_miss() -> None:
    rows = [(0.0, 10, 5000), (0.0, 10, 2000)]
    world = started(setup(drain_s=3.0), trace(rows), decode=2)
    world.advance(0.5)
    world.scale("decode", 1)
    leaving = world.pods["decode"][1]
    world.advance(inf)
    assert leaving.gone_at == 3.5
    assert world.killed == 1
    assert isnan(world.last[1])
    assert world.sums.verdicts[False, False] == 1
    assert world.finished


def test_a_stream_whose_pod_ends_its_drain_goes_on_at_another_one() -> None:
    even = replace(ROUND, per_sequence_s=0.0, per_context_token_s=0.0)  # steps of 10 ms
    rows = [(0.0, 10, 5000), (0.0, 10, 2000)]
    world = started(setup(even, drain_s=3.0, resumes=True), trace(rows), prefill=2, decode=2)
    world.advance(0.505)
    world.scale("decode", 1)
    leaving = world.pods["decode"][1]
    world.advance(inf)
    assert leaving.gone_at == 3.505
    assert (world.killed, world.ended) == (0, 2)
    assert world.first == [pytest.approx(0.11)] * 2
    # 339 steps behind its first token it has 340; all 350 are computed until 3.955, it joins at the
    # edge of 3.96 with the next one, and 1,659 are left
    assert world.last[1] == pytest.approx(3.96 + 16.59)
    assert sum(prefill_pod(world, n).prefill_tokens for n in range(2)) == 20 + 350
    assert world.sums.prompt == 20


def test_a_stream_leaves_a_pod_that_drains_with_its_kv_and_nothing_is_computed_again() -> None:
    even = replace(ROUND, per_sequence_s=0.0, per_context_token_s=0.0)  # steps of 10 ms
    rows = [(0.0, 10, 5000), (0.0, 10, 2000)]
    of = setup(even, MACHINE, migrates=True)
    world = started(of, trace(rows), prefill=2, decode=2)
    world.advance(0.505)
    world.scale("decode", 1)
    leaving = world.pods["decode"][1]
    world.advance(inf)
    # seen a second later, behind 138 steps: 149 tokens of KV move in 149 ms, it joins at the edge
    # of 1.66 with its 140th token, and 1,860 are left
    assert leaving.gone_at == pytest.approx(1.505 + 0.149)
    assert world.last[1] == pytest.approx(1.66 + 18.60)
    assert world.first == [pytest.approx(0.11)] * 2
    assert sum(prefill_pod(world, n).prefill_tokens for n in range(2)) == 20
    assert (world.killed, world.ended) == (0, 2)


def test_the_only_pod_of_its_role_finishes_its_streams_itself() -> None:
    world = started(setup(migrates=True), trace([(0.0, 10, 2000)]))
    world.advance(0.5)
    world.scale("decode", 0)
    world.advance(5.0)
    assert world.pods["decode"][0].open == 1
    world.advance(inf)
    assert (world.killed, world.ended) == (0, 1)


def test_a_pod_that_is_called_back_while_its_streams_leave_keeps_the_others() -> None:
    world = started(setup(machine=MACHINE, migrates=True), trace([(0.0, 100, 800)] * 10), decode=2)
    world.advance(6.0)
    world.scale("decode", 1)
    world.advance(7.05)  # four have left, and their KV is on the way
    leaving = next(pod for pod in world.pods["decode"] if pod.draining)
    assert leaving.open == 1
    world.scale("decode", 2)
    world.advance(9.0)
    assert leaving.open == 1
    world.advance(inf)
    assert (world.killed, world.ended) == (0, 10)
    assert (decode_pod(world, 0).kv_free, decode_pod(world, 1).kv_free) == (10_000, 10_000)


def test_a_prompt_whose_pod_ends_its_drain_is_computed_at_another_one() -> None:
    world = started(setup(drain_s=1.0, resumes=True), trace([(0.0, 5000, 3)]), prefill=1)
    world.advance(0.5)
    world.scale("prefill", 0)
    world.scale("prefill", 1)  # called back: nothing is lost
    world.advance(0.6)
    world.scale("prefill", 0)
    world.advance(2.0)
    assert list(world.held) == [0]
    assert world.waiting_tokens == 5000
    world.scale("prefill", 1)  # ready at 7
    world.advance(inf)
    assert world.first == [pytest.approx(7.0 + 0.3 + 5.0)]  # three steps of at most 2048 tokens
    assert world.killed == 0


@pytest.mark.parametrize("resumes", [True, False])
def test_a_prompt_that_waits_for_room_is_lost_with_the_pod_that_has_its_kv(resumes: bool) -> None:
    # the first holds 9,010 of 10,000 tokens for minutes
    rows = [(0.0, 10, 9000), (0.0, 2000, 2)]
    world = started(setup(drain_s=1.0, resumes=resumes), trace(rows))
    world.advance(3.0)
    world.scale("prefill", 0)
    world.advance(4.5)
    world.scale("prefill", 1)
    world.advance(inf)
    assert world.finished
    assert prefill_pod(world, 0).gone_at == 4.0
    if resumes:
        # its second token is what the prompt and its first token give
        assert world.first[1] == pytest.approx(0.11 + 2.1)
        assert world.last[1] == pytest.approx(world.last[0] + 0.1 + 2.001)
    else:
        assert world.killed == 1
        assert isnan(world.last[1])


def test_prefill_waits_as_an_m_d_1_queue() -> None:
    service, load = 0.3, 0.7
    requests = poisson(load / service, 30_000, prompt=200, output=1)
    world = played(setup(step_tokens=200), requests)
    waits = [
        first - arrival - service
        for arrival, first in zip(requests.arrival, world.first, strict=True)
    ]
    expected = load * service / (2 * (1 - load))
    assert sum(waits) / len(waits) == pytest.approx(expected, rel=0.05)


def test_a_decode_pod_holds_as_many_sequences_as_processor_sharing_says() -> None:
    rate, prompt, output = 3.0, 100, 101
    world = played(setup(), poisson(rate, 8000, prompt, output), prefill=20)
    # n sequences take a + s·n for a token each. With ρ = rate · steps · s, the states of such a
    # queue have the weights of a negative binomial distribution, whatever the lengths: its mean.
    per_sequence = 0.001 + 1e-5 * (prompt + output / 2)
    load, alone = rate * (output - 1) * per_sequence, rate * (output - 1) * 0.01
    expected = (alone + load) / (1 - load)
    times = [last - first for first, last in zip(world.first, world.last, strict=True)]
    assert rate * sum(times) / len(times) == pytest.approx(expected, rel=0.05)
