"""Step: actions that failed, and changes that another writer repeats, wait for another attempt.

A failure belongs to one action. The rest of the fleet goes on; only what depends on the action
(`actions.needs`) waits with it. A failure is forgotten when the action succeeds or is no longer in
the plan. Errors of the whole server are not kept here: they end the round.

Two writers of one field in turn would load the API server without end. The first reverts are free,
because people make mistakes. After them each waits twice as long as the one before, an Event
reports each, and the condition FieldConflict names the other writer until it has been quiet for
`QUIET_S`. A child that another writer deletes again and again is treated in the same way.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from argosy_operator.core.snapshot.actions import (
    Action,
    ErrorKind,
    Event,
    EventReason,
    Outcome,
    key_of,
    needs,
    target,
)
from argosy_operator.core.snapshot.snapshot import Failure, FieldConflict, Snapshot
from argosy_operator.core.steps.draft import Draft, StepReason

LONGEST_PAUSE_S = 60.0
STUCK_S = 300.0
"""When a failure needs a person. A webhook whose pod moves to another node is back sooner."""

LOOK_AT_TAKEN_NAMES_S = 30.0
"""How often to look whether the name of a child that another owner's object has is free again. Such
an object has none of our labels, so no watch reports its deletion."""

RACES = (ErrorKind.CONFLICT, ErrorKind.EXISTS, ErrorKind.NOT_FOUND, ErrorKind.GONE)
"""Another client wrote at the same moment. This is usual, and over in the next round."""
RACES_SHOWN = 4
"""Attempts after which a race is worth a condition."""

NOT_OF_AN_ACTION = (
    ErrorKind.NOT_LEADER,
    ErrorKind.THROTTLED,
    ErrorKind.TRANSPORT,
    ErrorKind.UNAUTHORIZED,
    ErrorKind.FOREIGN,
)
"""Errors of the connection or of the whole server, and names that are taken, which are looked up in
every round anyway."""

_FIRST_PAUSE_S = {ErrorKind.FAILED: 1.0, **dict.fromkeys(RACES, 0.2)}
_REFUSED_PAUSE_S = 10.0  # no watch reports that a right was granted or a quota raised
_NUMBER = re.compile(r"\d+")


def back_off_failed_actions(snapshot: Snapshot, draft: Draft) -> Draft:
    """Leave out actions that failed a moment ago, and try those that failed earlier last: a webhook
    that hangs costs ten seconds."""
    wanted = {key_of(action) for action in draft.actions}
    failed = {key: f for key, f in snapshot.memory.failed.items() if key in wanted}
    waiting, last = list[str](), list[str]()
    first_ones, last_ones = list[Action](), list[Action]()
    for action in draft.actions:
        key, need = key_of(action), needs(action)
        if need in waiting or (key in failed and _waits(failed[key], snapshot)):
            waiting.append(key)
        elif need in last or key in failed:
            last.append(key)
            last_ones.append(action)
        else:
            first_ones.append(action)
    memory = replace(draft.memory, failed=failed)
    draft = replace(draft, actions=(*first_ones, *last_ones), memory=memory)
    if waiting:
        next_s = next_try_s(failed, snapshot.monotonic)
        message = f"{', '.join(waiting)}; the next attempt is in {next_s:.0f} s"
        return draft.step(StepReason.WAITING_AFTER_FAILURE, message)
    if last:
        return draft.step(StepReason.RETRYING_FAILED_ACTIONS, ", ".join(last))
    return draft.step(StepReason.NO_FAILED_ACTION, "nothing waits for another attempt")


def learn_failures(
    snapshot: Snapshot, failed: Mapping[str, Failure], outcomes: Iterable[Outcome]
) -> dict[str, Failure]:
    """`failed` after the outcomes of this round."""
    after = dict(failed)
    for outcome in outcomes:
        key = key_of(outcome.action)
        before = after.get(key)
        if outcome.error is None:
            after.pop(key, None)
        elif outcome.error not in NOT_OF_AN_ACTION:
            after[key] = _failure(snapshot, outcome, outcome.error, before)
    return after


def next_try_s(failed: Mapping[str, Failure], now: float) -> float:
    """Seconds from `now`, on the monotonic clock, until the next failed action is tried again.

    One that is due and was not tried in this round waits for another that failed in it.
    """
    due_in = (failure.retry_at - now for failure in failed.values() if failure.retry_at > now)
    return min(due_in, default=float("inf"))


def look_at_taken_names_s(outcomes: Iterable[Outcome]) -> float:
    """Seconds until a name that was found taken is looked up again; infinite if none was."""
    taken = any(outcome.error is ErrorKind.FOREIGN for outcome in outcomes)
    return LOOK_AT_TAKEN_NAMES_S if taken else float("inf")


def list_failures(failed: Mapping[str, Failure]) -> list[Failure]:
    """Failures that are worth a condition, the oldest first."""
    worth = [f for f in failed.values() if f.error not in RACES or f.times >= RACES_SHOWN]
    return sorted(worth, key=lambda failure: (failure.since, failure.what))


def is_stuck(failure: Failure, now: float) -> bool:
    """Whether it failed for so long, at `now` on the monotonic clock, that a person must act."""
    return now - failure.since >= STUCK_S


def _waits(failure: Failure, snapshot: Snapshot) -> bool:
    edited = failure.generation != snapshot.fleet.metadata.generation
    return snapshot.monotonic < failure.retry_at and not edited


def _failure(
    snapshot: Snapshot, outcome: Outcome, kind: ErrorKind, before: Failure | None
) -> Failure:
    times = before.times + 1 if before else 1
    pause_s = _FIRST_PAUSE_S.get(kind, _REFUSED_PAUSE_S) * 2.0 ** min(times - 1, 10)
    message = outcome.message
    # Ports and durations inside a message change at each attempt; status need not.
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


FREE = 5
"""Reverts in a row without a pause."""
QUIET_S = 300.0
"""Without another change for so long, a conflict is over."""
REVERTS = {
    EventReason.PUT_BACK: LONGEST_PAUSE_S,
    EventReason.CREATED_AGAIN: 5.0,  # the fleet may not serve while a child is missing
}
"""The longest pause, in seconds, by the reason of the revert's Event."""


