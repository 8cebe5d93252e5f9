"""Limits that change while the engine serves: what may be sent, and what it does to the batch."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_engine.core.batching import BATCHING
from argosy_engine.core.capacity import POLICIES, MaxUtilization
from argosy_engine.core.live import LiveLimits, change
from tests.engine.core.test_scheduler import ask, check, make, step

NOW = LiveLimits(
    max_num_seqs=8,
    max_num_batched_tokens=1024,
    capacity_policy="MAX_UTILIZATION",
    batching="chunked",
)


@pytest.mark.parametrize(
    ("sent", "changed"),
    [
        ({"max_num_seqs": 1}, {"max_num_seqs": 1}),
        ({"max_batch_size": 3}, {"max_num_seqs": 3}),
        ({"max_num_batched_tokens": 1 << 20}, {"max_num_batched_tokens": 1 << 20}),
        ({"max_num_tokens": "auto"}, {"max_num_batched_tokens": None}),
        ({"long_prefill_token_threshold": 4}, {"long_prefill_token_threshold": 4}),
        ({"long_prefill_token_threshold": 0}, {"long_prefill_token_threshold": 0}),
        ({"capacity_policy": "PAST_FUTURE"}, {"capacity_policy": "PAST_FUTURE"}),
        ({"batching": "mixed"}, {"batching": "mixed"}),
        ({"tpot_limit_ms": 50}, {"tpot_limit_s": 0.05}),
        ({"tpot_limit_ms": None}, {"tpot_limit_s": 0.0}),
        ({"max_num_seqs": 2, "batching": "static"}, {"max_num_seqs": 2, "batching": "static"}),
    ],
)
def test_what_is_sent_changes_and_the_rest_stays(sent, changed):
    before = replace(NOW, tpot_limit_s=0.3)
    assert change(before, sent) == replace(before, **changed)


NAMES = (
    "max_num_seqs, max_num_batched_tokens, long_prefill_token_threshold, capacity_policy, "
    "batching, tpot_limit_ms"
)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([], f"send a JSON object with at least one of {NAMES}"),
        ({}, f"send a JSON object with at least one of {NAMES}"),
        ("auto", f"send a JSON object with at least one of {NAMES}"),
        ({"max_seqs": 3}, f"'max_seqs' is no limit that can change: write one of {NAMES}"),
        ({"max_num_seqs": 0}, "max_num_seqs: write a whole number from 1 to 1048576, not 0"),
        ({"max_num_seqs": True}, "max_num_seqs: write a whole number from 1 to 1048576, not True"),
        ({"max_num_seqs": 2.5}, "max_num_seqs: write a whole number from 1 to 1048576, not 2.5"),
        (
            {"max_num_seqs": "auto"},
            "max_num_seqs: write a whole number from 1 to 1048576, not 'auto'",
        ),
        (
            {"max_num_tokens": (1 << 20) + 1},
            'max_num_batched_tokens: write a whole number from 1 to 1048576 or "auto", not 1048577',
        ),
        (
            {"capacity_policy": "static"},
            "capacity_policy: write one of MAX_UTILIZATION, GUARANTEED_NO_EVICT, "
            "PAST_FUTURE, not 'static'",
        ),
        (
            {"batching": ["chunked"]},
            "batching: write one of chunked, chunked_equal, mixed, prefill_first, static, "
            "not ['chunked']",
        ),
        (
            {"long_prefill_token_threshold": -1},
            "long_prefill_token_threshold: write a whole number from 0 to 1048576, not -1",
        ),
        (
            {"tpot_limit_ms": 0},
            "tpot_limit_ms: write a number of milliseconds above 0, or null, not 0",
        ),
        (
            {"tpot_limit_ms": float("nan")},
            "tpot_limit_ms: write a number of milliseconds above 0, or null, not nan",
        ),
        (
            {"tpot_limit_ms": "x" * 1000},
            "tpot_limit_ms: write a number of milliseconds above 0, or null, not '" + "x" * 39,
        ),
        ({"max_num_seqs": 4, "batching": "none"}, "batching: write one of"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_write(sent, said):
    with pytest.raises(ValueError, match=r"write|send") as error:
        change(NOW, sent)
    assert str(error.value).startswith(said)


def test_a_bound_on_one_prompt_holds_from_the_next_step_on_and_0_ends_it():
    scheduler = make(blocks=300)
    for name in ("a", "b"):
        scheduler.add(ask(name, 1600))
    parts = []
    for bound in (0, 320, 0):
        scheduler.apply(replace(scheduler.live, long_prefill_token_threshold=bound), 2048)
        assert scheduler.live.long_prefill_token_threshold == bound
        parts.append([chunk.count for chunk in step(scheduler)[0].plan.chunks])
    assert parts == [[1024], [320, 320], [256, 768]]


def test_a_policy_of_the_same_name_keeps_what_it_learnt_and_another_is_new():
    scheduler = make(policy=MaxUtilization())
    learnt = scheduler.policy
    scheduler.apply(replace(scheduler.live, max_num_seqs=2), 2048)
    assert scheduler.policy is learnt
    scheduler.apply(replace(scheduler.live, capacity_policy="GUARANTEED_NO_EVICT"), 2048)
    assert scheduler.live.capacity_policy == "GUARANTEED_NO_EVICT"
    scheduler.apply(replace(scheduler.live, capacity_policy="MAX_UTILIZATION"), 2048)
    assert scheduler.policy is not learnt


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": st.integers(1, 8),
        "max_num_batched_tokens": st.one_of(st.integers(1, 64), st.just("auto")),
        "capacity_policy": st.sampled_from(list(POLICIES)),
        "batching": st.sampled_from(list(BATCHING)),
        "tpot_limit_ms": st.one_of(st.none(), st.floats(1, 100)),
    },
).filter(bool)
WORK = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), CHANGES), min_size=1, max_size=25)


@settings(max_examples=150, deadline=None)
@given(work=WORK, blocks=st.integers(8, 20))
def test_limits_that_change_under_load_lose_no_request_and_no_block(work, blocks):
    """A step is within the limits that held when it was scheduled, whatever came before."""
    scheduler = make(blocks=blocks, max_len=110, policy=MaxUtilization())
    added = []
    for turn in range(4000):
        if turn < len(work):
            prompt, out, sent = work[turn]
            scheduler.apply(change(scheduler.live, sent), 64)
            request = ask(f"r{turn}", prompt, max_tokens=out, at=float(turn))
            if scheduler.refusal(request) is None:
                added.append(scheduler.add(request))
        most = scheduler.step_limits().max_num_batched_tokens
        scheduled, _ = step(scheduler, float(turn))
        if scheduled.plan is not None:
            assert scheduled.plan.tokens <= most
            assert len(scheduled.plan.chunks) <= scheduler.limits.max_num_seqs
        if turn >= len(work) and not scheduler.sequences:
            break
    assert [s.n_output for s in added] == [s.sampling.max_tokens for s in added]
    assert scheduler.pool.used == scheduler.blocks.growth_blocks == 0
    check(scheduler, scheduler.schedule(0.0))
