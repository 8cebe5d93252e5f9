"""What the scaling law is told of pods: how many a role has, how long they took to start, and what
the gateways say.
"""

from dataclasses import replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.memory import LoopMemory
from argosy_operator.core.fleet.objects import replicas_of
from argosy_operator.core.fleet.ownership import owner_of_replicas
from argosy_operator.core.fleet.pods import front_of
from argosy_operator.core.fleet.snapshot import Snapshot, role_of
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.scaling.observe import Front, RoleSupply

MEASURED_STARTS = 20
"""How many measured starts of a role the scaling law sees, the newest ones."""


def supply_of(snapshot: Snapshot, draft: Draft, role: RoleName, desired: int) -> RoleSupply:
    """The role's pods as the scaling law counts them."""
    pods = [pod for pod in snapshot.current(role) if pod.alive]
    ready = sum(pod.serving for pod in pods)
    starts = [seconds for of, seconds in draft.memory.starts.values() if of == role]
    return RoleSupply(
        role=role,
        desired=desired,
        ready=ready,
        pending=max(0, desired - ready),
        unschedulable=sum(pod.unschedulable is not None for pod in pods),
        draining=sum(pod.draining for pod in pods),
        cold_starts_s=tuple(starts[-MEASURED_STARTS:]),
        gpus_per_replica=snapshot.fleet.spec.role(role).resources.gpu,
        rolling=draft.rolling,
    )


def current_target(snapshot: Snapshot, role: RoleName) -> int:
    """The role's target before this round: from the ServingRole, else from its Deployments, else
    replicas.min. After an edit of the spec it may be outside the bounds."""
    bounds = snapshot.fleet.spec.role(role).replicas
    live = snapshot.owned("ServingRole").get(names.serving_role(snapshot.fleet.name, role))
    number = live["spec"].get("replicas") if live else None
    remembered = snapshot.memory.targets.get(role)
    by_hand = live is not None and owner_of_replicas(live) not in (None, names.FIELD_MANAGER)
    ours = not snapshot.fleet.spec.autoscaling.is_by_others
    if ours and by_hand and remembered is not None:
        number = remembered  # another writer scaled a ServingRole that the operator scales
    if number is None:
        # In a rollout whose new Deployment does not exist yet, the role has the pods of old ones.
        current = snapshot.deployment(role)
        old = (child for child in snapshot.retired() if role_of(child) == role)
        having = [current] if current is not None else old
        number = max(map(replicas_of, having), default=bounds.min)
    return int(number)


def front(snapshot: Snapshot, draft: Draft) -> Front:
    """What the gateways say, as the scaling law reads it."""
    since = draft.memory.unheard_since
    unheard_s = 0.0 if since is None else snapshot.monotonic - since
    return front_of(snapshot.pods, snapshot.gateway_loads, unheard_s)


def learn_starts(snapshot: Snapshot, draft: Draft) -> LoopMemory:
    """Measure the time from a pod's creation to its first readiness.

    Only of pods that were seen before it: one that is ready when it is first seen may have become
    ready for the second time.
    """
    starts, starting = dict(draft.memory.starts), set[str]()
    for pod in sorted(snapshot.pods, key=lambda pod: pod.created_at):
        seen = pod.uid in draft.memory.starting
        if not pod.alive or pod.restarts > 0 or pod.draining:
            continue
        if pod.ready_at is None and (seen or not pod.probed):
            starting.add(pod.uid)
        elif pod.ready_at is not None and seen:
            starts[pod.uid] = (pod.role, max(0.0, pod.ready_at - pod.created_at))
    newest = dict(list(starts.items())[-4 * MEASURED_STARTS :])
    return replace(draft.memory, starts=newest, starting=frozenset(starting))
