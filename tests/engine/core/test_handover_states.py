"""The tables of handover states: whole, reachable, and those that the code goes through."""

import random

import pytest

from argosy_engine.core.handover import states
from argosy_engine.core.handover.leases import LeaseTable
from argosy_engine.core.handover.messages import LeaseKey, PullDone, PullFailed, PullReady
from argosy_engine.core.handover.states import LeaseState, PullState
from argosy_engine.errors import LeaseGoneError
from tests.engine.core.test_scheduler import ask, make, step

ENDS = [
    (PullState, states.PULL_MEANINGS, states.PULL_TRANSITIONS, PullState.ASKED),
    (LeaseState, states.LEASE_MEANINGS, states.LEASE_TRANSITIONS, LeaseState.PROMISED),
]


@pytest.mark.parametrize(("kind", "meanings", "transitions", "first"), ENDS)
def test_every_state_has_a_meaning_and_can_be_reached(kind, meanings, transitions, first):
    assert meanings.keys() == set(kind)
    reached = {first}
    for _ in kind:
        reached |= {move.after for move in transitions if move.before in reached}
    assert reached == set(kind)
    assert len({(move.before, move.after) for move in transitions}) == len(transitions)


@pytest.fixture
def seen(monkeypatch):
    """Transitions that the code made."""
    made = set()
    for name in ("move_pull", "move_lease"):
        whole = getattr(states, name)

        def moved(before, after, whole=whole):
            made.add((before, after))
            return whole(before, after)

        end = "pulls" if name == "move_pull" else "leases"
        monkeypatch.setattr(f"argosy_engine.core.handover.{end}.{name}", moved)
    return made


def pull_to_its_end(rng):
    """One pull with events in random order, some of them never sent."""
    scheduler = make()
    scheduler.add(ask("a", 40, candidates=("10.0.0.1:8002",)))
    step(scheduler)
    key = {"request_id": "a", "attempt": 1}
    now = 0.0
    if rng.random() < 0.5:
        scheduler.pull_ready(PullReady(**key, first_token=9, prefill_pod="p", lasts_s=59.0), now)
    if rng.random() < 0.5:
        scheduler.abort("a")
    for _ in range(rng.randrange(3)):
        now += 61.0
        scheduler.schedule(now)
    if rng.random() < 0.5:
        scheduler.pull_done(PullDone(**key, bytes_moved=0, seconds=0.1, exposed_s=0.1))
    else:
        scheduler.pull_failed(PullFailed(**key, cause="broken", message=""))
    return scheduler


def test_pulls_go_through_every_transition_and_no_other(seen):
    rng = random.Random(1)
    for _ in range(200):
        pull_to_its_end(rng)
    assert seen == {(move.before, move.after) for move in states.PULL_TRANSITIONS}


def test_leases_go_through_every_transition_and_no_other(seen):
    rng = random.Random(1)
    table, now, key = LeaseTable(), 0.0, LeaseKey("r", 1, "epoch")
    for _ in range(500):
        now += 1.0
        try:
            match rng.randrange(6):
                case 0 if not len(table):
                    table.promise(key, "t")
                case 4 if len(table):
                    table.grant(key, (1,), expires_s=now + 5.0)
                case 1:
                    table.begin_send(key, now)
                case 2:
                    table.end_send(key)
                case 3:
                    table.release(key)
        except LeaseGoneError:
            pass
        table.collect(now)
    assert seen == {(move.before, move.after) for move in states.LEASE_TRANSITIONS}


def test_a_transition_outside_the_table_is_refused():
    with pytest.raises(AssertionError, match="from done to asked"):
        states.move_pull(PullState.DONE, PullState.ASKED)
    with pytest.raises(AssertionError, match="from freed to held"):
        states.move_lease(LeaseState.FREED, LeaseState.HELD)
