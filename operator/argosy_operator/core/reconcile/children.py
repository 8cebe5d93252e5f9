"""Step: every child is there and looks as rendered; a foreign namesake is named and left alone.

A child that is missing is created; a field of ours that somebody changed is put back, with an Event
that names who did it; everything else on the object is left to its owners.
"""

from dataclasses import replace
from typing import Any

from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import Action, Apply, Create, Delete, Outcome, key_of
from argosy_operator.core.fleet.events import Event, EventReason
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.core.fleet.objects import ChildKey, Object, child_key, digest
from argosy_operator.core.fleet.ownership import (
    APPLIED,
    changed_by,
    differences,
    readable,
    signed,
)
from argosy_operator.core.fleet.snapshot import Snapshot, role_of
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.failures import TAKEN_LOOK_S

# Children with replicas are created with them; later these are turned through /scale only.
SCALED = ("Deployment", "ServingRole")


def apply_children(snapshot: Snapshot, draft: Draft) -> Draft:
    """What does not depend on the number of pods, and the Deployments that exist already."""
    for wanted in snapshot.wanted:
        if wanted["kind"] != "ServingRole" or child_key(wanted) in snapshot.children:
            draft = apply_child(snapshot, draft, wanted)
    for wanted in snapshot.engines.values():
        if child_key(wanted) in snapshot.children:
            draft = apply_child(snapshot, draft, wanted)
    return _remove_leftovers(snapshot, draft)


def create_workloads(snapshot: Snapshot, draft: Draft) -> Draft:
    """ServingRoles and Deployments that do not exist, with the wanted number of pods."""
    handles = [obj for obj in snapshot.wanted if obj["kind"] == "ServingRole"]
    for wanted in (*handles, *snapshot.engines.values()):
        if child_key(wanted) not in snapshot.children:
            obj = signed(wanted)
            role: Any = role_of(wanted)
            spec = {**obj["spec"], "replicas": draft.targets[role]}
            create = Create({**obj, "spec": spec})
            draft = _event_recreated(snapshot, draft, wanted, create).act(create)
    return draft


def apply_child(snapshot: Snapshot, draft: Draft, wanted: Object) -> Draft:
    """The order, if any, that brings one existing or missing child to what it shall be."""
    key, obj = child_key(wanted), signed(wanted)
    live = snapshot.children.get(key)
    if live is None:
        return _event_recreated(snapshot, draft, wanted, Apply(obj)).act(Apply(obj))
    if not snapshot.is_ours(live):
        return replace(draft, foreign=(*draft.foreign, key)).within(TAKEN_LOOK_S)
    if "deletionTimestamp" in live["metadata"]:
        return draft.within(2.0)  # comes back when the old one is gone
    found = list(differences(obj, live))
    if not found or snapshot.memory.accepted_drift.get(key) == drift_digest(obj, live):
        return draft
    ours_changed = [path for path in found if APPLIED not in path]
    rendered_same = not any(APPLIED in path for path in found)
    apply = Apply(obj, live["metadata"]["uid"])
    if ours_changed and rendered_same:
        who = changed_by(live, ours_changed[0])
        message = (
            f"{who} changed {readable(ours_changed[0])} of {key[0]} {key[1]}; it was put back. "
            f"Change the ServingDeployment instead"
        )
        draft = draft.event(Event(EventReason.PUT_BACK, message, True, frozenset({key_of(apply)})))
    return draft.act(apply)


def learn_accepted_drift(memory: LoopMemory, outcomes: tuple[Outcome, ...]) -> LoopMemory:
    """Differences that the API server (or a webhook) keeps after our apply are accepted until one
    side changes; otherwise the two would take turns for ever."""
    accepted: dict[ChildKey, str] = dict(memory.accepted_drift)
    for outcome in outcomes:
        if isinstance(outcome.action, Apply) and outcome.applied is not None:
            wanted = outcome.action.obj
            accepted.pop(child_key(wanted), None)
            if next(differences(wanted, outcome.applied), None) is not None:
                accepted[child_key(wanted)] = drift_digest(wanted, outcome.applied)
    return replace(memory, accepted_drift=accepted)


def drift_digest(wanted: Object, live: Object) -> str:
    return digest([sorted(map(readable, differences(wanted, live))), wanted])


def _remove_leftovers(snapshot: Snapshot, draft: Draft) -> Draft:
    """Handles and budgets of roles for which nothing runs any more."""
    kept = {child_key(obj) for obj in snapshot.wanted}
    running = {role_of(child) for child in snapshot.retired()}
    for kind in ("ServingRole", "PodDisruptionBudget"):
        for name, child in snapshot.owned(kind).items():
            if (kind, name) not in kept and role_of(child) not in running:
                draft = draft.act(Delete(kind, name, child["metadata"]["uid"]))
    return draft


def _event_recreated(snapshot: Snapshot, draft: Draft, wanted: Object, action: Action) -> Draft:
    """Tell that a child was created again, when this fleet has been running already."""
    known = snapshot.fleet.status.observed_generation == snapshot.fleet.metadata.generation
    revision = (wanted["metadata"].get("labels") or {}).get(names.REVISION)
    if not known or (revision and revision not in _revisions_shown(snapshot)):
        return draft
    message = f"{wanted['kind']} {wanted['metadata']['name']} was gone; it was created again"
    return draft.event(Event(EventReason.CREATED_AGAIN, message, True, frozenset({key_of(action)})))


def _revisions_shown(snapshot: Snapshot) -> set[str]:
    roles = snapshot.fleet.status.roles
    return {r.revision for r in (roles.prefill, roles.decode, roles.colocated) if r is not None}
