"""The chunked policy's choices, and that the scheduler works with policies of another kind."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_engine.core.batching import chunked, mixed
from argosy_engine.core.capacity import GuaranteedNoEvict, MaxUtilization
from argosy_engine.core.limits import Limits
from argosy_engine.core.request import NewRequest, Sequence
from argosy_engine.core.sampling import SamplingParams
from tests.engine.core.test_scheduler import check, make, step


def sequence(name, prompt, *, computed, last_step=0, blocks=99):
    request = NewRequest(
        request_id=name,
        token_ids=[7] * prompt,
        sampling=SamplingParams(max_tokens=9),
        arrival_s=0.0,
    )
    tokens = [7] * (prompt + (computed == prompt))
    return Sequence(
        request=request,
        tokens=tokens,
        arrival_index=0,
        num_computed=computed,
        last_step=last_step,
        blocks=list(range(blocks)),
    )


def decode(name, last_step=0):
    return sequence(name, 5, computed=5, last_step=last_step)


CASES = [
    # (running, waiting, max_num_seqs, max_num_batched_tokens) → (name, tokens)
    (["d1", "p50", "d2"], [], 4, 20, [("d1", 1), ("d2", 1), ("p50", 16)]),
    (["p6"], ["p9", "p30"], 4, 20, [("p6", 6), ("p9", 9), ("p30", 5)]),
    (["d1", "d2", "d3"], ["p9"], 2, 20, [("d1", 1), ("d2", 1)]),
    (["d3", "d1", "d2"], [], 4, 2, [("d1", 1), ("d2", 1)]),
    ([], [], 4, 20, []),
]


@pytest.mark.parametrize(("running", "waiting", "slots", "tokens", "expected"), CASES)
def test_chunked_takes_decodes_then_prompts_then_new_ones(
    running, waiting, slots, tokens, expected
):
    def made(name):
        number = int(name[1:])
        return decode(name, number) if name[0] == "d" else sequence(name, number, computed=0)

    queue = [made(name) for name in waiting]
    limits = Limits(max_num_seqs=slots, max_num_batched_tokens=tokens, max_queue=9)

    def admit(budget):
        return queue.pop(0) if queue and budget > 0 and len(running) < slots else None

    batch = chunked([made(name) for name in running], admit, limits, 8)
    assert [(s.request_id, count) for s, count in batch] == expected


def test_whole_prompts_under_way_take_no_more_places_than_there_are():
    """More are under way than there are places when an order has lowered `max_num_seqs`."""
    limits = Limits(max_num_seqs=2, max_num_batched_tokens=64, max_queue=9)
    running = [decode("d"), *(sequence(name, 9, computed=0) for name in ("p", "q"))]
    batch = mixed(running, lambda budget, *, whole=False: None, limits, 8)
    assert [(s.request_id, count) for s, count in batch] == [("d", 1), ("p", 9)]


def prefill_first(running, admit, limits, block_size):
    """Prompts before decodes, which run only in steps without a prompt."""
    decodes = [s for s in running if s.decoding]
    batch, budget = [], limits.max_num_batched_tokens

    def take(one):
        count = min(one.remaining, budget, len(one.blocks) * block_size - one.num_computed)
        batch.append((one, count))
        return budget - count

    for one in [s for s in running if not s.decoding]:
        if budget > 0:
            budget = take(one)
    while (admitted := admit(budget)) is not None:
        budget = take(admitted)
    return batch or [(s, 1) for s in decodes[: limits.max_num_batched_tokens]]


def static(running, admit, limits, block_size):
    """Nothing enters before all of the batch has ended."""
    started = list(running)
    return chunked(running, lambda budget: None if started else admit(budget), limits, block_size)


WORK = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 20)), min_size=1, max_size=20)


@pytest.mark.parametrize("policy", [prefill_first, static])
@settings(max_examples=40, deadline=None)
@given(work=WORK, tokens=st.integers(8, 64), blocks=st.integers(10, 40), full=st.booleans())
def test_the_scheduler_finishes_everything_under_another_policy(policy, work, tokens, blocks, full):
    capacity = MaxUtilization() if full else GuaranteedNoEvict()
    scheduler = make(blocks=blocks, tokens=tokens, max_len=150, policy=capacity, batching=policy)
    added = [
        scheduler.add(
            NewRequest(
                request_id=f"r{index}",
                token_ids=[index % 3] * prompt,
                sampling=SamplingParams(max_tokens=out),
                arrival_s=float(index),
            )
        )
        for index, (prompt, out) in enumerate(work)
    ]
    for turn in range(3000):
        scheduled, _ = step(scheduler, float(turn))
        check(scheduler, scheduled)
        if not scheduler.sequences:
            break
    assert [s.reason for s in added] == ["length"] * len(added)
    assert scheduler.pool.used == scheduler.blocks.growth_blocks == 0
