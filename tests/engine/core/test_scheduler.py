"""The scheduler's tables (peer behaviours) and its invariants under random work."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_engine.core.batching import chunked
from argosy_engine.core.blocks import BlockPool
from argosy_engine.core.capacity import (
    GuaranteedNoEvict,
    MaxUtilization,
    PastFuture,
)
from argosy_engine.core.handover.messages import PullDone, PullFailed, PullReady
from argosy_engine.core.limits import Limits, Refusal
from argosy_engine.core.request import NewRequest, to_table
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.step import StepOutput, flatten


def make(
    *,
    blocks=64,
    size=16,
    seqs=8,
    tokens=1024,
    policy=None,
    threshold=0,
    max_len=4096,
    batching=chunked,
):
    return Scheduler(
        pool=BlockPool(num_blocks=blocks, block_size=size),
        limits=Limits(
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            max_queue=100,
            long_prefill_threshold=threshold,
        ),
        policy=policy or GuaranteedNoEvict(),
        eos=frozenset({2}),
        max_model_len=max_len,
        batching=batching,
    )


def ask(name, prompt, max_tokens=4, at=0.0, **more):
    ids = (
        list(prompt)
        if not isinstance(prompt, int)
        else [hash((name, i)) % 9999 + 3 for i in range(prompt)]
    )
    sampling = SamplingParams(max_tokens=max_tokens, **more.pop("sampling", {}))
    return NewRequest(request_id=name, token_ids=ids, sampling=sampling, arrival_s=at, **more)


def step(scheduler, now=0.0, token=7):
    scheduled = scheduler.schedule(now)
    emissions = []
    if scheduled.plan is not None:
        out = StepOutput(
            token_ids=[token for chunk in scheduled.plan.chunks if chunk.samples], busy_s=0.01
        )
        emissions = scheduler.update(scheduled.plan, out, now)
    return scheduled, emissions


def shares(scheduled):
    return [chunk.count for chunk in scheduled.plan.chunks]


def test_a_failed_step_poisons_no_prefix():
    scheduler = make()
    scheduler.add(ask("a", 64))
    scheduler.schedule(0.0)
    assert [e.reason for e in scheduler.fail_step("boom")] == ["error"]
    assert scheduler.pool.free == scheduler.pool.total
    assert scheduler.pool.cached == 0


def test_ends_are_found_in_order_of_min_tokens_eos_stop_ids_and_length():
    cases = [
        ({"max_tokens": 3}, 7, 3, "length"),
        ({"max_tokens": 3}, 2, 1, "stop"),
        ({"max_tokens": 3, "sampling": {"ignore_eos": True}}, 2, 3, "length"),
        ({"max_tokens": 5, "sampling": {"min_tokens": 3}}, 2, 3, "stop"),
        ({"max_tokens": 5, "sampling": {"stop_token_ids": (7,)}}, 7, 1, "stop"),
    ]
    for options, token, produced, reason in cases:
        scheduler = make()
        sequence = scheduler.add(ask("a", 5, **options))
        while scheduler.sequences:
            step(scheduler, token=token)
        assert (sequence.n_output, sequence.reason) == (produced, reason)


def test_a_pulled_request_decodes_without_prefill_and_a_failed_pull_falls_back():
    scheduler = make()
    for name in ("good", "bad"):
        scheduler.add(ask(name, 40, candidates=("10.0.0.1:8002",)))
    scheduled, _ = step(scheduler)
    assert scheduled.plan is None
    assert [len(job.block_ids) for job in scheduled.pull_jobs] == [3, 3]
    for name in ("good", "bad"):
        ready = PullReady(request_id=name, attempt=1, first_token=9, prefill_pod="p", lasts_s=59.0)
        assert [e.token_id for e in scheduler.pull_ready(ready, 1.0)] == [9]
    scheduler.pull_done(
        PullDone(request_id="good", attempt=1, bytes_moved=0, seconds=0.1, exposed_s=0.1)
    )
    scheduler.pull_failed(PullFailed(request_id="bad", attempt=1, cause="broken", message=""))
    scheduled, _ = step(scheduler)
    assert [(chunk.request_id, chunk.count) for chunk in scheduled.plan.chunks] == [
        ("good", 1),
        ("bad", 41),
    ]


@pytest.mark.parametrize("prompt", [47, 48, 49])
def test_a_pull_that_fails_after_its_first_token_computes_no_token_outside_its_blocks(prompt):
    scheduler = make()
    sequence = scheduler.add(ask("a", prompt, candidates=("10.0.0.1:8002",)))
    step(scheduler)
    scheduler.pull_ready(
        PullReady(request_id="a", attempt=1, first_token=9, prefill_pod="p", lasts_s=59.0), 1.0
    )
    scheduler.pull_failed(PullFailed(request_id="a", attempt=1, cause="broken", message=""))
    while scheduler.sequences:
        plan = scheduler.schedule(2.0).plan
        flatten(plan)
        samples = sum(chunk.samples for chunk in plan.chunks)
        scheduler.update(plan, StepOutput(token_ids=[7] * samples, busy_s=0.01), 2.0)
    assert sequence.tokens[prompt:] == [9, 7, 7, 7]
    assert scheduler.pool.used == scheduler.blocks.growth_blocks == 0


@pytest.mark.parametrize(("verified", "computed"), [(0, 41), (1, 25), (2, 9), (3, 1)])
def test_t33_the_prompt_of_a_broken_pull_is_computed_from_behind_its_verified_blocks(
    verified, computed
):
    scheduler = make()
    scheduler.add(ask("a", 40, candidates=("10.0.0.1:8002",)))
    step(scheduler)
    scheduler.pull_ready(
        PullReady(request_id="a", attempt=1, first_token=9, prefill_pod="p", lasts_s=59.0), 1.0
    )
    broken = PullFailed(request_id="a", attempt=1, cause="broken", message="", verified=verified)
    scheduler.pull_failed(broken)
    (chunk,) = step(scheduler)[0].plan.chunks
    assert (chunk.start, chunk.count) == (41 - computed, computed)


def test_an_aborted_pull_keeps_its_blocks_until_the_service_lets_go():
    scheduler = make()
    scheduler.add(ask("a", 40, candidates=("10.0.0.1:8002",)))
    step(scheduler)
    scheduler.abort("a")
    scheduled, _ = step(scheduler)
    assert scheduled.cancels == (("a", 1),)
    assert scheduler.pool.used == 3
    scheduler.pull_failed(PullFailed(request_id="a", attempt=1, cause="cancelled", message=""))
    assert scheduler.pool.used == 0


def lost_pull(scheduler, *, first_token, abort=False):
    """A pull that ran out of time at 60 s and was never confirmed as stopped, by 65 s."""
    scheduler.add(ask("a", 40, max_tokens=2, candidates=("10.0.0.1:8002",)))
    step(scheduler)
    if first_token:
        ready = PullReady(request_id="a", attempt=1, first_token=9, prefill_pod="p", lasts_s=59.0)
        scheduler.pull_ready(ready, 1.0)
    if abort:
        scheduler.abort("a")
    assert step(scheduler, now=61.0)[0].cancels == (("a", 1),)
    assert step(scheduler, now=65.9)[0].abandoned == ()


@pytest.mark.parametrize("first_token", [True, False])
def test_a_pull_that_is_never_confirmed_as_stopped_does_not_hold_its_client(first_token):
    scheduler = make()
    lost_pull(scheduler, first_token=first_token)
    scheduled, emissions = step(scheduler, now=66.0)
    assert scheduled.abandoned == ("a",)
    assert scheduled.pull_jobs == ()
    assert shares(scheduled) == [40 + first_token]
    sequence = emissions[0].sequence
    while scheduler.sequences:
        step(scheduler, now=66.0)
    assert (sequence.n_output, sequence.reason) == (2, "length")


def test_blocks_of_a_lost_pull_are_used_again_only_after_the_service_let_go_of_them():
    scheduler = make(blocks=8)
    lost_pull(scheduler, first_token=False, abort=True)
    step(scheduler, now=66.0)
    assert scheduler.sequences == {}
    assert (scheduler.pool.used, scheduler.blocks.growth_blocks) == (3, 0)
    late = PullFailed(request_id="a", attempt=1, cause="cancelled", message="")
    scheduler.pull_failed(late)
    scheduler.pull_failed(late)  # a doubled event frees nothing twice
    assert scheduler.pool.used == 0


def test_blocks_of_a_lost_pull_are_no_room_for_a_peak():
    scheduler = make(blocks=8, policy=PastFuture())
    lost_pull(scheduler, first_token=False, abort=True)
    scheduler.add(ask("b", 16, max_tokens=16))
    step(scheduler, now=66.0)
    scheduler.add(ask("c", 32, max_tokens=32))
    assert step(scheduler, now=66.0)[0].blocked_by == "kv"
    scheduler.pull_failed(PullFailed(request_id="a", attempt=1, cause="cancelled", message=""))
    assert step(scheduler, now=66.0)[0].blocked_by is None


def test_a_leased_prompt_blocks_admission_by_lease_until_it_is_freed():
    scheduler = make(blocks=4)
    scheduler.add(ask("p#1", 64, lease_s=30.0))
    _, emissions = step(scheduler)
    assert emissions[0].leased
    assert scheduler.pool.used == 4
    scheduler.add(ask("q#1", 64, lease_s=30.0))
    assert step(scheduler)[0].blocked_by == "lease"
    scheduler.free_lease("p#1")
    assert step(scheduler)[0].blocked_by is None


def test_the_output_of_a_leased_prompt_is_learnt_once():
    policy = PastFuture()
    scheduler = make(policy=policy)
    scheduler.add(ask("p#1", 64, lease_s=30.0))
    step(scheduler)
    scheduler.free_lease("p#1")
    assert list(policy._newest) == [1]


def test_a_prompt_for_which_the_leased_blocks_are_too_few_waits_for_memory():
    scheduler = make(blocks=8)
    scheduler.add(ask("a", 60, max_tokens=4))
    scheduler.add(ask("p#1", 32, lease_s=30.0))
    step(scheduler)
    scheduler.add(ask("q#1", 80, lease_s=30.0))
    assert step(scheduler)[0].blocked_by == "kv"
    scheduler.free_lease("p#1")
    assert step(scheduler)[0].blocked_by == "kv"


def test_a_flat_batch_addresses_each_token_in_its_block():
    scheduler = make(size=4)
    scheduler.add(ask("a", range(10, 16)))
    flat = flatten(scheduler.schedule(0.0).plan)
    assert flat.token_ids == [10, 11, 12, 13, 14, 15]
    assert flat.slot_mapping == [4, 5, 6, 7, 8, 9]
    assert (flat.cu_q, flat.kv_lens, flat.block_tables) == ([0, 6], [6], [to_table([1, 2])])
    assert (flat.sample_rows, flat.sample_positions) == ([5], [6])


def test_the_tables_of_a_flat_batch_lie_one_after_another():
    scheduler = make(size=4)
    for name, tokens in (("a", 6), ("b", 1), ("c", 9)):
        scheduler.add(ask(name, tokens))
    flat = flatten(scheduler.schedule(0.0).plan)
    joined = memoryview(flat.joined_tables()).cast("i").tolist()
    assert flat.table_starts == [0, 2, 3, 6]
    assert joined == [1, 2, 3, 4, 5, 6]


WORK = st.lists(
    st.tuples(st.integers(1, 90), st.integers(1, 60), st.integers(0, 30), st.booleans()),
    min_size=1,
    max_size=25,
)


def check(scheduler, scheduled):
    pool = scheduler.pool
    held = [b for s in scheduler.sequences.values() for b in s.blocks]
    assert sum(pool.refs(b) for b in set(held)) == len(held)
    assert pool.free + pool.used + pool.cached == pool.total
    assert scheduler.blocks.growth_blocks >= 0
    if scheduled.plan is not None:
        assert scheduled.plan.tokens <= scheduler.limits.max_num_batched_tokens
        assert len(scheduled.plan.chunks) <= scheduler.limits.max_num_seqs


def run_all(scheduler, work):
    """Drive random work to its end, aborting some of it; returns (preemptions, all sequences)."""
    everything, preempted, now = [], 0, 0.0
    pending = sorted(enumerate(work), key=lambda item: item[1][2])
    decoded_at = {}
    for turn in range(5000):
        while pending and pending[0][1][2] <= turn:
            index, (prompt, out, _, leaves) = pending.pop(0)
            request = ask(f"r{index}", [index % 3] * prompt, max_tokens=out, at=now)
            if scheduler.refusal(request) is None:
                everything.append((scheduler.add(request), leaves))
        for sequence, leaves in everything:
            if leaves and sequence.n_output == 3:
                scheduler.abort(sequence.request_id)
        decoding = {s.request_id for s in scheduler.running if s.decoding}
        scheduled, _ = step(scheduler, now)
        ran = {chunk.request_id for chunk in scheduled.plan.chunks} if scheduled.plan else set()
        for name in decoding & set(scheduler.sequences):
            decoded_at[name] = 0 if name in ran else decoded_at.get(name, 0) + 1
            assert decoded_at[name] <= 25, "a decode starved"
        preempted += len(scheduled.preempted)
        check(scheduler, scheduled)
        now += 0.03
        if not pending and not scheduler.sequences:
            return preempted, [s for s, _ in everything]
    raise AssertionError("work was lost or stuck")


@settings(max_examples=60, deadline=None)
@given(work=WORK, seqs=st.integers(1, 6), tokens=st.integers(8, 64), blocks=st.integers(10, 40))
def test_without_eviction_nothing_is_preempted_lost_or_starved(work, seqs, tokens, blocks):
    scheduler = make(blocks=blocks, seqs=seqs, tokens=tokens, max_len=150)
    preempted, sequences = run_all(scheduler, work)
    assert preempted == 0
    assert all(s.reason in ("length", "abort") for s in sequences)
    assert scheduler.pool.used == scheduler.blocks.growth_blocks == 0


@settings(max_examples=60, deadline=None)
@given(work=WORK, seqs=st.integers(2, 6), tokens=st.integers(8, 64), blocks=st.integers(10, 20))
def test_full_utilization_finishes_everything_despite_preemption(work, seqs, tokens, blocks):
    scheduler = make(blocks=blocks, seqs=seqs, tokens=tokens, max_len=150, policy=MaxUtilization())
    _, sequences = run_all(scheduler, work)
    assert all(s.reason in ("length", "abort") for s in sequences)
    assert all(s.n_output == s.sampling.max_tokens for s in sequences if s.reason == "length")
    assert scheduler.pool.used == 0


PULL_ENDS = st.lists(
    st.tuples(
        st.integers(1, 70),  # prompt
        st.integers(1, 20),  # max_tokens
        st.sampled_from(["done", "failed", "lost"]),
        st.booleans(),  # the first token came before the end
        st.integers(0, 6),  # turns until the end
        st.booleans(),  # the client leaves meanwhile
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(pulls=PULL_ENDS, utilization=st.booleans(), tokens=st.integers(8, 64))
def test_pulls_that_end_in_any_way_keep_chunks_in_their_blocks_and_lose_nobody(
    pulls, utilization, tokens
):
    policy = MaxUtilization() if utilization else GuaranteedNoEvict()
    scheduler = make(blocks=14, size=8, seqs=4, tokens=tokens, max_len=100, policy=policy)
    everything = [
        scheduler.add(ask(f"r{i}", [i % 2] * prompt, max_tokens=out, candidates=("p:1",)))
        for i, (prompt, out, *_) in enumerate(pulls)
    ]
    due = {}  # turn → ends of pulls; a lost one is confirmed long after its request went on
    for turn in range(3000):
        for name, attempt, end, ready, leaves in due.pop(turn, []):
            key = {"request_id": name, "attempt": attempt}
            if ready and end != "late":
                scheduler.pull_ready(
                    PullReady(**key, first_token=9, prefill_pod="p", lasts_s=59.0), turn
                )
            if leaves:
                scheduler.abort(name)
            if end == "done":
                scheduler.pull_done(PullDone(**key, bytes_moved=0, seconds=0.1, exposed_s=0.1))
            elif end == "lost":
                due.setdefault(turn + 90, []).append((name, attempt, "late", False, False))
            else:
                scheduler.pull_failed(PullFailed(**key, cause="broken", message=""))
        scheduled, _ = step(scheduler, float(turn))
        if scheduled.plan is not None:
            flatten(scheduled.plan)
        assert scheduler.blocks.growth_blocks >= 0
        for job in scheduled.pull_jobs:
            _, _, end, ready, wait, leaves = pulls[int(job.request_id[1:])]
            due.setdefault(turn + 1 + wait, []).append(
                (job.request_id, job.attempt, end, ready, leaves)
            )
        if not scheduler.sequences and not due:
            break
    assert [s.n_output for s in everything if s.reason == "length"] == [
        s.sampling.max_tokens for s in everything if s.reason == "length"
    ]
    assert all(s.reason in ("length", "abort") for s in everything)
    assert scheduler.pool.used == scheduler.blocks.growth_blocks == 0


def test_the_queue_takes_as_many_as_it_may_and_says_how_many_wait():
    scheduler = make()
    scheduler.limits = replace(scheduler.limits, max_queue=2)
    for name in ("a", "b"):
        assert scheduler.refusal(ask(name, 4)) is None
        scheduler.add(ask(name, 4))
    refused = scheduler.refusal(ask("c", 4))
    assert refused == Refusal("queue_full", "2 requests are waiting; retry later")
    refused = scheduler.refusal(ask("a", 4))
    assert refused == Refusal("duplicate", "request a is here already")


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 40))
def test_a_step_of_decodes_is_laid_out_as_any_other(prompts, steps):
    scheduler = make(blocks=200)
    for index, prompt in enumerate(prompts):
        scheduler.add(ask(f"r{index}", prompt, max_tokens=50))
    for _ in range(steps):
        plan = step(scheduler)[0].plan
    plan = scheduler.schedule(0.0).plan
    assert plan.kind == "decode"
    assert flatten(plan) == flatten(replace(plan, prefill_sequences=1))


def test_what_was_preempted_decodes_in_its_new_blocks():
    scheduler = make(blocks=6, size=4, policy=MaxUtilization())
    for name in ("first", "second"):
        scheduler.add(ask(name, 6, max_tokens=12))
    preempted = 0
    while scheduler.sequences:
        scheduled = scheduler.schedule(0.0)
        preempted += len(scheduled.preempted)
        for chunk in scheduled.plan.chunks:
            sequence = scheduler.sequences[chunk.request_id]
            assert chunk.block_table is sequence.blocks
            assert chunk.start == sequence.num_computed
        tokens = [7 for chunk in scheduled.plan.chunks if chunk.samples]
        scheduler.update(scheduled.plan, StepOutput(token_ids=tokens, busy_s=0.01), 0.0)
    assert preempted
