"""What a step costs on a machine, as fitted, and how many prompt tokens it may have then."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from argosy_engine.core.batching import mixed
from argosy_engine.core.live import auto_limits
from argosy_engine.core.step import StepOutput
from argosy_engine.core.step_time import FIRST_TOKENS, StepTime, Terms, prompt_tokens, shorter_step
from tests.engine.core.test_scheduler import ask, make

CPU = Terms(0.02, 0.001, 0.002)
"""1,000 prompt tokens a second, and 20 ms for the weights."""


def seen(terms, steps, stretch=lambda index: 1.0):
    """A step time that saw steps of these (prompt tokens, decodes) on such a machine."""
    step_time = StepTime()
    for index, (tokens, decodes) in enumerate(steps):
        seconds = terms.step_s(tokens, decodes) * stretch(index)
        step_time.observe(prompt_tokens=tokens, decodes=decodes, seconds=seconds)
    return step_time.terms


MIXED = [(0, 1), (64, 1), (0, 4), (200, 2), (0, 8), (130, 5), (512, 0), (0, 3)] * 4


@given(fixed=st.floats(0.001, 0.1), token=st.floats(1e-5, 1e-2), sequence=st.floats(1e-5, 1e-2))
def test_the_terms_of_a_machine_are_found(fixed, token, sequence):
    terms = seen(Terms(fixed, token, sequence), MIXED)
    assert terms == pytest.approx((fixed, token, sequence), rel=1e-3)


def test_steps_that_something_else_stopped_do_not_count():
    terms = seen(CPU, MIXED, stretch=lambda index: 30.0 if index % 8 == 5 else 1.0)
    assert terms == pytest.approx(CPU, rel=0.25)


def test_a_machine_that_became_slower_is_learnt():
    step_time = StepTime()
    for factor in (1.0, 3.0):
        for tokens, decodes in MIXED * 16:
            seconds = factor * CPU.step_s(tokens, decodes)
            step_time.observe(prompt_tokens=tokens, decodes=decodes, seconds=seconds)
    assert step_time.terms.token_s == pytest.approx(3 * CPU.token_s, rel=0.05)


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 60), st.floats(0, 3)), max_size=60))
def test_no_steps_break_it(steps):
    step_time = StepTime()
    for tokens, decodes, seconds in steps:
        step_time.observe(prompt_tokens=tokens, decodes=decodes, seconds=seconds)
    if step_time.terms is not None:
        assert min(step_time.terms) >= 0
        assert step_time.terms.token_s > 0


@pytest.mark.parametrize(
    ("terms", "decodes", "limit_s", "tokens"),
    [
        pytest.param(None, 4, 0.1, FIRST_TOKENS, id="nothing is known"),
        pytest.param(CPU, 10, 0.1, 40, id="80 ms, of which 20 + 20 are there without prompts"),
        pytest.param(CPU, 0, 0.1, FIRST_TOKENS, id="nobody waits for a token"),
        pytest.param(CPU, 10, 0.0, FIRST_TOKENS, id="no limit: at least 256"),
        pytest.param(CPU._replace(fixed_s=0.05), 10, 0.0, 450, id="no limit: the saturation"),
        pytest.param(CPU, 40, 0.1, 32, id="the decodes take it all: a block"),
        pytest.param(CPU, 10, 9.0, 2048, id="never more than the most"),
    ],
)
def test_a_step_gets_the_prompt_tokens_that_it_affords(terms, decodes, limit_s, tokens):
    assert prompt_tokens(terms, decodes=decodes, limit_s=limit_s, least=32, most=2048) == tokens


@pytest.mark.parametrize(("fixed", "tokens"), [(0.01, 90), (0.0101, 91), (0.0, 1)])
def test_at_the_saturation_length_a_step_has_nine_tenths_of_the_highest_rate(fixed, tokens):
    terms = Terms(fixed, 0.001, 0.0)
    assert terms.saturation_tokens == tokens
    assert tokens / terms.step_s(tokens, 0) >= 0.9 / terms.token_s


@given(limit=st.floats(0.03, 1), decodes=st.integers(1, 60))
def test_a_step_of_more_than_a_block_keeps_most_of_the_limit(limit, decodes):
    tokens = prompt_tokens(CPU, decodes=decodes, limit_s=limit, least=1, most=2048)
    assume(tokens > 1)
    assert CPU.step_s(tokens, decodes) <= 0.8 * limit + 1e-9


def auto(**more):
    scheduler = make(blocks=4000, tokens=2048, max_len=4000, **more)
    scheduler.apply(replace(scheduler.live, max_num_batched_tokens=None), 2048)
    return scheduler


def serve(scheduler, turns, arrivals):
    """Serve on a machine with CPU's terms; the longest step with decodes after the first ten."""
    now, longest = 0.0, 0.0
    for turn in range(turns):
        for request in arrivals(turn, now):
            scheduler.add(request)
        plan = scheduler.schedule(now).plan
        if plan is None:
            continue
        busy_s = CPU.step_s(plan.prefill_tokens, plan.decode_sequences)
        now += busy_s
        if plan.decode_sequences and turn > 10:
            longest = max(longest, busy_s)
        tokens = [7] * sum(chunk.samples for chunk in plan.chunks)
        scheduler.update(plan, StepOutput(token_ids=tokens, busy_s=busy_s), now)
    return longest


