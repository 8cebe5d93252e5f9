"""What a fleet asks of the GPU budget that fleets share, out of its snapshot and draft."""

from collections.abc import Mapping

from argosy_law.decision import lacks_metrics
from argosy_law.goals import removal_hold_s
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.budgets import Bid
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import replicas_of
from argosy_operator.core.snapshot.snapshot import Snapshot
from argosy_operator.core.steps.draft import Draft
from argosy_operator.core.steps.goals import by_law, goals_of
from argosy_operator.core.steps.targets import current_target, supply_of


def bid_of(snapshot: Snapshot, draft: Draft) -> Bid:
    """The fleet's bid after its round was planned. A fleet that the scaling law does not size wants
    what its spec or its ServingRoles say; a fleet that is being deleted wants nothing."""
    spec = snapshot.fleet.spec
    held = gpus_held(snapshot, draft.targets)
    if snapshot.fleet.metadata.deletion_timestamp is not None:
        return Bid(least=0, wanted=0, held=held)
    gpus = {role: settings.resources.gpu for role, settings in spec.active_roles()}
    least = sum(gpus[role] * settings.replicas.min for role, settings in spec.active_roles())
    runs = sum(gpus[role] * n for role, n in draft.targets.items() if role in gpus)
    unit = min((number for number in gpus.values() if number > 0), default=1)
    decision = draft.memory.decision
    follows = by_law(spec) and not spec.autoscaling.advisory
    if not follows or lacks_metrics(decision):
        # No cap moves these replicas: what they hold is not there for others.
        return Bid(max(least, runs), max(least, runs), held, unit)
    wants: Mapping[RoleName, int] = draft.targets
    worth: tuple[tuple[int, float], ...] = ()
    if decision is not None and {t.role for t in decision.targets} == gpus.keys():
        # An old decision, such as of before policy External, is no reason to want less than it has.
        wants = {t.role: max(t.wanted, draft.targets.get(t.role, 0)) for t in decision.targets}
        worth = decision.worth
    wanted = sum(gpus[role] * replicas for role, replicas in wants.items() if role in gpus)
    own = spec.autoscaling.gpu_budget
    if own.max is not None:
        wanted = min(wanted, own.max)
    hold_s = _hold_s(snapshot, draft)
    return Bid(least, max(least, wanted), held, unit, worth, float(own.weight), hold_s)


def _hold_s(snapshot: Snapshot, draft: Draft) -> float:
    """How long GPUs that were given to the fleet stay with it: the longest hold of its roles."""
    windows = goals_of(snapshot.fleet.spec).windows
    return max(
        removal_hold_s(supply_of(snapshot, draft, role, replicas), windows)
        for role, replicas in draft.targets.items()
    )


def gpus_targeted(snapshot: Snapshot) -> int:
    """GPUs of the fleet's targets before this round. With this cap it neither grows nor shrinks.

    Not the GPUs that it holds: a target that was written just before the operator died has no pods
    yet, and pods of an old revision or that drain are no room to grow into."""
    return sum(
        current_target(snapshot, role) * settings.resources.gpu
        for role, settings in snapshot.fleet.spec.active_roles()
    )


def gpus_held(snapshot: Snapshot, targets: Mapping[RoleName, int] | None = None) -> int:
    """GPUs of the fleet's engine pods, and of replicas that are written but have no pod yet.

    A replica counts as many as the spec says, so that the number agrees with the scaling law; a pod
    of another revision counts what it requests if that is more.
    """
    spec = snapshot.fleet.spec
    per_replica: dict[str, int] = {
        role: settings.resources.gpu for role, settings in spec.active_roles()
    }
    missing: dict[str, int] = {}
    for role, _ in spec.active_roles():
        deployment = snapshot.deployment(role)
        written = replicas_of(deployment) if deployment is not None else 0
        missing[role] = max(written, (targets or {}).get(role, 0))
    held = 0
    for pod in snapshot.pods:
        if pod.role == names.GATEWAY_ROLE or pod.phase in ("Succeeded", "Failed"):
            continue
        held += max(pod.gpus, per_replica.get(pod.role, 0))
        if pod.revision == snapshot.revision and missing.get(pod.role, 0) > 0:
            missing[pod.role] -= 1
    return held + sum(per_replica[role] * missing[role] for role in per_replica)