def back_off_field_conflicts(snapshot: Snapshot, draft: Draft) -> Draft:
    """Leave out reverts whose time has not come; the Event says how long the next one waits."""
    conflicts = {
        key: conflict
        for key, conflict in snapshot.memory.field_conflicts.items()
        if snapshot.monotonic - conflict.at < QUIET_S
    }
    reverts = _reverts(draft.events)
    waiting = {
        key: conflicts[key].retry_at - snapshot.monotonic
        for key in reverts
        if key in conflicts and snapshot.monotonic < conflicts[key].retry_at
    }
    draft = replace(
        draft,
        actions=tuple(action for action in draft.actions if key_of(action) not in waiting),
        events=tuple(_with_pause(event, conflicts, waiting) for event in draft.events),
        memory=replace(draft.memory, field_conflicts=conflicts),
    )
    quiet_in = [conflict.at + QUIET_S - snapshot.monotonic for conflict in conflicts.values()]
    draft = draft.within(min([draft.wake_s, *waiting.values(), *quiet_in]))
    if waiting:
        message = "; ".join(f"{conflicts[key].cause}: {s:.0f} s" for key, s in waiting.items())
        return draft.step(StepReason.WAITING_AFTER_CONFLICT, message)
    if reverts:
        causes = (_cause(event) for event in reverts.values())
        return draft.step(StepReason.REVERTING_CHANGES, "; ".join(dict.fromkeys(causes)))
    return draft.step(StepReason.NO_FIELD_CONFLICT, "nothing is reverted")


def learn_field_conflicts(
    snapshot: Snapshot, draft: Draft, outcomes: Iterable[Outcome]
) -> dict[str, FieldConflict]:
    """The conflicts after the outcomes of this round."""
    after, reverts = dict(draft.memory.field_conflicts), _reverts(draft.events)
    now = snapshot.monotonic
    for outcome in outcomes:
        key = key_of(outcome.action)
        if outcome.error is None and key in reverts:
            event, before = reverts[key], after.get(key)
            times = before.times + 1 if before else 1
            cause = before.cause if before else _cause(event)
            retry_at = now + pause_s(times, REVERTS[EventReason(event.reason)])
            after[key] = FieldConflict(cause, times, now, retry_at)
    return after


def pause_s(times: int, longest_s: float) -> float:
    """How long the next revert waits after so many: 0 s below `FREE`, then 1, 2, 4, … s."""
    return 0.0 if times < FREE else min(longest_s, 2.0 ** min(times - FREE, 10))


def describe_conflicts(conflicts: Mapping[str, FieldConflict]) -> list[str]:
    """Causes that are worth a condition: who changes what, without numbers that change."""
    return sorted(conflict.cause for conflict in conflicts.values() if conflict.times >= FREE)


def _cause(event: Event) -> str:
    """The first part of a revert's message: who did what."""
    return event.message.partition(";")[0]


def _reverts(events: Iterable[Event]) -> dict[str, Event]:
    """Events of reverts, by the key of the action that reverts."""
    return {key: event for event in events if event.reason in REVERTS for key in event.after}


def _with_pause(
    event: Event, conflicts: Mapping[str, FieldConflict], waiting: Mapping[str, float]
) -> Event:
    """The revert's Event. After the free ones it also says how often it happened, and how long the
    next revert waits."""
    if event.reason not in REVERTS:
        return event
    (key,) = event.after or ("",)
    times = conflicts[key].times + 1 if key in conflicts else 1
    if key in waiting or times < FREE:
        return event
    longest_s = REVERTS[EventReason(event.reason)]
    again = pause_s(times, longest_s)
    often = f"{times} times in a row" if again < longest_s else "again and again"
    message = f"{event.message}. This happened {often}: the next put-back waits {again:.0f} s"
    return replace(event, message=message)
