"""plan(): from a Snapshot to orders. The chain below documents what the operator does.

Each step takes the snapshot and the draft of the steps before it and adds orders, Events and a line
for the trace; none of them does anything. Steps look only at what is there now, so the operator may
die between any two orders: the next plan goes on from what it finds. Read next:
`core/scaling/decide.py`, then `shell/loop.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from argosy_operator.core.fleet.actions import Action, Outcome, key_of
from argosy_operator.core.fleet.events import Event, EventReason, unpublished
from argosy_operator.core.fleet.snapshot import Memory, Snapshot
from argosy_operator.core.reconcile.children import create_scaled, learn_settled, own_children
from argosy_operator.core.reconcile.contests import contest_slowly, learn_contests
from argosy_operator.core.reconcile.draft import LOOK_AGAIN_S, Draft
from argosy_operator.core.reconcile.drain import follow_targets, retire_old
from argosy_operator.core.reconcile.failures import (
    learn_failures,
    next_try_s,
    taken_look_s,
    wait_for_failed,
)
from argosy_operator.core.reconcile.targets import choose_targets, write_targets


def leave_alone(s: Snapshot, d: Draft) -> Draft:
    """A fleet that is being deleted is Kubernetes' business: its children go with it."""
    if s.fleet.metadata.deletion_timestamp is not None:
        return replace(d, final=True)
    return d


def hands_off(s: Snapshot, d: Draft) -> Draft:
    """A paused fleet is looked at and reported, and nothing is written but its status."""
    if s.fleet.spec.paused:
        memory = replace(s.memory, failed={})
        return replace(d, actions=(), events=(), memory=memory, scaled=False, wake_s=LOOK_AGAIN_S)
    return d


@dataclass(frozen=True, slots=True)
class Link:
    """One step of the chain and what it promises."""

    step: Callable[[Snapshot, Draft], Draft]
    promise: str


CHAIN = (
    Link(leave_alone, "make sure that nothing is written for a fleet that is being deleted"),
    Link(own_children, "make sure that every child looks as rendered, and foreign ones stay"),
    Link(choose_targets, "make sure that every role has a number of pods, and a reason for it"),
    Link(create_scaled, "make sure that ServingRoles and Deployments exist, with that number"),
    Link(write_targets, "make sure that the ServingRoles say it, unless others turn them"),
    Link(follow_targets, "make sure that Deployments go there, without cutting an answer off"),
    Link(retire_old, "make sure that old revisions and modes leave when the new ones serve"),
    Link(wait_for_failed, "make sure that what fails is tried ever more slowly, and nothing else"),
    Link(
        contest_slowly,
        "make sure that a field over which others fight is put back ever more slowly",
    ),
    Link(hands_off, "make sure that a paused fleet is only looked at"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Orders in sequence, what to tell, when to look again, what to remember, the draft."""

    actions: tuple[Action, ...]
    events: tuple[Event, ...]
    memory: Memory
    wake_s: float
    draft: Draft


def plan(s: Snapshot) -> Plan:
    """The orders that bring the fleet nearer to its spec. Pure; the second plan at the goal is
    empty."""
    d = Draft(memory=replace(s.memory, failed={}))
    for link in CHAIN:
        before = d
        d = link.step(s, d)
        d = replace(d, trace=(*d.trace, (link.step.__name__, _said(before, d))))
        if d.final:
            break
    events, _ = unpublished(d.events, s.memory.published, s.monotonic)
    return Plan(d.actions, events, d.memory, d.wake_s, d)


def after(s: Snapshot, p: Plan, outcomes: tuple[Outcome, ...]) -> Plan:
    """The plan as it was carried out: what is true to tell, and what to remember."""
    done = {key_of(outcome.action) for outcome in outcomes if outcome.error is None}
    true = [event for event in p.events if not event.after or event.after & done]
    events, published = unpublished(true, s.memory.published, s.monotonic)
    failed = learn_failures(s, p.memory.failed, outcomes)
    contests = learn_contests(s, p.draft, outcomes)
    memory = learn_settled(p.memory, outcomes)
    memory = replace(memory, published=published, failed=failed, contests=contests)
    unscaled = any(event.reason == EventReason.SCALED for event in p.events if event not in true)
    draft = replace(p.draft, memory=memory, scaled=p.draft.scaled and not unscaled)
    wake_s = min(p.wake_s, next_try_s(failed, s.monotonic), taken_look_s(outcomes))
    return Plan(p.actions, events, memory, wake_s, draft)


def _said(before: Draft, d: Draft) -> str:
    """The step in a few words, for the log at debug level."""
    orders, events = len(d.actions) - len(before.actions), len(d.events) - len(before.events)
    return f"{orders} orders, {events} events" if orders or events else "as it should be"
