"""Step: another writer changes a field of ours each time that it is changed back.

Two writers of one field in turn would load the API server without end. The first reverts are free,
because people make mistakes. After them each waits twice as long as the one before, an Event
reports each, and the condition FieldConflict names the other writer until it has been quiet for
`QUIET_S`. A child that another writer deletes again and again is treated in the same way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from argosy_operator.core.snapshot.actions import Event, EventReason, Outcome, key_of
from argosy_operator.core.snapshot.snapshot import FieldConflict, Snapshot
from argosy_operator.core.steps.draft import Draft, StepReason

FREE = 5
"""Reverts in a row without a pause."""
LONGEST_PAUSE_S = 60.0
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


def shown(conflicts: Mapping[str, FieldConflict]) -> list[str]:
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
