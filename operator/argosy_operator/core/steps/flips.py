"""Step: a pod of one role becomes a pod of the other, without a new process.

`flip_roles` gives `choose` the two pools and turns its answer into actions. The pod is one that the
drain has chosen and emptied (`core/steps/drain.py`), so only pods that leave anyway are flipped,
and the role that gives one keeps what its target says (designs/0013-role-flip.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from argosy_law.pace.gates import APART_S
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import Event, EventReason, FlipRole, Scale, key_of
from argosy_operator.core.snapshot.objects import Object, replicas_of, rfc3339
from argosy_operator.core.snapshot.pods import FLIPPED_COST, Load, Pod, removal_order
from argosy_operator.core.snapshot.snapshot import ReplicaSet, Snapshot
from argosy_operator.core.steps.draft import Draft, StepReason
from argosy_operator.core.steps.drain import changes_role, emptied


@dataclass(frozen=True, slots=True)
class Pool:
    """One role of the current revision."""

    role: RoleName
    target: int
    """Replicas that it is to have."""
    replicas: int
    """Those of its Deployment."""
    pods: tuple[Pod, ...]

    @property
    def started(self) -> tuple[Pod, ...]:
        """Pods whose engine runs, be it that it still loads. The others have done nothing yet."""
        return tuple(pod for pod in self.pods if pod.alive and pod.started)

    @property
    def loaded(self) -> tuple[Pod, ...]:
        """Pods whose engine has served, and may have work."""
        return tuple(pod for pod in self.started if pod.probed)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often and how long, in seconds."""

    now: float
    """Since the epoch."""
    cold_start_s: float
    """What a flip must be faster than."""
    dwell_s: float
    """How long after a flip none goes the other way."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do about flips in this round, and why."""

    reason: StepReason
    message: str
    taker: RoleName | None = None
    """The role that lacks a pod; None unless a flip is due or near."""
    pod: Pod | None = None
    """The empty pod that is flipped now."""


def choose(
    pools: tuple[Pool, Pool], loads: Mapping[str, Load | None], pace: Pace, hindrance: str | None
) -> Choice:
    """The flip that is due or near. `hindrance` says why there can be none, whatever the pods."""
    if slow := next((p for pool in pools for p in pool.pods if changes_role(p, loads)), None):
        message = f"{slow.name} is a {slow.role} pod, and its engine finishes to become one"
        return Choice(StepReason.ROLE_CHANGING, message)
    for giver, taker in (pools, pools[::-1]):
        if len(giver.started) > giver.target and _lacks_a_pod(taker, giver, pace):
            hindrance = hindrance or _too_soon(pools, giver.role, pace)
            if hindrance is not None:
                return Choice(StepReason.FLIP_WAITS, hindrance)
            return _between(giver, taker, loads, pace)
    counts = ", ".join(f"{pool.role} {len(pool.started)} of {pool.target}" for pool in pools)
    return Choice(StepReason.NO_FLIP_NEEDED, counts)


def _lacks_a_pod(taker: Pool, giver: Pool, pace: Pace) -> bool:
    """Not if it loses pods itself. Pods that load count as lacking, because an empty pod serves at
    once. When its drain has lasted for a cold start, they are what was started instead."""
    late = pace.now - _drains_since(giver, pace) >= pace.cold_start_s
    there = taker.started if late else taker.loaded
    return len(there) < taker.target and taker.replicas <= taker.target


def _drains_since(giver: Pool, pace: Pace) -> float:
    """When the first of its pods that leave began to drain; now if none does yet."""
    began = (pod.drain_at for pod in giver.started if pod.victim and pod.drain_at is not None)
    return min(began, default=pace.now)


def _between(giver: Pool, taker: Pool, loads: Mapping[str, Load | None], pace: Pace) -> Choice:
    draining = [pod for pod in giver.started if pod.victim]
    empty = [pod for pod in draining if emptied(pod, loads)]
    if empty:
        pod = min(empty, key=lambda pod: (pod.drain_at or 0.0, pod.name))
        if lost := next((one for one in _displaced(pod, taker, pace.now) if one.probed), None):
            message = (
                f"if {pod.name} became a {taker.role} pod, Kubernetes would remove {lost.name}"
            )
            return Choice(StepReason.FLIP_WAITS, f"{message}, which has served")
        message = f"{giver.role} pod {pod.name} is empty and becomes a {taker.role} pod"
        return Choice(StepReason.FLIPPING, message, taker.role, pod)
    if pace.now - _drains_since(giver, pace) >= pace.cold_start_s:
        message = f"a {giver.role} pod drains for longer than a new {taker.role} pod takes to start"
        return Choice(StepReason.FLIP_WAITS, message)
    named = ", ".join(pod.name for pod in draining) or "one that is yet to be chosen"
    message = f"a {taker.role} pod is lacking; it is to be the {giver.role} pod that drains: "
    return Choice(StepReason.FLIP_DRAINS, message + named, taker.role)


def _displaced(pod: Pod, taker: Pool, now: float) -> list[Pod]:
    """The pods that the ReplicaSet of `taker` removes when it gets this one too: pods that load.

    A pod that drains is as good as unready: its engine says so sooner than the API server.
    """
    pods = (*taker.pods, replace(pod, role=taker.role, cost=int(FLIPPED_COST)))
    order = removal_order((replace(p, ready=p.ready and not p.draining) for p in pods), now)
    return order[: max(0, len(order) - taker.target)]


def _too_soon(pools: tuple[Pool, Pool], giver: RoleName, pace: Pace) -> str | None:
    """Why the last flip forbids one now. Its time and its direction are on the pod."""
    flipped = [(p.flipped_at, p.role) for pool in pools for p in pool.pods if p.flipped_at]
    last_at, last_to = max(flipped, default=(float("-inf"), giver))
    ago_s = pace.now - last_at
    if ago_s < APART_S:
        return f"the last flip was {ago_s:.0f} s ago: the next one may be after {APART_S:.0f} s"
    if last_to == giver and ago_s < pace.dwell_s:
        return (
            f"a pod became {giver} {ago_s:.0f} s ago: one may become another role after "
            f"{pace.dwell_s:.0f} s"
        )
    return None


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
