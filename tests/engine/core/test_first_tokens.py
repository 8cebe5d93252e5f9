"""First tokens that a peer drew: sent at once, or held until their sequence joins a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.core.handover.messages import PullDone, PullFailed, PullReady
from tests.engine.core.test_scheduler import ask, make, step

READY = PullReady(request_id="a", attempt=1, first_token=9, prefill_pod="p", lasts_s=59.0)
DONE = PullDone(request_id="a", attempt=1, bytes_moved=0, seconds=0.1, exposed_s=0.1)
FAILED = PullFailed(request_id="a", attempt=1, cause="broken", message="")


def pulling(by_s, *, max_tokens=4, **more):
    scheduler = make(**more)
    words = {"candidates": ("10.0.0.1:8002",), "first_token_by_s": by_s}
    sequence = scheduler.add(ask("a", 40, max_tokens=max_tokens, **words))
    step(scheduler)
    return scheduler, sequence


def drawn(emissions):
    return [emission.token_id for emission in emissions]


def test_it_leaves_with_the_step_that_computes_the_next_token():
    scheduler, sequence = pulling(3.0)
    assert scheduler.pull_ready(READY, 1.0) == []
    assert scheduler.first_tokens.next_s() == 3.0
    assert scheduler.schedule(1.5).emissions == ()  # its KV is on the way
    scheduler.pull_done(DONE)
    scheduled, emissions = step(scheduler, now=2.0, token=7)
    assert drawn(scheduled.emissions) == [9]
    assert drawn(emissions) == [7]
    assert (sequence.first_token_s, sequence.first_token_held_s) == (2.0, 1.0)
    assert [e.gap_s for e in scheduled.emissions] == [None]
    assert len(scheduler.first_tokens) == 0
    assert scheduler.first_tokens.next_s() is None
    assert step(scheduler, now=2.5)[0].emissions == ()


@pytest.mark.parametrize(("now", "sent"), [(2.9, []), (3.0, [9]), (3.1, [9])])
def test_it_leaves_when_its_time_is_over_though_the_kv_is_not_here(now, sent):
    scheduler, sequence = pulling(3.0)
    scheduler.pull_ready(READY, 1.0)
    assert drawn(scheduler.schedule(now).emissions) == sent
    assert sequence.first_token_s == (now if sent else None)


def test_the_only_token_of_an_answer_is_not_held():
    scheduler, sequence = pulling(3.0, max_tokens=1)
    (emission,) = scheduler.pull_ready(READY, 1.0)
    assert (emission.token_id, emission.reason) == (9, "length")
    assert sequence.first_token_held_s == 0.0


def test_it_waits_while_the_prompt_is_computed_here_after_a_failed_pull():
    scheduler, sequence = pulling(9.0, tokens=32)
    scheduler.pull_ready(READY, 1.0)
    assert scheduler.pull_failed(FAILED) == []
    scheduled, emissions = step(scheduler, now=1.5)
    assert (scheduled.plan.prefill_tokens, scheduled.emissions, emissions) == (32, (), [])
    scheduled, emissions = step(scheduler, now=2.0, token=7)
    assert scheduled.plan.prefill_tokens == 9
    assert drawn(scheduled.emissions) == [9]
    assert drawn(emissions) == [7]
    assert sequence.tokens[40:] == [9, 7]


@pytest.mark.parametrize("leaves", ["while its KV comes", "while it waits for a place"])
def test_a_client_that_leaves_is_sent_none(leaves):
    scheduler, _ = pulling(3.0)
    scheduler.pull_ready(READY, 1.0)
    if leaves == "while it waits for a place":
        scheduler.pull_done(DONE)
    scheduler.abort("a")
    assert len(scheduler.first_tokens) == 0
    assert scheduler.schedule(5.0).emissions == ()


@given(
    by_s=st.floats(0, 4),
    ready_s=st.floats(0, 2),
    kv_s=st.floats(0, 2),
    places=st.integers(1, 2),
    end=st.sampled_from((DONE, FAILED)),
)
def test_a_client_gets_all_tokens_in_order_and_the_first_never_after_its_time(
    by_s, ready_s, kv_s, places, end
):
    """With steps of 0.1 s, so that the first one may be late by one step."""
    scheduler, sequence = pulling(by_s, max_tokens=5, seqs=places, tokens=16)
    scheduler.add(ask("b", 20, max_tokens=12))
    got, at = [], None
    for tenth in range(80):
        now = tenth / 10
        emissions = []
        if at is None and now >= ready_s:
            at = now
            emissions += scheduler.pull_ready(READY, now)
        if at is not None and now >= at + kv_s and sequence.state.value == "pulling":
            scheduler.pull_done(DONE) if end is DONE else scheduler.pull_failed(FAILED)
        scheduled, more = step(scheduler, now, token=100 + tenth)
        emissions += [*scheduled.emissions, *more]
        got += [(now, e.token_id) for e in emissions if e.sequence is sequence]
    assert [token for _, token in got] == sequence.tokens[40:]
    assert len(got) == 5
    assert got[0][1] == 9
    assert got[0][0] <= max(by_s + 0.1, at)
