"""What the schedulers of vLLM and TensorRT-LLM do, case by case: T1 to T15."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_engine.core.batching import (
    BATCHING,
    chunked,
    chunked_equal,
    mixed,
    prefill_first,
    static,
)
from argosy_engine.core.capacity import (
    GuaranteedNoEvict,
    MaxUtilization,
    PastFuture,
)
from argosy_engine.core.request import State
from argosy_engine.core.step import StepOutput
from tests.engine.core.test_scheduler import ask, check, make, run_all, shares, step


def names(scheduled):
    return [chunk.request_id for chunk in scheduled.plan.chunks] if scheduled.plan else []


def kinds(scheduler, steps):
    return [step(scheduler)[0].plan.kind for _ in range(steps)]


def drain(scheduler, turns=3000):
    """Steps until nothing is left; how many there were."""
    for turn in range(turns):
        if not scheduler.sequences:
            return turn
        check(scheduler, step(scheduler, now=float(turn))[0])
    raise AssertionError("work is stuck")


# ------------------------------------------------------------------ T1, T2


def queued(scheduler):
    return scheduler.add(ask("a", 40))


def half_computed(scheduler):
    scheduler.limits = replace(scheduler.limits, max_num_batched_tokens=16)
    sequence = scheduler.add(ask("a", 40))
    step(scheduler)
    return sequence


def decoding(scheduler):
    sequence = scheduler.add(ask("a", 40))
    step(scheduler)
    return sequence


def preempted(scheduler):
    sequence = decoding(scheduler)
    scheduler._preempt(sequence)
    return sequence


def arrived(scheduler):
    sequence = decoding(scheduler)
    scheduler.running.remove(sequence)
    scheduler.arrived.append(sequence)
    sequence.state = State.ARRIVED
    return sequence


@pytest.mark.parametrize("reach", [queued, half_computed, decoding, preempted, arrived])
@pytest.mark.parametrize("reason", ["abort", "stop"])
def test_t1_a_request_ends_in_every_state_and_leaves_nothing(reach, reason):
    scheduler = make(policy=MaxUtilization())
    sequence = reach(scheduler)
    scheduler.abort("a", reason)
    scheduler.abort("a", reason)  # it has ended: no error
    assert (sequence.state, sequence.reason, list(sequence.blocks)) == (State.FINISHED, reason, [])
    assert not scheduler.sequences
    assert not scheduler.waiting
    assert not scheduler.running
    assert not scheduler.arrived
    assert scheduler.pool.used == scheduler.blocks.growth_blocks == 0
    assert step(scheduler)[0].plan is None


def test_t1_the_name_of_an_ended_request_may_come_again():
    scheduler = make()
    scheduler.add(ask("a", 5))
    assert scheduler.refusal(ask("a", 5)).code == "duplicate"
    scheduler.abort("a")
    assert scheduler.refusal(ask("a", 5)) is None


def test_t2_all_that_fit_into_the_budget_are_computed_together():
    scheduler = make(tokens=50)
    for index in range(5):
        scheduler.add(ask(f"r{index}", 10))
    scheduled, _ = step(scheduler)
    assert shares(scheduled) == [10] * 5
    assert scheduled.blocked_by is None


# ------------------------------------------------------------------ T3, T4


def test_t3_three_prompts_of_800_tokens_share_1024_in_chunks_of_400():
    scheduler = make(blocks=200, tokens=1024, threshold=400)
    for index in range(3):
        scheduler.add(ask(f"r{index}", 800))
    assert [shares(step(scheduler)[0]) for _ in range(3)] == [
        [400, 400, 224],
        [400, 400, 224],
        [1, 1, 352],
    ]


def toy(batching):
    """Five requests of 5 prompt tokens, places for 4, 12 tokens a step; r1 ends with its second
    token."""
    scheduler = make(seqs=4, tokens=12, size=1, blocks=200, batching=batching)
    for index in range(1, 6):
        scheduler.add(ask(f"r{index}", 5, max_tokens=2 if index == 1 else 9))
    return scheduler


def test_t4_whole_prompts_enter_when_all_of_them_fits():
    scheduler = toy(mixed)
    steps = [step(scheduler)[0] for _ in range(3)]
    assert [list(zip(names(one), shares(one), strict=True)) for one in steps] == [
        [("r1", 5), ("r2", 5)],
        [("r1", 1), ("r2", 1), ("r3", 5), ("r4", 5)],
        [("r2", 1), ("r3", 1), ("r4", 1), ("r5", 5)],
    ]
    assert [one.blocked_by for one in steps] == ["tokens", "batch", None]


def test_t4_with_chunks_the_third_prompt_begins_in_the_first_step():
    scheduler = toy(chunked)
    steps = [step(scheduler)[0] for _ in range(3)]
    assert [list(zip(names(one), shares(one), strict=True)) for one in steps] == [
        [("r1", 5), ("r2", 5), ("r3", 2)],
        [("r1", 1), ("r2", 1), ("r3", 3), ("r4", 5)],
        [("r2", 1), ("r3", 1), ("r4", 1), ("r5", 5)],
    ]
    assert [one.blocked_by for one in steps] == ["tokens", "batch", None]


# ------------------------------------------------------------------ T5, T6


@pytest.mark.parametrize("batching", [chunked, chunked_equal, mixed])
@settings(max_examples=30, deadline=None)
@given(prompts=st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_t5_no_decode_is_delayed_by_a_prompt(batching, prompts):
    scheduler = make(tokens=64, batching=batching, seqs=32)
    scheduler.add(ask("old", 16, max_tokens=100))
    step(scheduler)
    for turn, prompt in enumerate(prompts):
        scheduler.add(ask(f"r{turn}", prompt, max_tokens=5))
        decodes = [s.request_id for s in scheduler.running if s.decoding]
        scheduled, _ = step(scheduler)
        assert names(scheduled)[: len(decodes)] == decodes


@settings(max_examples=30, deadline=None)
@given(work=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=20))
def test_t6_prefill_first_never_computes_both_in_one_step(work):
    scheduler = make(tokens=64, batching=prefill_first)
    for turn, (prompt, out) in enumerate(work):
        scheduler.add(ask(f"r{turn}", prompt, max_tokens=out))
        assert step(scheduler)[0].plan.kind != "mixed"
    while scheduler.sequences:
        assert step(scheduler)[0].plan.kind != "mixed"


def test_t6_prefill_first_stops_the_decodes_for_a_prompt_and_then_goes_on():
    scheduler = make(tokens=64, batching=prefill_first)
    scheduler.add(ask("old", 16, max_tokens=9))
    assert kinds(scheduler, 2) == ["prefill", "decode"]
    scheduler.add(ask("new", 30, max_tokens=9))
    assert kinds(scheduler, 2) == ["prefill", "decode"]
    assert names(step(scheduler)[0]) == ["old", "new"]


# ------------------------------------------------------------------ T7


@pytest.mark.parametrize(
    ("options", "token", "produced", "reason"),
    [
        pytest.param({"max_tokens": 9}, 2, 1, "stop", id="end of sequence"),
        pytest.param(
            {"max_tokens": 9, "sampling": {"stop_token_ids": (7,)}}, 7, 1, "stop", id="stop id"
        ),
        pytest.param({"max_tokens": 3}, 7, 3, "length", id="max_tokens"),
        pytest.param({"max_tokens": 15}, 7, 15, "length", id="max_tokens at the context's end"),
        pytest.param(
            {"max_tokens": 9, "sampling": {"min_tokens": 4}}, 2, 4, "stop", id="min_tokens"
        ),
        pytest.param(
            {"max_tokens": 5, "sampling": {"ignore_eos": True}}, 2, 5, "length", id="ignore_eos"
        ),
    ],
)
def test_t7_a_request_ends_where_its_parameters_say(options, token, produced, reason):
    scheduler = make(max_len=20)
    sequence = scheduler.add(ask("a", 5, **options))
    while scheduler.sequences:
        step(scheduler, token=token)
    assert (sequence.n_output, sequence.reason) == (produced, reason)


def test_t7_the_context_ends_a_request_whose_max_tokens_would_pass_it():
    scheduler = make(max_len=20)
    sequence = scheduler.add(ask("a", 5, max_tokens=99))
    while scheduler.sequences:
        step(scheduler)
    assert (len(sequence.tokens), sequence.reason) == (20, "length")


# ------------------------------------------------------------------ T8 to T11


def crowded(*priorities, prompt=16):
    """Prompts of whole blocks and one block to spare: the next token of each needs a block."""
    blocks = len(priorities) * prompt // 16 + 1
    scheduler = make(blocks=blocks, size=16, policy=MaxUtilization(), tokens=1024)
    for index, priority in enumerate(priorities):
        scheduler.add(ask(f"r{index}", prompt, max_tokens=20, priority=priority))
    step(scheduler)
    assert scheduler.pool.available == 1
    return scheduler


def test_t8_the_lowest_priority_is_preempted_first():
    scheduler = crowded(0, 5, 1)
    scheduled, _ = step(scheduler)
    assert [s.request_id for s in scheduled.preempted] == ["r1"]
    assert names(scheduled) == ["r0", "r2"]


def test_t8_a_request_of_higher_priority_stays_though_it_came_last():
    scheduler = make(blocks=4, size=16, policy=MaxUtilization())
    scheduler.add(ask("low", 16, max_tokens=60, priority=3))
    step(scheduler)
    scheduler.add(ask("high", 16, max_tokens=60, priority=-3, at=1.0))
    victims = []
    while not victims:
        victims += [s.request_id for s in step(scheduler)[0].preempted]
    assert victims == ["low"]
    assert [s.request_id for s in scheduler.running] == ["high"]


def test_t9_the_last_admitted_is_preempted_and_resumes_before_later_arrivals():
    scheduler = crowded(0, 0, 0)
    scheduled, _ = step(scheduler)
    assert [s.request_id for s in scheduled.preempted] == ["r2"]
    scheduler.add(ask("late", 16, max_tokens=2, at=5.0))
    assert [s.request_id for s in scheduler.waiting] == ["r2", "late"]


def test_t10_the_budget_and_the_blocks_of_a_victim_go_to_others():
    scheduler = crowded(0, 0, 0)
    scheduled, _ = step(scheduler)
    assert names(scheduled) == ["r0", "r1"]
    assert scheduled.plan.tokens == 2
    assert scheduler.pool.used == 4
    check(scheduler, scheduled)


def test_t10_a_victim_that_was_given_its_block_in_this_step_gives_it_up_and_is_not_computed():
    scheduler = make(blocks=4, size=16, policy=MaxUtilization())
    victim = scheduler.add(ask("r0", 15, max_tokens=20, priority=5))
    step(scheduler)
    for name in ("r1", "r2"):
        scheduler.add(ask(name, 16, max_tokens=20))
    step(scheduler)
    # Each needs a block now. The first in the batch takes the last one, and has to go.
    assert [sequence.request_id for sequence in scheduler.running] == ["r0", "r1", "r2"]
    scheduled, emissions = step(scheduler)
    assert [s.request_id for s in scheduled.preempted] == ["r0"]
    assert (list(victim.blocks), len(victim.tokens)) == ([], 17)
    assert names(scheduled) == ["r1", "r2"]
    assert [emission.sequence.request_id for emission in emissions] == ["r1", "r2"]
    assert (scheduled.plan.tokens, scheduler.pool.used) == (2, 4)
    check(scheduler, scheduled)


def test_t11_nothing_enters_in_a_step_that_preempted():
    scheduler = crowded(0, 0, 0, prompt=32)
    scheduler.add(ask("new", 1, max_tokens=1, priority=-9))
    scheduled, _ = step(scheduler)
    assert [s.request_id for s in scheduled.preempted] == ["r2"]
    assert scheduler.pool.available == 1
    assert (names(scheduled), scheduled.blocked_by) == (["r0", "r1"], "kv")


# ------------------------------------------------------------------ T12


@pytest.mark.parametrize("batching", [chunked, chunked_equal, static])
def test_t12_a_prompt_longer_than_a_step_is_computed_in_chunks(batching):
    scheduler = make(tokens=32, batching=batching)
    request = ask("a", 100, max_tokens=2)
    assert scheduler.refusal(request) is None
    sequence = scheduler.add(request)
    assert drain(scheduler) == 5
    assert sequence.reason == "length"


@pytest.mark.parametrize("batching", [mixed, prefill_first])
def test_t12_without_chunks_it_is_refused_and_one_that_fits_exactly_is_not(batching):
    scheduler = make(tokens=32, batching=batching)
    assert scheduler.refusal(ask("a", 32)) is None
    refused = scheduler.refusal(ask("a", 33))
    assert refused.code == "context_length_exceeded"
    assert "at most 32 tokens in a step; the prompt has 33" in refused.message
    assert "--batching chunked" in refused.message


@pytest.mark.parametrize("batching", [mixed, prefill_first])
def test_t12_a_preempted_text_longer_than_a_step_is_computed_in_chunks_all_the_same(batching):
    scheduler = make(tokens=32, batching=batching, policy=MaxUtilization())
    sequence = scheduler.add(ask("a", 30, max_tokens=9))
    for _ in range(5):
        step(scheduler)
    scheduler._preempt(sequence)
    scheduler.pool._index.clear()  # its blocks went to other texts
    drain(scheduler)
    assert (sequence.n_output, sequence.reason) == (9, "length")


def test_t12_a_prompt_longer_than_the_pool_is_refused_at_once():
    scheduler = make(blocks=4, size=16, max_len=4096)
    assert scheduler.refusal(ask("a", 60, max_tokens=4)) is None
    assert scheduler.refusal(ask("a", 61, max_tokens=4)).code == "context_length_exceeded"


# ------------------------------------------------------------------ T13

WORK = st.lists(
    st.tuples(st.integers(1, 90), st.integers(1, 60), st.integers(0, 30), st.booleans()),
    min_size=1,
    max_size=25,
)


@pytest.mark.parametrize("batching", BATCHING.values())
@settings(max_examples=25, deadline=None)
@given(work=WORK, seqs=st.integers(1, 8), tokens=st.integers(8, 64), blocks=st.integers(10, 40))
def test_t13_a_full_reservation_never_preempts(batching, work, seqs, tokens, blocks):
    scheduler = make(
        blocks=blocks,
        seqs=seqs,
        tokens=tokens,
        max_len=150,
        policy=GuaranteedNoEvict(),
        batching=batching,
    )
    if batching in (prefill_first, static):
        preempted, sequences = drive(scheduler, work)
    else:
        preempted, sequences = run_all(scheduler, work)
    assert preempted == 0
    assert all(s.reason in ("length", "abort") for s in sequences)
    assert scheduler.pool.used == scheduler.blocks.growth_blocks == 0


def drive(scheduler, work):
    """Like `run_all`, for batching in which decodes wait for prompts."""
    preempted, added = 0, []
    pending = sorted(enumerate(work), key=lambda item: item[1][2])
    for turn in range(5000):
        while pending and pending[0][1][2] <= turn:
            index, (prompt, out, _, _) = pending.pop(0)
            request = ask(f"r{index}", [index % 3] * prompt, max_tokens=out, at=float(turn))
            if scheduler.refusal(request) is None:
                added.append(scheduler.add(request))
        scheduled, _ = step(scheduler, float(turn))
        check(scheduler, scheduled)
        preempted += len(scheduled.preempted)
        if not pending and not scheduler.sequences:
            return preempted, added
    raise AssertionError("work was lost or stuck")


@pytest.mark.parametrize("policy", [MaxUtilization, PastFuture])
@settings(max_examples=25, deadline=None)
@given(outs=st.lists(st.integers(40, 60), min_size=10, max_size=30), batching=st.sampled_from(
    list(BATCHING.values())
))  # fmt: skip
def test_t13_a_pool_that_is_too_small_by_a_fifth_ends_everything_with_few_preemptions(
    policy, outs, batching
):
    """Ten sequences of 16 + 50 tokens need 50 blocks of 16; there are 41."""
    scheduler = make(blocks=41, seqs=10, tokens=256, max_len=90, policy=policy(), batching=batching)
    sequences = [scheduler.add(ask(f"r{i}", 16, max_tokens=out)) for i, out in enumerate(outs)]
    drain(scheduler)
    assert [s.n_output for s in sequences] == outs
    assert max(s.preemptions for s in sequences) <= 6


def test_t13_past_future_learns_that_answers_are_short():
    """max_tokens is 400, answers have 20: the batch grows as soon as 30 of them have ended."""
    scheduler = make(blocks=100, size=16, seqs=32, tokens=512, policy=PastFuture(), max_len=500)
    sequences = [scheduler.add(ask(f"r{i}", 16, max_tokens=400)) for i in range(200)]
    widths, preempted = [], 0
    while scheduler.sequences:
        scheduled = scheduler.schedule(0.0)
        preempted += len(scheduled.preempted)
        widths.append(len(scheduled.plan.chunks))
        drawn = [chunk for chunk in scheduled.plan.chunks if chunk.samples]
        tokens = [2 if len(chunk.tokens) >= 16 + 19 else 7 for chunk in drawn]
        scheduler.update(scheduled.plan, StepOutput(token_ids=tokens, busy_s=0.01), 0.0)
    assert all(s.n_output == 20 for s in sequences)
    assert widths[0] == 3  # as many as fit with their longest ends
    assert max(widths) >= 30
    assert preempted <= 3


# ------------------------------------------------------------------ T14, T15


def test_t14_of_two_equal_prompts_the_second_computes_only_its_last_block():
    scheduler = make(blocks=200, tokens=4096)
    for name in "ab":
        scheduler.add(ask(name, range(1000), max_tokens=1))
    first, _ = step(scheduler)
    assert (names(first), shares(first), first.blocked_by) == (["a"], [1000], "prefix")
    second, emissions = step(scheduler)
    assert (names(second), shares(second)) == (["b"], [1000 - 62 * 16])
    assert emissions[0].sequence.cached_tokens == 62 * 16


def test_t14_a_prompt_of_one_whole_block_waits_for_an_equal_one_too():
    scheduler = make(blocks=200, tokens=4096)
    for name in "ab":
        scheduler.add(ask(name, range(20), max_tokens=1))
    assert names(step(scheduler)[0]) == ["a"]
    assert shares(step(scheduler)[0]) == [20 - 16]


def test_t14_it_waits_for_all_chunks_of_the_first_and_others_pass_it():
    scheduler = make(blocks=200, tokens=256)
    scheduler.add(ask("a", range(512), max_tokens=1))
    scheduler.add(ask("b", range(512), max_tokens=1))
    scheduler.add(ask("other", range(900, 910), max_tokens=1))
    steps = [step(scheduler)[0] for _ in range(3)]
    assert [names(one) for one in steps] == [["a"], ["a"], ["b", "other"]]
    assert shares(steps[2]) == [16, 10]


def test_t14_a_prompt_does_not_wait_for_a_small_part_of_it():
    scheduler = make(blocks=200, tokens=4096)
    scheduler.add(ask("a", [*range(16), *range(100, 200)], max_tokens=1))
    scheduler.add(ask("b", [*range(16), *range(300, 400)], max_tokens=1))
    assert names(step(scheduler)[0]) == ["a", "b"]


@pytest.mark.parametrize(("shared", "waits"), [(4, True), (3, False)])
def test_t14_a_prompt_waits_for_half_of_its_blocks(shared, waits):
    """Seven full blocks and a token."""
    scheduler = make(blocks=200, tokens=4096)
    head = list(range(16 * shared))
    scheduler.add(ask("a", [*head, *range(500, 600)], max_tokens=1))
    scheduler.add(ask("b", [*head, *range(700, 700 + 7 * 16 + 1 - len(head))], max_tokens=1))
    assert ("b" not in names(step(scheduler)[0])) is waits


def test_t14_when_the_first_leaves_the_second_is_computed():
    scheduler = make(blocks=200, tokens=64)
    for name in "ab":
        scheduler.add(ask(name, range(1000), max_tokens=1))
    assert names(step(scheduler)[0]) == ["a"]
    scheduler.abort("a")
    scheduled, _ = step(scheduler)
    assert (names(scheduled), scheduled.plan.chunks[0].start) == (["b"], 64)


def test_t15_equal_progress_gives_each_prompt_the_same_part_of_a_step():
    scheduler = make(blocks=200, tokens=96, batching=chunked_equal)
    for name, length in (("a", 300), ("b", 300), ("short", 20)):
        scheduler.add(ask(name, length, max_tokens=1))
    first, second = step(scheduler)[0], step(scheduler)[0]
    assert list(zip(names(first), shares(first), strict=True)) == [
        ("a", 32), ("b", 32), ("short", 20),
    ]  # fmt: skip
    assert list(zip(names(second), shares(second), strict=True)) == [("a", 48), ("b", 48)]


def test_t15_first_come_makes_the_short_prompt_wait():
    scheduler = make(blocks=200, tokens=96, batching=chunked)
    for name, length in (("a", 300), ("b", 300), ("short", 20)):
        scheduler.add(ask(name, length, max_tokens=1))
    assert names(step(scheduler)[0]) == ["a"]


@pytest.mark.parametrize("batching", BATCHING.values())
def test_t15_a_long_prompt_among_short_ones_ends(batching):
    scheduler = make(blocks=400, tokens=128, seqs=8, batching=batching)
    long = scheduler.add(ask("long", 120, max_tokens=2))
    for turn in range(200):
        scheduler.add(ask(f"s{turn}", 20, max_tokens=2, at=float(turn)))
        step(scheduler, now=float(turn))
        if long.reason:
            break
    assert long.reason == "length"
    assert turn < 20


def test_a_static_batch_fills_all_places_and_nothing_enters_before_its_last_end():
    scheduler = make(tokens=32, seqs=3, batching=static)
    for index, out in enumerate((2, 6, 4, 1)):
        scheduler.add(ask(f"r{index}", 20, max_tokens=out))
    seen = []
    while scheduler.sequences:
        step(scheduler)
        seen.append("r3" in {s.request_id for s in scheduler.running})
        assert len(scheduler.running) <= 3
    assert seen.count(True) == 0  # it entered alone, and its one step ended it
    assert len(seen) == 8
