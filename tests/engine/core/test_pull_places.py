"""Pulls and the batch: a pull holds blocks and no place, and what has arrived waits for one."""

from dataclasses import replace

from argosy_engine.core.handover.messages import (
    FailedPrefill,
    PullAlive,
    PullDone,
    PullFailed,
    PullReady,
)
from tests.engine.core.test_scheduler import ask, make, step


def ready(name):
    return PullReady(request_id=name, attempt=1, first_token=9, prefill_pod="p", lasts_s=59.0)


def done(name):
    return PullDone(request_id=name, attempt=1, bytes_moved=0, seconds=0.1, exposed_s=0.1)


def failed(name, **more):
    return PullFailed(request_id=name, attempt=1, cause="broken", message="", **more)


def pull(scheduler, *names, prompt=40):
    """Requests that wait for a peer; the names of those for which one was asked."""
    for index, name in enumerate(names):
        peer = (f"10.0.0.{index}:8002",)
        scheduler.add(ask(name, prompt, max_tokens=4, candidates=peer))
    return [job.request_id for job in step(scheduler)[0].pull_jobs]


def test_t30_decode_that_cannot_receive_never_asks_a_prefill_engine():
    scheduler = make(blocks=4, size=16)
    scheduler.add(ask("local", 33, max_tokens=8))
    assert pull(scheduler, "far") == []
    assert scheduler.waiting[0].request_id == "far"
    scheduled, _ = step(scheduler)
    assert (scheduled.pull_jobs, scheduled.blocked_by) == ((), "kv")
    scheduler.abort("local")
    assert [job.request_id for job in step(scheduler)[0].pull_jobs] == ["far"]


def test_requests_that_wait_for_kv_leave_every_place_of_the_batch_to_others():
    scheduler = make(seqs=2, blocks=64)
    assert pull(scheduler, "far0", "far1") == ["far0", "far1"]
    for name in ("a", "b"):
        scheduler.add(ask(name, 5, max_tokens=9))
    scheduled, _ = step(scheduler)
    assert [chunk.request_id for chunk in scheduled.plan.chunks] == ["a", "b"]


def test_no_more_pulls_wait_than_the_batch_has_places():
    scheduler = make(seqs=2, blocks=64)
    assert pull(scheduler, "far0", "far1", "far2") == ["far0", "far1"]
    assert step(scheduler)[0].blocked_by == "pull"
    scheduler.pull_done(done("far0"))
    assert [job.request_id for job in step(scheduler)[0].pull_jobs] == ["far2"]


def test_t29_kv_that_arrives_at_a_full_batch_waits_for_a_place_and_is_not_lost():
    scheduler = make(seqs=1, blocks=64)
    assert pull(scheduler, "far") == ["far"]
    scheduler.add(ask("here", 5, max_tokens=3))
    step(scheduler)
    assert [e.token_id for e in scheduler.pull_ready(ready("far"), 1.0)] == [9]
    scheduler.pull_done(done("far"))
    far = scheduler.sequences["far"]
    assert (far.state.value, scheduler.arrived) == ("arrived", [far])
    scheduler.add(ask("later", 5, max_tokens=3))
    ran = [step(scheduler)[0].plan.chunks[0].request_id for _ in range(5)]
    assert ran == ["here", "here", "far", "far", "far"]  # before the request that came later
    assert far.tokens[40:] == [9, 7, 7, 7]
    while scheduler.sequences:
        step(scheduler)
    assert scheduler.pool.used == 0


def test_what_enters_from_a_pull_has_a_block_for_its_next_token():
    scheduler = make(seqs=1, blocks=64, size=16)
    assert pull(scheduler, "far", prompt=48) == ["far"]
    scheduler.add(ask("here", 5, max_tokens=2))
    step(scheduler)
    scheduler.pull_ready(ready("far"), 1.0)
    scheduler.pull_done(done("far"))
    step(scheduler)
    scheduled, _ = step(scheduler)
    [far] = scheduled.plan.chunks
    assert (far.request_id, far.start) == ("far", 48)
    assert len(far.block_table) == 4


def test_t31_a_client_that_leaves_while_its_kv_waits_for_a_place_frees_its_blocks():
    scheduler = make(seqs=1, blocks=64)
    pull(scheduler, "far")
    scheduler.add(ask("here", 5, max_tokens=3))
    step(scheduler)
    scheduler.pull_done(done("far"))
    scheduler.abort("far")
    assert scheduler.arrived == []
    assert list(scheduler.sequences) == ["here"]
    assert scheduler.pool.used == 1


def test_a_request_that_must_not_be_recomputed_ends_unless_its_first_token_has_left():
    scheduler = make(blocks=64)
    scheduler.limits = replace(scheduler.limits, on_pull_failure="fail")
    pull(scheduler, "early", "late")
    scheduler.pull_ready(ready("late"), 1.0)
    cause = {"failed": (FailedPrefill("10.0.0.1:8002", "broken"),)}
    (told,) = scheduler.pull_failed(failed("early", **cause))
    assert (told.reason, told.code, told.token_id) == ("error", "kv_transfer_failed", None)
    assert scheduler.pull_failed(failed("late", **cause)) == []
    assert list(scheduler.sequences) == ["late"]
    while scheduler.sequences:
        step(scheduler)
    assert scheduler.pool.used == 0


def test_a_lost_pull_ends_a_request_that_must_not_be_recomputed():
    scheduler = make(blocks=64)
    scheduler.limits = replace(scheduler.limits, on_pull_failure="colocated")
    pull(scheduler, "far")
    assert step(scheduler, now=61.0)[0].cancels == (("far", 1),)
    scheduled, _ = step(scheduler, now=66.0)
    assert [(e.reason, e.code) for e in scheduled.emissions] == [("error", "kv_transfer_failed")]
    assert scheduler.pool.used == 3  # the service may still write to them
    scheduler.pull_failed(failed("far"))
    assert scheduler.pool.used == 0


def alive(name, lasts_s=60.0):
    return PullAlive(request_id=name, attempt=1, lasts_s=lasts_s)


def cancelled_at(scheduler, *times):
    """The first of these times at which a pull is cancelled; None for none."""
    return next((now for now in times if step(scheduler, now=now)[0].cancels), None)


def test_a_pull_that_makes_progress_has_its_time_anew_and_a_second_for_the_service_to_say_why():
    scheduler = make(blocks=64)
    pull(scheduler, "far")
    scheduler.pull_alive(alive("far"), 50.0)
    assert cancelled_at(scheduler, 61.0, 110.9, 111.0) == 111.0


def test_progress_does_not_carry_a_pull_beyond_the_requests_own_deadline():
    scheduler = make(blocks=64)
    scheduler.add(ask("far", 40, candidates=("10.0.0.1:8002",), deadline_s=70.0))
    step(scheduler)
    scheduler.pull_alive(alive("far"), 50.0)
    assert cancelled_at(scheduler, 69.9, 70.0) == 70.0
