"""Orders that failed: when each is tried again, what it holds up, and when a person must act.

A failure belongs to one order. It waits longer after each attempt, while the rest of the fleet goes
on; what depends on it (`actions.needs`) waits with it. It is forgotten when the order succeeds or
is no longer in the plan. Errors of the whole server are not kept here: they end a round.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from argosy_operator.core.fleet.actions import Action, ErrorKind, Outcome, key_of, needs, target
from argosy_operator.core.fleet.memory import Failure
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.draft import Draft

LONGEST_PAUSE_S = 60.0
STUCK_S = 300.0
"""A webhook whose pod moves to another node is back within this time; after it a person must look.
"""

TAKEN_LOOK_S = 30.0
"""How often to look whether a name that a stranger's object holds is free again: such an object has
none of our labels, so no watch tells."""

# Another client wrote at the same moment: usual, and over at the next look.
RACES = (ErrorKind.CONFLICT, ErrorKind.EXISTS, ErrorKind.NOT_FOUND, ErrorKind.GONE)
RACES_SHOWN = 4  # attempts

# Errors of the connection or of the whole server, and names that are taken, which are looked up
# in every round anyway.
NOT_OF_AN_ORDER = (
    ErrorKind.NOT_LEADER,
    ErrorKind.THROTTLED,
    ErrorKind.TRANSPORT,
    ErrorKind.UNAUTHORIZED,
    ErrorKind.FOREIGN,
)
_FIRST_PAUSE_S = {ErrorKind.FAILED: 1.0, **dict.fromkeys(RACES, 0.2)}
_REFUSED_PAUSE_S = 10.0  # no event tells that a right was granted or a quota raised
_NUMBER = re.compile(r"\d+")


def back_off_failed_actions(snapshot: Snapshot, draft: Draft) -> Draft:
    """Leave out what failed a moment ago; try what failed before after everything else, since a
    webhook that hangs costs ten seconds."""
    wanted = {key_of(action) for action in draft.actions}
    failed = {key: failure for key, failure in snapshot.memory.failed.items() if key in wanted}
    held: set[str] = set()
    last: set[str] = set()
    first_ones, last_ones = list[Action](), list[Action]()
    for action in draft.actions:
        key, need = key_of(action), needs(action)
        if need in held or (key in failed and _waits(failed[key], snapshot)):
            held.add(key)
        elif need in last or key in failed:
            last.add(key)
            last_ones.append(action)
        else:
            first_ones.append(action)
    memory = replace(draft.memory, failed=failed)
    return replace(draft, actions=(*first_ones, *last_ones), memory=memory)


def learn_failures(
    snapshot: Snapshot, failed: Mapping[str, Failure], outcomes: Iterable[Outcome]
) -> dict[str, Failure]:
    """The failures that stand after a round."""
    after = dict(failed)
    for outcome in outcomes:
        key = key_of(outcome.action)
        before = after.get(key)
        if outcome.error is None:
            after.pop(key, None)
        elif outcome.error not in NOT_OF_AN_ORDER:
            after[key] = _failure(snapshot, outcome, outcome.error, before)
    return after


def next_try_s(failed: Mapping[str, Failure], now: float) -> float:
    """Seconds from `now`, on the monotonic clock, until the next failed order is tried again. One
    that is due and was not tried waits for another that failed in this round."""
    due_in = (failure.retry_at - now for failure in failed.values() if failure.retry_at > now)
    return min(due_in, default=float("inf"))


def taken_look_s(outcomes: Iterable[Outcome]) -> float:
    """Seconds until a name that was found taken is looked up again."""
    taken = any(outcome.error is ErrorKind.FOREIGN for outcome in outcomes)
    return TAKEN_LOOK_S if taken else float("inf")


def shown(failed: Mapping[str, Failure]) -> list[Failure]:
    """What is worth a condition, the oldest first."""
    worth = [f for f in failed.values() if f.error not in RACES or f.times >= RACES_SHOWN]
    return sorted(worth, key=lambda failure: (failure.since, failure.what))


def is_stuck(failure: Failure, now: float) -> bool:
    """Has it failed for so long, at `now` on the monotonic clock, that a person must look?"""
    return now - failure.since >= STUCK_S


def _waits(failure: Failure, snapshot: Snapshot) -> bool:
    return (
        snapshot.monotonic < failure.retry_at
        and failure.generation == snapshot.fleet.metadata.generation
    )


def _failure(
    snapshot: Snapshot, outcome: Outcome, kind: ErrorKind, before: Failure | None
) -> Failure:
    times = before.times + 1 if before else 1
    pause_s = _FIRST_PAUSE_S.get(kind, _REFUSED_PAUSE_S) * 2.0 ** min(times - 1, 10)
    message = outcome.message
    # ports and durations inside a message change at each attempt; status need not
    if before and before.error is kind and _alike(before.message, message):
        message = before.message
    return Failure(
        what=target(outcome.action),
        builds=target(outcome.action).startswith("Deployment/"),
        error=kind,
        message=message,
        since=before.since if before else snapshot.monotonic,
        times=times,
        retry_at=snapshot.monotonic + min(LONGEST_PAUSE_S, pause_s),
        generation=snapshot.fleet.metadata.generation,
    )


def _alike(one: str, other: str) -> bool:
    return _NUMBER.sub("", one) == _NUMBER.sub("", other)
