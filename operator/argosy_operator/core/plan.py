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
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.children import (
    apply_children,
    create_workloads,
    learn_accepted_drift,
)
from argosy_operator.core.reconcile.draft import LOOK_AGAIN_S, Draft
from argosy_operator.core.reconcile.drain import retire_old_revisions, scale_deployments
from argosy_operator.core.reconcile.failures import (
    back_off_failed_actions,
    learn_failures,
    next_try_s,
    taken_look_s,
)
from argosy_operator.core.reconcile.field_conflicts import (
    back_off_field_conflicts,
    learn_field_conflicts,
)
from argosy_operator.core.reconcile.targets import choose_targets, scale_roles


def skip_if_deleting(snapshot: Snapshot, draft: Draft) -> Draft:
    """A fleet that is being deleted is Kubernetes' business: its children go with it."""
    if snapshot.fleet.metadata.deletion_timestamp is not None:
        return replace(draft, final=True)
    return draft


def skip_if_paused(snapshot: Snapshot, draft: Draft) -> Draft:
    """A paused fleet is looked at and reported, and nothing is written but its status."""
    if snapshot.fleet.spec.paused:
        memory = replace(snapshot.memory, failed={})
        return replace(
            draft, actions=(), events=(), memory=memory, scaled=False, wake_s=LOOK_AGAIN_S
        )
    return draft


@dataclass(frozen=True, slots=True)
class Link:
    """One step of the chain and what it promises."""

    step: Callable[[Snapshot, Draft], Draft]
    promise: str


CHAIN = (
    Link(skip_if_deleting, "make sure that nothing is written for a fleet that is being deleted"),
    Link(apply_children, "make sure that every child looks as rendered, and foreign ones stay"),
    Link(choose_targets, "make sure that every role has a number of pods, and a reason for it"),
    Link(create_workloads, "make sure that ServingRoles and Deployments exist, with that number"),
    Link(scale_roles, "make sure that the ServingRoles say it, unless others turn them"),
    Link(scale_deployments, "make sure that Deployments go there, without cutting an answer off"),
    Link(
        retire_old_revisions, "make sure that old revisions and modes leave when the new ones serve"
    ),
    Link(
        back_off_failed_actions,
        "make sure that what fails is tried ever more slowly, and nothing else",
    ),
    Link(
        back_off_field_conflicts,
        "make sure that a field over which others fight is put back ever more slowly",
    ),
    Link(skip_if_paused, "make sure that a paused fleet is only looked at"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Orders in sequence, what to tell, when to look again, what to remember, the draft."""

    actions: tuple[Action, ...]
    events: tuple[Event, ...]
    memory: LoopMemory
    wake_s: float
    draft: Draft


def plan(snapshot: Snapshot) -> Plan:
    """The orders that bring the fleet nearer to its spec. Pure; the second plan at the goal is
    empty."""
    draft = Draft(memory=replace(snapshot.memory, failed={}))
    for link in CHAIN:
        before = draft
        draft = link.step(snapshot, draft)
        draft = replace(draft, trace=(*draft.trace, (link.step.__name__, _said(before, draft))))
        if draft.final:
            break
    events, _ = unpublished(draft.events, snapshot.memory.published, snapshot.monotonic)
    return Plan(draft.actions, events, draft.memory, draft.wake_s, draft)


def after(snapshot: Snapshot, planned: Plan, outcomes: tuple[Outcome, ...]) -> Plan:
    """The plan as it was carried out: what is true to tell, and what to remember."""
    done = {key_of(outcome.action) for outcome in outcomes if outcome.error is None}
    true = [event for event in planned.events if not event.after or event.after & done]
    events, published = unpublished(true, snapshot.memory.published, snapshot.monotonic)
    failed = learn_failures(snapshot, planned.memory.failed, outcomes)
    contests = learn_field_conflicts(snapshot, planned.draft, outcomes)
    memory = learn_accepted_drift(planned.memory, outcomes)
    memory = replace(memory, published=published, failed=failed, field_conflicts=contests)
    unscaled = any(
        event.reason == EventReason.SCALED for event in planned.events if event not in true
    )
    draft = replace(planned.draft, memory=memory, scaled=planned.draft.scaled and not unscaled)
    wake_s = min(planned.wake_s, next_try_s(failed, snapshot.monotonic), taken_look_s(outcomes))
    return Plan(planned.actions, events, memory, wake_s, draft)


def _said(before: Draft, draft: Draft) -> str:
    """The step in a few words, for the log at debug level."""
    orders, events = (
        len(draft.actions) - len(before.actions),
        len(draft.events) - len(before.events),
    )
    return f"{orders} orders, {events} events" if orders or events else "as it should be"
