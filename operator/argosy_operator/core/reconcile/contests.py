"""Contests: another writer changes a field of ours each time that it is put back.

Two managers that write one field in turn would load the API server without end and solve nothing.
Some put-backs are free, because people make mistakes; then each waits twice as long as the one
before, an Event tells of each, and a condition names the other side until it has been quiet.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from argosy_operator.core.fleet.actions import Contest, Outcome, key_of
from argosy_operator.core.fleet.events import Event, EventReason
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


def contest_slowly(s: Snapshot, d: Draft) -> Draft:
    """Leave out put-backs whose time has not come; say how long the next one will wait."""
    contests = {
        key: contest
        for key, contest in s.memory.contests.items()
        if s.monotonic - contest.at < QUIET_S
    }
    wanted = _put_backs(d.events)
    waiting = {
        key: contests[key].retry_at - s.monotonic
        for key in wanted
        if key in contests and s.monotonic < contests[key].retry_at
    }
    d = replace(
        d,
        actions=tuple(action for action in d.actions if key_of(action) not in waiting),
        events=tuple(_told(event, contests, waiting) for event in d.events),
        memory=replace(d.memory, contests=contests),
    )
    quiet_in = [contest.at + QUIET_S - s.monotonic for contest in contests.values()]
    return d.within(min([d.wake_s, *waiting.values(), *quiet_in]))


def learn_contests(s: Snapshot, d: Draft, outcomes: Iterable[Outcome]) -> dict[str, Contest]:
    """The contests that stand after a round."""
    after, wanted = dict(d.memory.contests), _put_backs(d.events)
    for outcome in outcomes:
        key = key_of(outcome.action)
        if outcome.error is None and key in wanted:
            times = after[key].times + 1 if key in after else 1
            cause = after[key].cause if key in after else wanted[key].message.partition(";")[0]
            retry_at = s.monotonic + pause_s(times, PUT_BACKS[EventReason(wanted[key].reason)])
            after[key] = Contest(cause, times, s.monotonic, retry_at)
    return after


def pause_s(times: int, longest_s: float) -> float:
    """How long the next put-back waits after so many."""
    return 0.0 if times < FREE else min(longest_s, 2.0 ** min(times - FREE, 10))


def shown(contests: Mapping[str, Contest]) -> list[str]:
    """What is worth a condition: who does what, without numbers that change."""
    return sorted(contest.cause for contest in contests.values() if contest.times >= FREE)


def _put_backs(events: Iterable[Event]) -> dict[str, Event]:
    return {key: event for event in events if event.reason in PUT_BACKS for key in event.after}


def _told(event: Event, contests: Mapping[str, Contest], waiting: Mapping[str, float]) -> Event:
    """The put-back's Event; from the free ones on it says how often, and when the next one is."""
    if event.reason not in PUT_BACKS:
        return event
    (key,) = event.after or ("",)
    times = contests[key].times + 1 if key in contests else 1
    if key in waiting or times < FREE:
        return event
    longest_s = PUT_BACKS[EventReason(event.reason)]
    again = pause_s(times, longest_s)
    often = f"{times} times in a row" if again < longest_s else "again and again"
    message = f"{event.message}. This happened {often}: the next put-back waits {again:.0f} s"
    return replace(event, message=message)
