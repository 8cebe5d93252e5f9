"""What becomes of a preempted sequence's KV: swapped or computed again, its text is the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_engine.core.batching import BATCHING
from argosy_engine.core.blocks import HostPool
from argosy_engine.core.capacity import MaxUtilization
from argosy_engine.core.preemption import Preemption
from argosy_engine.core.request import State
from argosy_engine.core.step import StepOutput
from argosy_engine.core.step_time import Terms
from tests.engine.core.test_scheduler import ask, check, make, step


def swapping(mode="swap", slots=64, **more):
    scheduler = make(policy=MaxUtilization(), **more)
    scheduler.preemption = Preemption(mode, HostPool(slots))
    return scheduler


def decoding(scheduler, prompt=40, steps=3):
    sequence = scheduler.add(ask("a", prompt, max_tokens=20))
    for _ in range(steps):
        step(scheduler)
    return sequence


def test_a_swapped_sequence_goes_on_where_it_was_with_all_of_its_blocks():
    scheduler = swapping()
    sequence = decoding(scheduler)
    blocks, computed = list(sequence.blocks), sequence.num_computed
    scheduler._preempt(sequence)
    assert (sequence.state, list(sequence.blocks), sequence.num_computed) == (
        State.PREEMPTED, [], computed,
    )  # fmt: skip
    scheduler.pool.reset()  # the prefix cache gave its blocks to others
    scheduled, _ = step(scheduler)
    assert scheduled.to_host == tuple(zip(blocks, (0, 1, 2), strict=True))
    assert scheduled.from_host == tuple(zip(sequence.blocks, (0, 1, 2), strict=True))
    assert scheduled.resumed == (sequence,)
    (chunk,) = scheduled.plan.chunks
    assert (chunk.start, chunk.count, chunk.decode) == (computed, 1, True)
    assert (sequence.swapped, scheduler.preemption.host.free) == ([], 64)
    assert step(scheduler)[0].resumed == ()


def test_only_what_the_prefix_cache_lost_comes_back_from_the_host():
    scheduler = swapping()
    sequence = decoding(scheduler)
    scheduler._preempt(sequence)
    scheduled, _ = step(scheduler)
    assert len(scheduled.to_host) == 3
    assert scheduled.from_host == ((sequence.blocks[2], 2),)


def test_a_full_host_pool_and_recompute_forget_the_kv():
    for scheduler in (swapping(slots=2), swapping("recompute"), swapping("auto", slots=2)):
        sequence = decoding(scheduler)
        scheduler._preempt(sequence)
        assert (sequence.swapped, sequence.num_computed) == ([], 0)
        assert scheduler.preemption.take_copies() == ((), (), ())


def test_a_step_that_computes_a_preempted_request_again_counts_as_prefill():
    scheduler = swapping("recompute")
    sequence = decoding(scheduler)
    scheduler._preempt(sequence)
    scheduler.pool.reset()  # the prefix cache must not hide what is computed
    length = len(sequence.tokens)
    plan = step(scheduler)[0].plan
    assert (plan.kind, plan.prefill_sequences) == ("prefill", 1)
    assert plan.prefill_tokens == length


def test_a_half_computed_prompt_is_swapped_too_and_is_not_pulled_from_a_peer():
    scheduler = swapping(tokens=16)
    sequence = scheduler.add(ask("a", 40))
    step(scheduler)
    scheduler._preempt(sequence)
    object.__setattr__(sequence.request, "candidates", ("10.0.0.1:8002",))
    scheduler.pool.reset()
    scheduled, _ = step(scheduler)
    assert scheduled.pull_jobs == ()
    assert scheduled.plan.chunks[0].start == 16
    assert len(scheduled.from_host) == 1


@pytest.mark.parametrize("end", ["abort", "stop"])
def test_one_that_ends_while_it_is_swapped_gives_its_slots_back(end):
    scheduler = swapping()
    scheduler._preempt(decoding(scheduler))
    assert scheduler.preemption.host.free == 61
    scheduler.abort("a", end)
    assert scheduler.preemption.host.free == 64


def test_those_whose_kv_could_not_be_moved_fail_with_the_step():
    scheduler = swapping(blocks=64)
    sequence = decoding(scheduler)
    other = scheduler.add(ask("b", 5))
    step(scheduler)
    scheduler._preempt(sequence)
    scheduled = scheduler.schedule(0.0)
    ended = scheduler.fail_step("no memory", (*scheduled.preempted, *scheduled.resumed))
    assert {e.sequence for e in ended} == {sequence, other}
    assert [e.reason for e in ended] == ["error", "error"]
    assert scheduler.pool.used == 0
    assert scheduler.preemption.host.free == 64


@pytest.mark.parametrize(
    ("copy_s", "token_s", "swaps"),
    [
        pytest.param(None, 0.001, True, id="no copy was measured"),
        pytest.param(0.001, None, True, id="no prompt was measured"),
        pytest.param(0.0069, 0.001, True, id="3 blocks twice for 42 tokens"),
        pytest.param(0.007, 0.001, False, id="as long"),
    ],
)
def test_auto_swaps_what_is_copied_twice_sooner_than_computed(copy_s, token_s, swaps):
    scheduler = swapping("auto")
    sequence = decoding(scheduler)
    assert sequence.num_computed == 42
    if copy_s:
        scheduler.preemption.observe_copy(2, 2 * copy_s)
    scheduler.step_time.terms = Terms(0.01, token_s, 0.0) if token_s else None
    scheduler._preempt(sequence)
    assert bool(sequence.swapped) is swaps


class Memory:
    """A pool whose blocks hold tokens, and a host pool: a step may read only its own text."""

    def __init__(self, scheduler):
        self.size = scheduler.pool.block_size
        self.blocks = {b: [None] * self.size for b in range(scheduler.pool.total + 1)}
        self.host = {}

    def run(self, scheduled):
        for block, slot in scheduled.to_host:
            self.host[slot] = list(self.blocks[block])
        for block, slot in scheduled.from_host:
            self.blocks[block] = list(self.host[slot])
        drawn = []
        for chunk in scheduled.plan.chunks if scheduled.plan else ():
            end = chunk.start + chunk.count
            for at in range(chunk.start, end):
                self.blocks[chunk.block_table[at // self.size]][at % self.size] = chunk.tokens[at]
            read = [self.blocks[b] for b in chunk.block_table]
            text = [token for block in read for token in block][:end]
            assert text == chunk.tokens[:end], "it reads the KV of another text"
            if chunk.samples:
                drawn.append(3 + hash(tuple(text)) % 999)
        return StepOutput(token_ids=drawn, busy_s=0.01)


WORK = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 50), st.integers(0, 20), st.integers(-1, 1)),
    min_size=2,
    max_size=20,
)


def texts(work, *, blocks, mode, slots, batching, tokens):
    """The texts of all requests, and how many were swapped and computed again."""
    scheduler = swapping(
        mode, slots, blocks=blocks, tokens=tokens, max_len=120, batching=BATCHING[batching]
    )
    memory, added, modes = Memory(scheduler), [], {"swap": 0, "recompute": 0}
    pending = sorted(enumerate(work), key=lambda item: item[1][2])
    for turn in range(5000):
        while pending and pending[0][1][2] <= turn:
            index, (prompt, out, _, priority) = pending.pop(0)
            text = [3 + (7 * at + index % 3) % 50 for at in range(prompt)]
            request = ask(f"r{index}", text, max_tokens=out, at=float(turn), priority=priority)
            if scheduler.refusal(request) is None:
                added.append(scheduler.add(request))
        scheduled = scheduler.schedule(float(turn))
        for sequence in scheduled.preempted:
            modes["swap" if sequence.swapped else "recompute"] += 1
        out = memory.run(scheduled)
        if scheduled.plan is not None:
            scheduler.update(scheduled.plan, out, float(turn))
        check(scheduler, scheduled)
        if not pending and not scheduler.sequences:
            break
    assert scheduler.pool.used == scheduler.blocks.growth_blocks == 0
    assert scheduler.preemption.host.free == slots
    return {s.request_id: s.tokens for s in added}, modes


@settings(max_examples=100, deadline=None)
@given(
    work=WORK,
    blocks=st.integers(8, 16),
    mode=st.sampled_from(["swap", "auto", "recompute"]),
    slots=st.sampled_from([0, 5, 100]),
    batching=st.sampled_from(list(BATCHING)),
    tokens=st.integers(64, 128),
)
def test_preempted_texts_are_those_of_a_pool_with_room(work, blocks, mode, slots, batching, tokens):
    options = {"batching": batching, "tokens": tokens}
    crowded, modes = texts(work, blocks=blocks, mode=mode, slots=slots, **options)
    roomy, never = texts(work, blocks=400, mode=mode, slots=slots, **options)
    assert never == {"swap": 0, "recompute": 0}
    assert {name: roomy[name] for name in crowded} == crowded
    if mode == "recompute" or not slots:
        assert modes["swap"] == 0