def prompts(turn, now):
    if turn == 0:
        return [ask("stream", 50, max_tokens=900)]
    return [ask(f"r{turn}", 1500, max_tokens=4, at=now)] if turn % 40 == 5 else []


def test_streams_keep_their_limit_while_long_prompts_come():
    assert serve(make(blocks=4000, tokens=2048, max_len=4000), 400, prompts) > 1.5
    scheduler = auto()
    limited = replace(scheduler.live, tpot_limit_s=0.1)
    scheduler.apply(limited, 2048)
    assert serve(scheduler, 400, prompts) <= 0.1
    assert scheduler.step_time.terms == pytest.approx(CPU, rel=0.05)


def test_without_a_limit_a_step_has_the_saturation_length():
    scheduler = auto()
    assert scheduler.step_limits().max_num_batched_tokens == 256
    longest = serve(scheduler, 400, prompts)
    assert longest == pytest.approx(CPU.step_s(256, 3), rel=0.05)


def test_the_strictest_limit_of_those_who_decode_counts():
    scheduler = make(blocks=400, tokens=2048)
    for name, limit_s in (("a", 0.2), ("b", 0.1), ("c", 0.0), ("waits", 0.05)):
        scheduler.add(ask(name, 20, max_tokens=9, tpot_limit_s=limit_s))
    for sequence in scheduler.waiting[:3]:
        sequence.num_computed, sequence.tokens = 20, [*sequence.tokens, 7]
    running = scheduler.waiting
    tokens = auto_limits(scheduler.limits, running, CPU, 16).max_num_batched_tokens
    assert tokens == 3 + int((0.08 - 0.026) / 0.001)
    scheduler.limits = replace(scheduler.limits, tpot_limit_s=0.06)
    tokens = auto_limits(scheduler.limits, running, CPU, 16).max_num_batched_tokens
    assert tokens == 3 + int((0.048 - 0.026) / 0.001)


def test_policies_that_compute_prompts_whole_have_the_largest_step():
    scheduler = auto(batching=mixed)
    assert scheduler.step_limits().max_num_batched_tokens == 2048


@pytest.mark.parametrize(
    ("terms", "tokens", "instead"),
    [
        pytest.param(None, 2048, None, id="nothing is known"),
        pytest.param(CPU, 2048, 256, id="two seconds, and 256 saturate it"),
        pytest.param(CPU, 1023, None, id="less than four times as many"),
        pytest.param(CPU._replace(fixed_s=0.05), 2048, 450, id="450 saturate it"),
        pytest.param(CPU._replace(fixed_s=0.1), 2048, None, id="900 saturate it"),
        pytest.param(Terms(0.005, 0.0001, 0.0), 2048, None, id="0.2 s stop nobody"),
    ],
)
def test_a_step_that_stops_streams_for_nothing_should_be_shorter(terms, tokens, instead):
    assert shorter_step(terms, tokens) == instead
