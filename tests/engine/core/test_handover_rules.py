"""The rules of a handover, by hand: its states, how leases end, and which events count."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from argosy_engine.core.capacity import MaxUtilization
from argosy_engine.core.handover.leases import LeaseTable
from argosy_engine.core.handover.messages import LeaseKey, PullDone, PullFailed, PullReady
from argosy_engine.core.handover.states import LeaseState
from argosy_engine.errors import LeaseGoneError
from argosy_engine.runtime.remote import SharedLeases
from tests.engine.core.test_scheduler import ask, make, step
from tests.support.stateful import run_sequences

# ------------------------------------------------------------------ leases

KEY, OTHER = LeaseKey("r", 1, "epoch"), LeaseKey("s", 1, "epoch")


def give(leases, key, blocks, *, expires_s):
    """Promise and grant at once."""
    leases.promise(key, ticket_of(key))
    leases.grant(key, blocks, expires_s=expires_s)


def ticket_of(key):
    return f"ticket of {key}"


def table(*, expires_s=10.0):
    leases = LeaseTable()
    give(leases, KEY, (1, 2), expires_s=expires_s)
    return leases


@pytest.mark.parametrize(
    ("history", "at", "why"),
    [
        (["release"], 0.0, "was released"),
        ([], 10.0, r"expired 0\.0 s ago"),
        ([], 12.5, r"expired 2\.5 s ago"),
        (["release", "collect"], 0.0, "it ended, or this engine started since"),
    ],
)
def test_a_lease_that_is_over_is_neither_sent_nor_renewed_and_the_reason_is_said(history, at, why):
    leases = table()
    for act in history:
        leases.release(KEY) if act == "release" else leases.collect(0.0)
    with pytest.raises(LeaseGoneError, match=why):
        leases.begin_send(KEY, at)
    with pytest.raises(LeaseGoneError, match=why):
        leases.renew(KEY, expires_s=99.0, now=at)


def test_shared_leases_count_their_seconds_from_now_on_their_own_clock():
    now = 100.0
    leases = SharedLeases(lambda: now)
    ticket = leases.promise(KEY)
    assert (leases.find(ticket), len(ticket), KEY in leases) == (KEY, 32, True)
    leases.grant(KEY, (1, 2), 30.0)
    now = 129.0
    assert leases.collect() == []
    leases.renew(KEY, 5.0)
    now = 133.0
    assert leases.begin_send(KEY) == (1, 2)
    now = 999.0
    assert (leases.collect(), leases.active) == ([], 1)
    leases.end_send(KEY)
    assert (leases.collect(), leases.active, leases.expired) == ([KEY], 0, 1)
    assert leases.promise(OTHER) != ticket
    leases.grant(OTHER, (3,), 30.0)
    leases.release(OTHER)
    assert (leases.collect(), leases.expired) == ([OTHER], 1)


def test_blocks_may_be_sent_as_they_become_ready_and_the_lease_has_no_end_before_the_last_one():
    leases = LeaseTable()
    leases.promise(KEY, "t")
    assert leases.find("t") == KEY
    assert leases.begin_send(KEY, 0.0) == ()
    leases.end_send(KEY)
    assert leases._leases[KEY].state is LeaseState.PROMISED
    assert leases.extend(KEY, (5,))
    assert not leases.extend(KEY, (5,))  # nothing new
    assert leases.begin_send(KEY, 99.0) == (5,)
    leases.grant(KEY, (5, 6), expires_s=100.0)  # under the send
    leases.end_send(KEY)
    assert leases._leases[KEY].state is LeaseState.HELD
    assert (leases.begin_send(KEY, 99.9), leases.collect(999.0)) == ((5, 6), [])
    leases.end_send(KEY)
    assert (leases.collect(99.9), leases.collect(100.0)) == ([], [KEY])
    with pytest.raises(LeaseGoneError, match="no lease has this ticket"):
        leases.find("t")


def test_a_prompt_that_nobody_wants_any_more_gets_no_blocks_and_no_lease():
    leases = LeaseTable()
    leases.promise(KEY, "t")
    leases.release(KEY)
    assert not leases.extend(KEY, (5,))
    with pytest.raises(LeaseGoneError, match="was released"):
        leases.grant(KEY, (5,), expires_s=9.0)
    assert (leases.collect(0.0), leases.expired) == ([KEY], 0)
    assert not leases.extend(KEY, (5,))
    with pytest.raises(LeaseGoneError, match="no lease"):
        leases.grant(KEY, (5,), expires_s=9.0)


class Leases(RuleBasedStateMachine):
    """Peers that say anything at any time, beside what a notebook would have of each lease."""

    keys = st.sampled_from([LeaseKey(name, n, "e") for name in "rs" for n in (1, 2)])

    def __init__(self):
        super().__init__()
        self.leases, self.now = LeaseTable(), 0.0
        self.book = {}  # key → [ends at, sends, released]
        self.granted = self.freed = self.expired = 0

    def gone(self, key):
        known = self.book.get(key)
        return known is None or known[2] or known[0] <= self.now

    @rule(key=keys, seconds=st.integers(0, 5))
    def grant(self, key, seconds):
        if key not in self.book:
            give(self.leases, key, (1,), expires_s=self.now + seconds)
            self.book[key] = [self.now + seconds, 0, False]
            self.granted += 1

    @rule(key=keys)
    def begin(self, key):
        if self.gone(key):
            with pytest.raises(LeaseGoneError):
                self.leases.begin_send(key, self.now)
        else:
            assert self.leases.begin_send(key, self.now) == (1,)
            self.book[key][1] += 1

    @rule(key=keys)
    def end(self, key):
        self.leases.end_send(key)
        if key in self.book:
            self.book[key][1] = max(0, self.book[key][1] - 1)

    @rule(key=keys, seconds=st.integers(0, 5))
    def renew(self, key, seconds):
        if self.gone(key):
            with pytest.raises(LeaseGoneError):
                self.leases.renew(key, expires_s=self.now + seconds, now=self.now)
        else:
            self.leases.renew(key, expires_s=self.now + seconds, now=self.now)
            self.book[key][0] = self.now + seconds

    @rule(key=keys)
    def release(self, key):
        self.leases.release(key)
        if key in self.book:
            self.book[key][2] = True

    @rule(seconds=st.integers(0, 4))
    def collect(self, seconds):
        self.now += seconds
        due = {
            key
            for key, (ends, sends, released) in self.book.items()
            if not sends and (released or ends <= self.now)
        }
        over = self.leases.collect(self.now)
        assert (len(over), set(over)) == (len(due), due)
        self.freed += len(over)
        self.expired += sum(not self.book.pop(key)[2] for key in over)

    @invariant()
    def every_lease_ends_exactly_once(self):
        assert self.granted == self.freed + len(self.leases)
        assert len(self.leases) == len(self.book)
        assert self.leases.expired == self.expired


def test_whatever_peers_say_the_leases_are_those_of_a_notebook() -> None:
    run_sequences(Leases, examples=20, steps=25)


# ------------------------------------------------------------------ pulls

PEER = ("10.0.0.1:8002",)


def pulling(*, attempt=1, prompt=40):
    scheduler = make()
    sequence = scheduler.add(ask("a", prompt, candidates=PEER, attempt=attempt))
    (job,) = step(scheduler)[0].pull_jobs
    return scheduler, sequence, job


def ready(attempt=1, token=9):
    return PullReady(
        request_id="a", attempt=attempt, first_token=token, prefill_pod="p", lasts_s=59.0
    )


def done(attempt=1):
    return PullDone(request_id="a", attempt=attempt, bytes_moved=0, seconds=0.1, exposed_s=0.1)


def failed(attempt=1):
    return PullFailed(request_id="a", attempt=attempt, cause="broken", message="")


def test_a_pull_asks_for_the_whole_prompt_into_the_requests_own_blocks():
    scheduler = make()
    scheduler.add(ask("known", range(100, 132), max_tokens=1))
    step(scheduler)
    sequence = scheduler.add(ask("a", range(100, 170), candidates=PEER, attempt=3))
    (job,) = step(scheduler)[0].pull_jobs
    assert (job.request_id, job.attempt, job.candidates) == ("a", 3, PEER)
    assert (job.token_ids, job.sampling) == (list(range(100, 170)), sequence.sampling)
    assert job.block_ids == tuple(sequence.blocks)
    assert (len(job.block_ids), job.have_tokens, job.timeout_s) == (5, 32, 60.0)


@pytest.mark.parametrize("attempt", [1, 3])
def test_late_events_of_another_attempt_change_nothing(attempt):
    scheduler, sequence, _ = pulling(attempt=2)
    assert scheduler.pull_ready(ready(attempt), 1.0) == []
    scheduler.pull_done(done(attempt))
    scheduler.pull_failed(failed(attempt))
    assert (sequence.n_output, sequence.state.value) == (0, "pulling")
    assert step(scheduler)[0].plan is None
    assert scheduler.pool.used == 3
    assert [e.token_id for e in scheduler.pull_ready(ready(2), 1.0)] == [9]
    scheduler.pull_done(done(2))
    assert [chunk.count for chunk in step(scheduler)[0].plan.chunks] == [1]


@pytest.mark.parametrize("late", [ready(), done(), failed()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("end", [done(), failed()], ids=lambda e: type(e).__name__)
def test_events_after_the_end_of_a_pull_change_nothing(end, late):
    scheduler, sequence, _ = pulling()
    scheduler.pull_ready(ready(), 1.0)
    tell = {
        PullReady: lambda e: scheduler.pull_ready(e, 2.0),
        PullDone: scheduler.pull_done,
        PullFailed: scheduler.pull_failed,
    }
    tell[type(end)](end)
    before = (list(sequence.tokens), sequence.num_computed, list(sequence.blocks))
    assert not tell[type(late)](late)
    assert (sequence.tokens, sequence.num_computed, list(sequence.blocks)) == before
    assert scheduler.running == [sequence]


def test_a_pull_is_cancelled_once_at_its_time_and_given_up_when_nobody_confirms():
    scheduler, sequence, _ = pulling()
    seen = [(now, step(scheduler, now=now)[0]) for now in (60.9, 61.0, 61.1, 65.9)]
    assert [(now, s.cancels) for now, s in seen if s.cancels] == [(61.0, (("a", 1),))]
    assert [s.abandoned for _, s in seen] == [()] * 4
    assert step(scheduler, now=66.0)[0].abandoned == ("a",)
    assert sequence.state.value == "running"  # computed here
    assert scheduler.pool.used == 6  # its own 3, and the 3 that the peer may write to
    scheduler.pull_done(done())
    assert scheduler.pool.used == 3
    assert (sequence.n_output, len(sequence.blocks) > 0) == (1, True)


@pytest.mark.parametrize(
    ("prompt", "known", "pulls"),
    [
        pytest.param(5, 0, True, id="a short prompt of which nothing is here"),
        pytest.param(64, 48, False, id="one block is missing"),
        pytest.param(65, 48, True, id="a block and a token are missing"),
        pytest.param(65, 64, False, id="one token is missing"),
    ],
)
def test_a_peer_is_asked_for_more_than_a_block(prompt, known, pulls):
    scheduler = make()
    if known:
        scheduler.add(ask("known", range(100, 100 + known + 1), max_tokens=1))
        step(scheduler)
    scheduler.add(ask("a", range(100, 100 + prompt), candidates=PEER))
    scheduled, _ = step(scheduler)
    assert bool(scheduled.pull_jobs) is pulls
    assert (scheduled.plan is None) is pulls


# ------------------------------------------------------------------ the queue's time-out


def test_a_request_that_waits_too_long_is_told_so_and_the_one_before_it_goes_on():
    scheduler = make(seqs=1)
    scheduler.add(ask("first", 5, max_tokens=9))
    step(scheduler)
    late = scheduler.add(ask("late", 5, deadline_s=10.0))
    assert step(scheduler, now=9.9)[0].emissions == ()
    (told,) = step(scheduler, now=10.0)[0].emissions
    assert (told.sequence, told.reason, told.code, told.token_id) == (
        late, "error", "queue_timeout", None,
    )  # fmt: skip
    assert "waited too long" in told.message
    assert list(scheduler.sequences) == ["first"]
    assert scheduler.waiting == []
    assert step(scheduler, now=11.0)[0].emissions == ()


def test_a_request_that_entered_once_never_times_out_in_the_queue():
    scheduler = make(blocks=4, size=4, policy=MaxUtilization())
    for name, at in (("first", 0.0), ("second", 1.0)):
        scheduler.add(ask(name, 4, max_tokens=9, at=at, deadline_s=10.0))
    step(scheduler, now=1.0)
    assert scheduler.waiting == []
    while not scheduler.waiting:
        assert step(scheduler, now=2.0)[0].emissions == ()
    (again,) = scheduler.waiting
    assert (again.request_id, again.preemptions) == ("second", 1)
    assert step(scheduler, now=99.0)[0].emissions == ()
    while scheduler.sequences:
        step(scheduler, now=99.0)
    assert (again.reason, again.n_output) == ("length", 9)
