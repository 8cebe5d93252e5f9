"""plan(): from a Snapshot to actions. CHAIN documents what the operator does.

Each step takes the snapshot and the draft of the steps before it. It adds actions and events, and
reports a reason and a message (`Draft.step`). No step carries anything out. Steps look only at what
exists now, so the operator may die between any two actions: the next plan continues from what it
finds. Read next: `argosy_law/decide.py`, then `shell/loop.py`.
"""

from dataclasses import dataclass, replace

from argosy_operator.core.snapshot.actions import (
    Action,
    Event,
    EventReason,
    Outcome,
    key_of,
    keys_of,
    unpublished,
)
from argosy_operator.core.snapshot.snapshot import LoopMemory, Snapshot
from argosy_operator.core.steps.children import (
    apply_children,
    await_settings,
    create_workloads,
    learn_accepted_drift,
)
from argosy_operator.core.steps.draft import LOOK_AGAIN_S, Draft, StepReason
from argosy_operator.core.steps.drain import retire_old_revisions, scale_deployments
from argosy_operator.core.steps.failed_rollouts import go_back
from argosy_operator.core.steps.failures import (
    back_off_failed_actions,
    back_off_field_conflicts,
    learn_failures,
    learn_field_conflicts,
    look_at_taken_names_s,
    next_try_s,
)
from argosy_operator.core.steps.flips import flip_roles
from argosy_operator.core.steps.gpu_types import choose_gpu_types
from argosy_operator.core.steps.models import fetch_model
from argosy_operator.core.steps.recycling import recycle_pods
from argosy_operator.core.steps.refusals import heed_refusal, record_history
from argosy_operator.core.steps.rollout import roll_out
from argosy_operator.core.steps.targets import (
    choose_targets,
    learn_written,
    read_learnt,
    scale_roles,
    write_learnt,
)


def skip_if_deleting(snapshot: Snapshot, draft: Draft) -> Draft:
    """A fleet that is being deleted gets no actions: Kubernetes deletes its children with it."""
    deleted_at = snapshot.fleet.metadata.deletion_timestamp
    if deleted_at is None:
        return draft.step(StepReason.NOT_BEING_DELETED, "the fleet is not being deleted")
    message = f"deleted at {deleted_at}; Kubernetes deletes the children"
    return replace(draft, final=True).step(StepReason.BEING_DELETED, message)


def skip_if_paused(snapshot: Snapshot, draft: Draft) -> Draft:
    """A paused fleet is read and reported, and nothing is written but its status."""
    if not snapshot.fleet.spec.paused:
        return draft.step(StepReason.NOT_PAUSED, f"to do: {keys_of(draft.actions) or 'nothing'}")
    message = f"spec.paused is true; left out: {keys_of(draft.actions) or 'nothing'}"
    memory = replace(snapshot.memory, failed={})
    draft = replace(draft, actions=(), events=(), memory=memory, scaled=False, wake_s=LOOK_AGAIN_S)
    return draft.step(StepReason.PAUSED, message)


CHAIN = (
    skip_if_deleting,
    heed_refusal,
    apply_children,
    fetch_model,
    read_learnt,
    choose_targets,
    roll_out,
    go_back,
    create_workloads,
    scale_roles,
    choose_gpu_types,
    flip_roles,
    recycle_pods,
    scale_deployments,
    retire_old_revisions,
    record_history,
    await_settings,
    write_learnt,
    back_off_failed_actions,
    back_off_field_conflicts,
    skip_if_paused,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round does."""

    actions: tuple[Action, ...]
    """In the order in which they are carried out."""
    events: tuple[Event, ...]
    """Those that were not published lately."""
    memory: LoopMemory
    """What the next round will know."""
    wake_s: float
    """The next round comes after so many seconds at the latest."""
    draft: Draft
    """The rest of what the steps found, for status; `draft.steps` is what each one reported."""


def plan(snapshot: Snapshot) -> Plan:
    """The actions that bring the fleet closer to its spec; none if it is there."""
    draft = Draft(memory=replace(snapshot.memory, failed={}))
    for step in CHAIN:
        draft = step(snapshot, replace(draft, running=step.__name__))
        if draft.final:
            break
    events, _ = unpublished(draft.events, snapshot.memory.published, snapshot.monotonic)
    return Plan(draft.actions, events, draft.memory, draft.wake_s, draft)


def conclude(snapshot: Snapshot, planned: Plan, outcomes: tuple[Outcome, ...]) -> Plan:
    """The plan after its execution: only events that came true, and what the outcomes teach."""
    done = {key_of(outcome.action) for outcome in outcomes if outcome.error is None}
    true = [event for event in planned.events if not event.after or event.after & done]
    events, published = unpublished(true, snapshot.memory.published, snapshot.monotonic)
    failed = learn_failures(snapshot, planned.memory.failed, outcomes)
    conflicts = learn_field_conflicts(snapshot, planned.draft, outcomes)
    memory = learn_accepted_drift(planned.memory, outcomes)
    memory = learn_written(snapshot, memory, outcomes)
    memory = replace(memory, published=published, failed=failed, field_conflicts=conflicts)
    untrue = [event for event in planned.events if event not in true]
    scaled = planned.draft.scaled and all(e.reason != EventReason.SCALED for e in untrue)
    draft = replace(planned.draft, memory=memory, scaled=scaled)
    next_s = min(next_try_s(failed, snapshot.monotonic), look_at_taken_names_s(outcomes))
    return Plan(planned.actions, events, memory, min(planned.wake_s, next_s), draft)
