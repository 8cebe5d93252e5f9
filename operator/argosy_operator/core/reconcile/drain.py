"""Steps: Deployments move to their targets, and old revisions leave once the new one serves.

`victims.next_step` says what comes next for one Deployment; here that becomes actions and Events. A
new revision, or another mode, starts beside the old one. When it serves, the old pods drain and go.
"""

from collections.abc import Iterable
from dataclasses import replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import (
    AnnotatePod,
    Delete,
    HastenDrain,
    Scale,
    TakeWorkAgain,
    key_of,
)
from argosy_operator.core.fleet.events import Event, EventReason
from argosy_operator.core.fleet.objects import Object, replicas_of, rfc3339
from argosy_operator.core.fleet.ownership import owner_of_replicas
from argosy_operator.core.fleet.pods import OUR_COST, Pod
from argosy_operator.core.fleet.revision import drain_timeout_s
from argosy_operator.core.fleet.snapshot import Snapshot, role_of
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.steps import StepReason
from argosy_operator.core.reconcile.targets.spec import by_law
from argosy_operator.core.reconcile.victims import NextStep, changes_role, next_step

LOOK_AT_DRAINS_S = 1.0
"""How often to look whether a draining pod has finished. Engines report no event when they do."""


def scale_deployments(snapshot: Snapshot, draft: Draft) -> Draft:
    """Move each role's Deployment of the current revision to its target."""
    draft = replace(draft, memory=replace(draft.memory, ask_loads=False))
    moves = list[str]()
    for role, wanted in draft.targets.items():
        deployment = snapshot.deployment(role)
        if deployment is not None and role not in draft.settled:
            number_first, target = (
                _number_first(snapshot, draft, role),
                draft.held.get(role, wanted),
            )
            draft, move = _toward(snapshot, draft, deployment, target, number_first)
            moves += [move] if move else []
    if moves:
        return draft.step(StepReason.SCALING_DEPLOYMENTS, "; ".join(moves))
    message = ", ".join(f"{role} {target}" for role, target in draft.targets.items())
    return draft.step(StepReason.DEPLOYMENTS_AT_TARGET, message)


def _number_first(snapshot: Snapshot, draft: Draft, role: RoleName) -> str | None:
    """The key of the action that writes the target to the ServingRole, under the scaling law.

    It must succeed first: if the operator died without it, the next round would find the old number
    in the ServingRole and go back to it.
    """
    if not by_law(snapshot.fleet.spec):
        return None
    name = names.serving_role(snapshot.fleet.name, role)
    scales = (a for a in draft.actions if isinstance(a, Scale))
    return next((key_of(a) for a in scales if (a.kind, a.name) == ("ServingRole", name)), None)


def retire_old_revisions(snapshot: Snapshot, draft: Draft) -> Draft:
    """Old Deployments keep serving until the new ones do; then they drain, shrink and go."""
    old = snapshot.retired()
    if not old:
        return draft.step(StepReason.NO_OLD_REVISION, f"revision {snapshot.revision} is alone")
    serving = {r: sum(pod.serving for pod in snapshot.current(r)) for r in draft.targets}
    ready = all(serving[role] >= target for role, target in draft.targets.items())
    moves = list[str]()
    for deployment in old:
        replicas, pods = replicas_of(deployment), snapshot.pods_of(deployment)
        meta = deployment["metadata"]
        if replicas == 0 and not pods:
            event = Event(EventReason.ROLLED_OUT, f"the last pod of {meta['name']} is gone")
            delete = Delete("Deployment", meta["name"], meta["uid"])
            draft, move = draft.event(event).act(delete), f"delete {meta['name']}"
        else:
            draft, move = _toward(snapshot, draft, deployment, 0 if ready else replicas)
        moves += [move] if move else []
    names_of_old = ", ".join(deployment["metadata"]["name"] for deployment in old)
    if ready:
        return draft.step(StepReason.RETIRING_OLD_REVISION, "; ".join(moves) or names_of_old)
    progress = ", ".join(f"{n} of {draft.targets[role]} {role}" for role, n in serving.items())
    message = f"{progress} pods of revision {snapshot.revision} serve; {names_of_old} serves on"
    return draft.step(StepReason.WAITING_FOR_NEW_REVISION, message)


