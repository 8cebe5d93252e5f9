"""Contests: another writer changes a field of ours each time that it is put back.

Two managers that write one field in turn would load the API server without end and solve nothing.
Some put-backs are free, because people make mistakes; then each waits twice as long as the one
before, an Event tells of each, and a condition names the other side until it has been quiet.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from argosy_operator.core.fleet.actions import Outcome, key_of
from argosy_operator.core.fleet.events import Event, EventReason
from argosy_operator.core.fleet.memory import FieldConflict
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.draft import Draft

FREE = 5
LONGEST_PAUSE_S = 60.0
QUIET_S = 300.0
PUT_BACKS = {
    EventReason.PUT_BACK: LONGEST_PAUSE_S,
    EventReason.CREATED_AGAIN: 5.0,  # the fleet may not serve while a child is missing
}
"""The longest pause, s, by the reason of the put-back's Event."""


def back_off_field_conflicts(snapshot: Snapshot, draft: Draft) -> Draft:
    """Leave out put-backs whose time has not come; say how long the next one will wait."""
    conflicts = {
        key: conflict
        for key, conflict in snapshot.memory.field_conflicts.items()
        if snapshot.monotonic - conflict.at < QUIET_S
    }
    wanted = _put_backs(draft.events)
    waiting = {
        key: conflicts[key].retry_at - snapshot.monotonic
        for key in wanted
        if key in conflicts and snapshot.monotonic < conflicts[key].retry_at
    }
    draft = replace(
        draft,
        actions=tuple(action for action in draft.actions if key_of(action) not in waiting),
        events=tuple(_told(event, conflicts, waiting) for event in draft.events),
        memory=replace(draft.memory, field_conflicts=conflicts),
    )
    quiet_in = [conflict.at + QUIET_S - snapshot.monotonic for conflict in conflicts.values()]
    return draft.within(min([draft.wake_s, *waiting.values(), *quiet_in]))


def learn_field_conflicts(
    snapshot: Snapshot, draft: Draft, outcomes: Iterable[Outcome]
) -> dict[str, FieldConflict]:
    """The conflicts that stand after a round."""
    after, wanted = dict(draft.memory.field_conflicts), _put_backs(draft.events)
    for outcome in outcomes:
        key = key_of(outcome.action)
        if outcome.error is None and key in wanted:
            times = after[key].times + 1 if key in after else 1
            cause = after[key].cause if key in after else wanted[key].message.partition(";")[0]
            retry_at = snapshot.monotonic + pause_s(
                times, PUT_BACKS[EventReason(wanted[key].reason)]
            )
            after[key] = FieldConflict(cause, times, snapshot.monotonic, retry_at)
    return after


def pause_s(times: int, longest_s: float) -> float:
    """How long the next put-back waits after so many."""
    return 0.0 if times < FREE else min(longest_s, 2.0 ** min(times - FREE, 10))


def shown(conflicts: Mapping[str, FieldConflict]) -> list[str]:
    """What is worth a condition: who does what, without numbers that change."""
    return sorted(conflict.cause for conflict in conflicts.values() if conflict.times >= FREE)


def _put_backs(events: Iterable[Event]) -> dict[str, Event]:
    return {key: event for event in events if event.reason in PUT_BACKS for key in event.after}


def _told(
    event: Event, conflicts: Mapping[str, FieldConflict], waiting: Mapping[str, float]
) -> Event:
    """The put-back's Event; from the free ones on it says how often, and when the next one is."""
    if event.reason not in PUT_BACKS:
        return event
    (key,) = event.after or ("",)
    times = conflicts[key].times + 1 if key in conflicts else 1
    if key in waiting or times < FREE:
        return event
    longest_s = PUT_BACKS[EventReason(event.reason)]
    again = pause_s(times, longest_s)
    often = f"{times} times in a row" if again < longest_s else "again and again"
    message = f"{event.message}. This happened {often}: the next put-back waits {again:.0f} s"
    return replace(event, message=message)
