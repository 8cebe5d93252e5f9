"""Step: Deployments follow the targets, and old ones leave once the new ones serve.

`victims.next_step` says what is next for one Deployment; here that becomes orders and Events. A new
revision, or another mode, comes up beside the old one first; then the old pods drain and go.
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
from argosy_operator.core.reconcile.targets import by_law
from argosy_operator.core.reconcile.victims import Step, next_step

LOOK_AT_DRAINS_S = 1.0


def scale_deployments(snapshot: Snapshot, draft: Draft) -> Draft:
    """Each role's Deployment of the current revision goes to its target."""
    draft = replace(draft, memory=replace(draft.memory, ask_loads=False))
    for role, target in draft.targets.items():
        deployment = snapshot.deployment(role)
        if deployment is not None:
            draft = _toward(
                snapshot, draft, deployment, target, _number_first(snapshot, draft, role)
            )
    return draft


def _number_first(snapshot: Snapshot, draft: Draft, role: RoleName) -> str | None:
    """The order that makes a decision of the law outlive us. Without it the next round would find
    the old number in the ServingRole and go back there."""
    if not by_law(snapshot.fleet.spec):
        return None
    name = names.serving_role(snapshot.fleet.name, role)
    orders = (a for a in draft.actions if isinstance(a, Scale))
    return next((key_of(a) for a in orders if (a.kind, a.name) == ("ServingRole", name)), None)


def retire_old_revisions(snapshot: Snapshot, draft: Draft) -> Draft:
    """Old Deployments keep serving until the new ones do; then they drain, shrink and go."""
    old = snapshot.retired()
    if not old:
        return draft
    ready = all(
        sum(pod.serving for pod in snapshot.current(role)) >= target
        for role, target in draft.targets.items()
    )
    for deployment in old:
        replicas, pods = replicas_of(deployment), snapshot.pods_of(deployment)
        meta = deployment["metadata"]
        if replicas == 0 and not pods:
            message = f"the last pod of {meta['name']} is gone"
            draft = draft.event(Event(EventReason.ROLLED_OUT, message))
            draft = draft.act(Delete("Deployment", meta["name"], meta["uid"]))
        else:
            draft = _toward(snapshot, draft, deployment, 0 if ready else replicas)
    return draft


def _toward(
    snapshot: Snapshot, draft: Draft, deployment: Object, target: int, after: str | None = None
) -> Draft:
    name, replicas = deployment["metadata"]["name"], replicas_of(deployment)
    step = next_step(
        replicas,
        target,
        snapshot.pods_of(deployment),
        snapshot.loads,
        snapshot.now,
        drain_timeout_s(snapshot.fleet, deployment),
    )
    who = owner_of_replicas(deployment)
    if replicas != target and who not in (None, names.FIELD_MANAGER):
        message = (
            f"{who} scaled Deployment {name} to {replicas}; it goes back to {target}. "
            f"Scale the ServingRole instead, with spec.autoscaling.policy External"
        )
        order = key_of(Scale("Deployment", name, target))
        after_it = frozenset() if step.replicas is None else frozenset({order})
        draft = draft.event(Event(EventReason.PUT_BACK, message, True, after_it))
    draft = _pods(snapshot, draft, step, role_of(deployment), after)
    if step.replicas is not None:
        # Fewer pods only if nobody wrote since we looked: the choice of pods rests on that look.
        version = deployment["metadata"]["resourceVersion"] if step.replicas < replicas else None
        draft = draft.act(Scale("Deployment", name, step.replicas, version, after))
    if step.ask:
        draft = replace(draft, memory=replace(draft.memory, ask_loads=True)).within(0.0)
    if step.leaving:
        draft = replace(draft, leaving=draft.leaving + step.leaving).within(LOOK_AT_DRAINS_S)
    return draft


def _pods(snapshot: Snapshot, draft: Draft, step: Step, role: str, after: str | None) -> Draft:
    for pod in step.recall:
        gone = {names.DRAIN: None, names.DELETION_COST: None}
        draft = draft.act(AnnotatePod(pod.name, pod.uid, gone, after))
        if pod.ip:
            draft = draft.act(TakeWorkAgain(pod.name, pod.ip))
    for pod in step.mark:
        began = rfc3339(snapshot.now if pod.drain_at is None else pod.drain_at)
        values = {names.DRAIN: began, names.DELETION_COST: OUR_COST}
        draft = draft.act(AnnotatePod(pod.name, pod.uid, values, after))
    for pod in (*step.mark, *step.hasten):
        if pod.ip:
            draft = draft.act(HastenDrain(pod.name, pod.ip))
    if step.recall:
        called = ", ".join(pod.name for pod in step.recall)
        message = f"{role} pods serve on: {called}"
        draft = draft.event(Event(EventReason.CALLED_BACK, message, after=_marks(step.recall)))
    if step.mark:
        chosen = ", ".join(pod.name for pod in step.mark)
        message = f"{role} pods finish their answers: {chosen}"
        draft = draft.event(Event(EventReason.DRAINING, message, after=_marks(step.mark)))
    return draft


def _marks(pods: Iterable[Pod]) -> frozenset[str]:
    return frozenset(key_of(AnnotatePod(pod.name, pod.uid, {})) for pod in pods)
