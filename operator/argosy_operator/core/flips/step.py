"""Step: where one role has a pod too many and the other lacks one, an empty pod changes its role.

The order of the writes is what keeps the pod: the ReplicaSet that gets it must want one more before
the labels change, and the one that loses it must have let go of it before it wants one fewer. All
that is in between shows in the cluster: replicas, labels, owner and the drain's marks. A round that
finds them goes on from there.
"""

from dataclasses import replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import FlipRole, Scale, key_of
from argosy_operator.core.fleet.events import Event, EventReason
from argosy_operator.core.fleet.objects import Object, replicas_of, rfc3339
from argosy_operator.core.fleet.pods import FLIPPED_COST, Pod
from argosy_operator.core.fleet.snapshot import ReplicaSet, Snapshot
from argosy_operator.core.flips.choose import Choice, Pace, Pool, choose
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.steps import StepReason

LOOK_AT_FLIP_S = 0.2
"""How soon to look whether Kubernetes' controllers have followed."""


def flip_roles(snapshot: Snapshot, draft: Draft) -> Draft:
    """Flip an empty pod where one role has one too many and the other lacks one."""
    spec = snapshot.fleet.spec
    if not spec.flips_roles:
        message = "spec.autoscaling.roleFlip is false, or the fleet has no prefill and decode pods"
        return draft.step(StepReason.ROLE_FLIP_OFF, message)
    if moving := _moving(snapshot):
        message = f"{moving.name} still belongs to the ReplicaSet of its old role"
        draft = replace(draft, settled=frozenset(draft.targets)).within(LOOK_AT_FLIP_S)
        return draft.step(StepReason.ROLE_CHANGING, message)
    pools = (_pool(snapshot, draft, "prefill"), _pool(snapshot, draft, "decode"))
    pace = Pace(
        snapshot.now,
        spec.autoscaling.cold_start.seconds,
        spec.autoscaling.scale_down.stabilization.seconds,
    )
    choice = choose(pools, snapshot.loads, pace, _hindrance(snapshot, draft))
    if choice.pod is not None:
        draft = _flip(snapshot, draft, choice, choice.pod)
    elif choice.taker is not None:
        # One pod fewer is started: the flip is to be faster than that.
        written = replicas_of(_deployment(snapshot, choice.taker))
        least = max(written, draft.targets[choice.taker] - 1)
        draft = replace(draft, held={choice.taker: least})
    return draft.step(choice.reason, choice.message)


def _flip(snapshot: Snapshot, draft: Draft, choice: Choice, pod: Pod) -> Draft:
    """The next write of the flip. The roles of both pods are settled for this round."""
    taker = choice.taker
    assert taker is not None, "a pod to flip has a role to go to"
    draft = replace(draft, settled=frozenset(draft.targets)).within(LOOK_AT_FLIP_S)
    target, deployment = draft.targets[taker], _deployment(snapshot, taker)
    if replicas_of(deployment) < target:
        return draft.act(Scale("Deployment", deployment["metadata"]["name"], target))
    replica_set = _replica_set(snapshot, deployment)
    if replica_set is None or not replica_set.seen or replica_set.replicas < target:
        return draft
    labels = {names.ROLE: taker, names.TEMPLATE_HASH: replica_set.template_hash}
    notes = {names.FLIPPED: rfc3339(snapshot.now), names.DELETION_COST: FLIPPED_COST}
    flip = FlipRole(pod.name, pod.uid, labels, notes)
    return draft.act(flip).event(
        Event(EventReason.FLIPPED, choice.message, after=frozenset({key_of(flip)}))
    )


def _hindrance(snapshot: Snapshot, draft: Draft) -> str | None:
    """Why no pod may be flipped now, whatever the pods look like."""
    if draft.rolling:
        return "a rollout is in progress"
    for role in ("prefill", "decode"):
        deployment = snapshot.deployment(role)
        if deployment is None or _replica_set(snapshot, deployment) is None:
            name = names.engine_deployment(snapshot.fleet.name, role, snapshot.revision)
            return f"Deployment {name} does not have exactly one ReplicaSet in use"
    replaced = (pod for pod in snapshot.pods if pod.recycled_at is not None and pod.alive)
    if (pod := next(replaced, None)) is not None:
        return f"{pod.name} is being replaced, because its handovers fail"
    numbers = [a for a in draft.actions if isinstance(a, Scale) and a.kind == "ServingRole"]
    if numbers:
        return "the targets are written to the ServingRoles first"
    if any(key.startswith("AnnotatePod ") for key in snapshot.memory.failed):
        return "a pod could not be marked to drain: see the condition about the failed write"
    return None


def _moving(snapshot: Snapshot) -> Pod | None:
    """A pod that has the labels of one role and is owned by the Deployment of another."""
    for pod in snapshot.pods:
        owner = snapshot.replica_sets.get(pod.owner)
        if owner is None or pod.revision != snapshot.revision or not pod.alive:
            continue
        if pod.flipped_at is not None and owner.role != pod.role:
            return pod
    return None


def _replica_set(snapshot: Snapshot, deployment: Object) -> ReplicaSet | None:
    """The ReplicaSet in use; None if there is none, or more than one."""
    uid = deployment["metadata"]["uid"]
    sets = [child for child in snapshot.replica_sets.values() if child.deployment == uid]
    used = [child for child in sets if child.replicas > 0] or sets
    return used[0] if len(used) == 1 else None


def _pool(snapshot: Snapshot, draft: Draft, role: RoleName) -> Pool:
    deployment = snapshot.deployment(role)
    replicas = 0 if deployment is None else replicas_of(deployment)
    return Pool(role, draft.targets[role], replicas, snapshot.current(role))


def _deployment(snapshot: Snapshot, role: RoleName) -> Object:
    found = snapshot.deployment(role)
    assert found is not None, "a flip is only chosen between Deployments that exist"
    return found
