"""Step: Deployments follow the targets, and old ones leave once the new ones serve.

`victims.follow` says what is next for one Deployment; here that becomes orders and Events. A new
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
from argosy_operator.core.reconcile.victims import Step, follow

LOOK_AT_DRAINS_S = 1.0


def follow_targets(s: Snapshot, d: Draft) -> Draft:
    """Each role's Deployment of the current revision goes to its target."""
    d = replace(d, memory=replace(d.memory, ask_loads=False))
    for role, target in d.targets.items():
        deployment = s.deployment(role)
        if deployment is not None:
            d = _toward(s, d, deployment, target, _number_first(s, d, role))
    return d


def _number_first(s: Snapshot, d: Draft, role: RoleName) -> str | None:
    """The order that makes a decision of the law outlive us. Without it the next round would find
    the old number in the ServingRole and go back there."""
    if not by_law(s.fleet.spec):
        return None
    name = names.serving_role(s.fleet.name, role)
    orders = (a for a in d.actions if isinstance(a, Scale))
    return next((key_of(a) for a in orders if (a.kind, a.name) == ("ServingRole", name)), None)


def retire_old(s: Snapshot, d: Draft) -> Draft:
    """Old Deployments keep serving until the new ones do; then they drain, shrink and go."""
    old = s.retired()
    if not old:
        return d
    ready = all(
        sum(pod.serving for pod in s.current(role)) >= target for role, target in d.targets.items()
    )
    for deployment in old:
        replicas, pods = replicas_of(deployment), s.pods_of(deployment)
        meta = deployment["metadata"]
        if replicas == 0 and not pods:
            message = f"the last pod of {meta['name']} is gone"
            d = d.event(Event(EventReason.ROLLED_OUT, message))
            d = d.act(Delete("Deployment", meta["name"], meta["uid"]))
        else:
            d = _toward(s, d, deployment, 0 if ready else replicas)
    return d


def _toward(
    s: Snapshot, d: Draft, deployment: Object, target: int, after: str | None = None
) -> Draft:
    name, replicas = deployment["metadata"]["name"], replicas_of(deployment)
    step = follow(
        replicas,
        target,
        s.pods_of(deployment),
        s.loads,
        s.now,
        drain_timeout_s(s.fleet, deployment),
    )
    who = owner_of_replicas(deployment)
    if replicas != target and who not in (None, names.FIELD_MANAGER):
        message = (
            f"{who} scaled Deployment {name} to {replicas}; it goes back to {target}. "
            f"Scale the ServingRole instead, with spec.autoscaling.policy External"
        )
        order = key_of(Scale("Deployment", name, target))
        after_it = frozenset() if step.replicas is None else frozenset({order})
        d = d.event(Event(EventReason.PUT_BACK, message, True, after_it))
    d = _pods(s, d, step, role_of(deployment), after)
    if step.replicas is not None:
        # Fewer pods only if nobody wrote since we looked: the choice of pods rests on that look.
        version = deployment["metadata"]["resourceVersion"] if step.replicas < replicas else None
        d = d.act(Scale("Deployment", name, step.replicas, version, after))
    if step.ask:
        d = replace(d, memory=replace(d.memory, ask_loads=True)).within(0.0)
    if step.leaving:
        d = replace(d, leaving=d.leaving + step.leaving).within(LOOK_AT_DRAINS_S)
    return d


def _pods(s: Snapshot, d: Draft, step: Step, role: str, after: str | None) -> Draft:
    for pod in step.recall:
        gone = {names.DRAIN: None, names.DELETION_COST: None}
        d = d.act(AnnotatePod(pod.name, pod.uid, gone, after))
        if pod.ip:
            d = d.act(TakeWorkAgain(pod.name, pod.ip))
    for pod in step.mark:
        began = rfc3339(s.now if pod.drain_at is None else pod.drain_at)
        values = {names.DRAIN: began, names.DELETION_COST: OUR_COST}
        d = d.act(AnnotatePod(pod.name, pod.uid, values, after))
    for pod in (*step.mark, *step.hasten):
        if pod.ip:
            d = d.act(HastenDrain(pod.name, pod.ip))
    if step.recall:
        called = ", ".join(pod.name for pod in step.recall)
        message = f"{role} pods serve on: {called}"
        d = d.event(Event(EventReason.CALLED_BACK, message, after=_marks(step.recall)))
    if step.mark:
        chosen = ", ".join(pod.name for pod in step.mark)
        message = f"{role} pods finish their answers: {chosen}"
        d = d.event(Event(EventReason.DRAINING, message, after=_marks(step.mark)))
    return d


def _marks(pods: Iterable[Pod]) -> frozenset[str]:
    return frozenset(key_of(AnnotatePod(pod.name, pod.uid, {})) for pod in pods)