def _toward(
    snapshot: Snapshot, draft: Draft, deployment: Object, target: int, after: str | None = None
) -> tuple[Draft, str]:
    """The draft with the next actions for one Deployment, and what they do in words.

    `after` is the key of an action that must succeed before.
    """
    name, replicas = deployment["metadata"]["name"], replicas_of(deployment)
    # A picker learns that a pod leaves from its deletion; the pod finishes its answers after that.
    by_pool = snapshot.fleet.spec.picks_by_pool
    timeout_s = 0 if by_pool else drain_timeout_s(snapshot.fleet, deployment)
    pods = snapshot.pods_of(deployment)
    order = snapshot.fleet.spec.drain.victim_order
    step = next_step(replicas, target, pods, snapshot.loads, snapshot.now, timeout_s, order)
    changing = tuple(pod for pod in step.recall if changes_role(pod, snapshot.loads))
    if changing:
        step = replace(step, recall=tuple(pod for pod in step.recall if pod not in changing))
        draft = draft.within(LOOK_AT_DRAINS_S)
    who = owner_of_replicas(deployment)
    if replicas != target and who not in (None, names.FIELD_MANAGER):
        message = (
            f"{who} scaled Deployment {name} to {replicas}; it goes back to {target}. "
            f"Scale the ServingRole instead, with spec.autoscaling.policy External"
        )
        key = key_of(Scale("Deployment", name, target))
        after_it = frozenset() if step.replicas is None else frozenset({key})
        draft = draft.event(Event(EventReason.PUT_BACK, message, True, after_it))
    draft = _pods(snapshot, draft, step, role_of(deployment), after)
    if step.replicas is not None:
        # Fewer pods only if nothing was written since the snapshot: the choice of pods rests on it.
        version = deployment["metadata"]["resourceVersion"] if step.replicas < replicas else None
        draft = draft.act(Scale("Deployment", name, step.replicas, version, after))
    if step.ask:
        draft = replace(draft, memory=replace(draft.memory, ask_loads=True)).within(0.0)
    if step.leaving:
        draft = replace(draft, leaving=draft.leaving + step.leaving).within(LOOK_AT_DRAINS_S)
    return draft, _in_words(name, replicas, step)


def _in_words(name: str, replicas: int, step: NextStep) -> str:
    parts = list[str]()
    if step.replicas is not None:
        parts.append(f"{replicas} → {step.replicas}")
    if step.recall:
        parts.append(f"calls back {_names(step.recall)}")
    if step.ask:
        parts.append("asks its engines how busy they are")
    if step.leaving:
        parts.append(f"drains {_names(step.leaving)}")
    return f"{name} {', '.join(parts)}" if parts else ""


def _pods(snapshot: Snapshot, draft: Draft, step: NextStep, role: str, after: str | None) -> Draft:
    """Add what must be done to single pods: mark them, call them back, hasten their engines."""
    for pod in step.recall:
        unmarked = {names.DRAIN: None, names.DELETION_COST: None}
        draft = draft.act(AnnotatePod(pod.name, pod.uid, unmarked, after))
        if pod.ip and pod.admin:
            draft = draft.act(TakeWorkAgain(pod.name, pod.ip, pod.uid))
    for pod in step.mark:
        began = rfc3339(snapshot.now if pod.drain_at is None else pod.drain_at)
        values = {names.DRAIN: began, names.DELETION_COST: OUR_COST}
        draft = draft.act(AnnotatePod(pod.name, pod.uid, values, after))
    for pod in (*step.mark, *step.hasten):
        if pod.ip and pod.admin and not snapshot.fleet.spec.picks_by_pool:
            draft = draft.act(HastenDrain(pod.name, pod.ip, pod.uid))
    if step.recall:
        message = f"{role} pods serve on: {_names(step.recall)}"
        draft = draft.event(Event(EventReason.CALLED_BACK, message, after=_marks(step.recall)))
    if step.mark:
        message = f"{role} pods finish their answers: {_names(step.mark)}"
        draft = draft.event(Event(EventReason.DRAINING, message, after=_marks(step.mark)))
    return draft


def _names(pods: Iterable[Pod]) -> str:
    return ", ".join(pod.name for pod in pods)


def _marks(pods: Iterable[Pod]) -> frozenset[str]:
    """Keys of the actions that annotate these pods."""
    return frozenset(key_of(AnnotatePod(pod.name, pod.uid, {})) for pod in pods)
