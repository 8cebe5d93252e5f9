"""When a decode engine computes a short prompt itself."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.core.handover.messages import PullDone, PullReady
from argosy_engine.core.short_prompts import Costs, ShortPrompts, costs_less_here, keeps_tpot
from argosy_engine.core.step import StepOutput
from tests.engine.core.test_scheduler import ask, make

SECONDS = st.floats(0, 10)
COSTS = st.builds(Costs, SECONDS, st.floats(0, 0.01), SECONDS)
LIMIT_S = 0.05


def measured(*, step_s=0.01, token_s=0.0001, handover_s=0.04, tokens=100, handed_over=40):
    """An engine that has seen steps, steps with prompts, and handovers of prompts of a length."""
    short = ShortPrompts()
    for _ in range(4):
        short.observe_step(prompt_tokens=0, sequences=4, seconds=step_s)
        short.observe_step(prompt_tokens=tokens, sequences=4, seconds=step_s + token_s * tokens)
        short.observe_handover(handed_over, handover_s)
    return short


def computes(short, tokens, *, others=0, streams=4, limit_s=LIMIT_S):
    return short.computes(tokens, others=others, streams=streams, limit_s=limit_s)


@given(COSTS, st.integers(1, 4096), st.integers(0, 512))
def test_a_shorter_prompt_and_fewer_streams_never_cost_more_here(costs, tokens, streams):
    if costs_less_here(tokens + 1, streams, costs) or costs_less_here(tokens, streams + 1, costs):
        assert costs_less_here(tokens, streams, costs)


@given(COSTS, st.integers(0, 4096), st.floats(0.001, 1))
def test_a_step_that_keeps_the_limit_keeps_it_with_fewer_tokens_and_is_within_it(
    costs, tokens, limit_s
):
    if keeps_tpot(tokens + 1, limit_s, costs):
        assert keeps_tpot(tokens, limit_s, costs)
    if keeps_tpot(tokens, limit_s, costs):
        assert costs.step_s + tokens * costs.token_s <= 0.8 * limit_s


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 64), st.floats(0, 1)), max_size=60),
    st.lists(st.tuples(st.integers(1, 300), st.floats(0, 1)), max_size=60),
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300), st.integers(0, 64)), max_size=60),
)
def test_whatever_was_measured_what_is_computed_here_fits_into_a_step(steps, handovers, asked):
    short = ShortPrompts()
    for tokens, sequences, seconds in steps:
        short.observe_step(prompt_tokens=tokens, sequences=sequences, seconds=seconds)
    for tokens, seconds in handovers:
        short.observe_handover(tokens, seconds)
    for tokens, others, streams in asked:
        if not computes(short, tokens, others=others, streams=streams):
            continue
        costs = short.costs(tokens)
        if costs is None:
            assert (others, tokens <= 64) == (0, True)
        else:
            assert keeps_tpot(tokens + others, LIMIT_S, costs)


def test_what_costs_less_is_computed_here():
    assert computes(measured(), 50)  # 10 ms, and 5 times 5 ms
    assert not computes(measured(handover_s=0.034), 50)


def test_without_a_limit_from_the_gateway_every_prompt_is_handed_over():
    assert not computes(measured(), 50, limit_s=0.0)


def test_prompts_that_are_computed_here_together_keep_the_limit_of_the_strictest():
    short = measured(handover_s=1.0)
    assert computes(short, 100, others=200)  # 10 ms and 300 tokens of 0.1 ms: 0.8 of the limit
    assert not computes(short, 101, others=200)


def test_a_length_that_was_never_measured_is_handed_over():
    short = measured(handover_s=9.0, tokens=20)
    assert computes(short, 40)
    assert not computes(short, 41)  # twice as long as any before
    assert not computes(measured(handover_s=9.0, handed_over=30), 64)  # no handover like it
    assert computes(measured(handover_s=9.0, handed_over=32), 64)


def test_until_enough_is_known_one_short_prompt_of_32_is_tried():
    short = ShortPrompts()
    assert not any(computes(short, 64) for _ in range(32))  # the streams' step is not known
    short.observe_step(prompt_tokens=0, sequences=1, seconds=0.04)
    assert [computes(short, 64) for _ in range(64)] == [*[False] * 31, True] * 2
    assert not any(computes(short, 65) for _ in range(64))
    assert not any(computes(short, 64, others=1) for _ in range(64))  # one at a time
    short.observe_step(prompt_tokens=0, sequences=1, seconds=0.08)  # now over 0.8 of the limit
    assert not any(computes(short, 64) for _ in range(64))


# In the scheduler.


def decode_engine(*, streams=2, **more):
    """A scheduler whose streams take steps of 10 ms, and which has measured that 100 tokens more
    take 1 ms more."""
    scheduler = make(blocks=600, **more)
    scheduler.short_prompts = measured(token_s=0.00001, handover_s=0.03)
    for number in range(streams):
        scheduler.add(ask(f"s{number}", 5, max_tokens=400, tpot_limit_s=LIMIT_S))
    run(scheduler)
    return scheduler


def run(scheduler, seconds=0.01, now=0.0):
    scheduled = scheduler.schedule(now)
    drawn = [7 for chunk in scheduled.plan.chunks if chunk.samples]
    scheduler.update(scheduled.plan, StepOutput(token_ids=drawn, busy_s=seconds), now)
    return scheduled


def far(name="far", prompt=90, **more):
    more = {"tpot_limit_s": LIMIT_S, "candidates": ("10.0.0.1:8002",), **more}
    return ask(name, prompt, **more)


def test_a_short_prompt_enters_the_batch_at_once_and_asks_no_peer():
    scheduler = decode_engine()
    scheduler.add(far())
    scheduled = run(scheduler)
    assert scheduled.pull_jobs == ()
    assert [chunk.count for chunk in scheduled.plan.chunks] == [1, 1, 90]
    assert scheduler.sequences["far"].handover_saved


def test_what_is_in_the_prefix_cache_makes_a_prompt_short():
    long = range(100, 1124)
    assert len(asked(decode_engine(), far(prompt=long))) == 1
    scheduler = decode_engine()
    scheduler.add(ask("before", long, max_tokens=1))
    for _ in range(2):
        run(scheduler, 0.02)
    assert asked(scheduler, far(prompt=[*long, *range(50)])) == ()
    assert scheduler.sequences["far"].cached_tokens == 1024


def asked(scheduler, request):
    scheduler.add(request)
    return run(scheduler).pull_jobs


@pytest.mark.parametrize(
    "more",
    [{"tpot_limit_s": 0.0}, {"tpot_limit_s": 0.01}],
    ids=["no limit", "a limit that the streams' steps reach"],
)
def test_a_short_prompt_is_handed_over_with(more):
    assert len(asked(decode_engine(), far(**more))) == 1


def test_a_short_prompt_is_handed_over_while_the_batch_has_no_place():
    assert len(asked(decode_engine(seqs=2), far())) == 1


def test_a_short_prompt_is_handed_over_if_the_step_has_no_room_for_all_of_it():
    assert len(asked(decode_engine(tokens=91), far())) == 1
    assert asked(decode_engine(tokens=92), far()) == ()


def test_a_fleet_that_recomputes_nothing_hands_short_prompts_over():
    scheduler = decode_engine()
    scheduler.limits = replace(scheduler.limits, on_pull_failure="fail")
    assert len(asked(scheduler, far())) == 1


def test_a_handover_is_timed_from_the_request_to_the_last_byte():
    scheduler = make(blocks=64)
    scheduler.add(far("far", prompt=40))
    scheduler.schedule(1.0)
    took = []
    scheduler.short_prompts.observe_handover = lambda *seen: took.append(seen)
    scheduler.pulls._took = scheduler.short_prompts.observe_handover
    ready = PullReady(request_id="far", attempt=1, first_token=9, prefill_pod="p", lasts_s=59.0)
    scheduler.pull_ready(ready, 1.5)
    scheduler.pull_done(
        PullDone(request_id="far", attempt=1, bytes_moved=0, seconds=0.1, exposed_s=0.25)
    )
    assert took == [(40, 0.75)]


def test_a_step_of_the_scheduler_is_measured():
    scheduler = decode_engine()
    scheduler.short_prompts = ShortPrompts()
    run(scheduler, 0.01)
    for number in range(4):
        scheduler.add(ask(f"p{number}", 10, max_tokens=1))
        run(scheduler, 0.03)
    assert scheduler.short_prompts.costs(10) == Costs(0.01, pytest.approx(0.002), 0.0)
