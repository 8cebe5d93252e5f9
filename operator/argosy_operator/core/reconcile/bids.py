"""What a fleet asks of the GPU budget that fleets share, out of its snapshot and draft."""

from collections.abc import Mapping

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.budgets.bid import Bid
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.objects import replicas_of
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.targets import by_law


def bid_of(snapshot: Snapshot, draft: Draft) -> Bid:
    """The fleet's bid after its round was planned. A fleet that the scaling law does not size wants
    what its spec or its ServingRoles say; a fleet that is being deleted wants nothing."""
    spec = snapshot.fleet.spec
    held = gpus_held(snapshot, draft.targets)
    if snapshot.fleet.metadata.deletion_timestamp is not None:
        return Bid(least=0, wanted=0, held=held)
    gpus = {role: settings.resources.gpu for role, settings in spec.active_roles()}
    least = sum(gpus[role] * settings.replicas.min for role, settings in spec.active_roles())
    wants: Mapping[RoleName, int] = draft.targets
    decision = draft.memory.decision
    if by_law(spec) and decision is not None and {t.role for t in decision.targets} == gpus.keys():
        wants = {target.role: target.wanted for target in decision.targets}
    wanted = sum(gpus[role] * replicas for role, replicas in wants.items() if role in gpus)
    if spec.autoscaling.gpu_budget.max is not None:
        wanted = min(wanted, spec.autoscaling.gpu_budget.max)
    unit = min((number for number in gpus.values() if number > 0), default=1)
    return Bid(least, max(least, wanted), held, unit)


def gpus_held(snapshot: Snapshot, targets: Mapping[RoleName, int] | None = None) -> int:
    """GPUs of the fleet's engine pods, and of replicas that are written but have no pod yet."""
    total = 0
    pods = [
        pod
        for pod in snapshot.pods
        if pod.role != names.GATEWAY_ROLE and pod.phase not in ("Succeeded", "Failed")
    ]
    for role, settings in snapshot.fleet.spec.active_roles():
        deployment = snapshot.deployment(role)
        replicas = replicas_of(deployment) if deployment is not None else 0
        replicas = max(replicas, (targets or {}).get(role, 0))
        mine = sum(pod.role == role and pod.revision == snapshot.revision for pod in pods)
        total += max(0, replicas - mine) * settings.resources.gpu
    return total + sum(pod.gpus for pod in pods)
