"""What one round of the loop knows: everything `plan` may look at, frozen, clock included.

Gathered by `shell/gather.py` from the API server, the engines and Prometheus. What is rendered
comes along, because rendering is pure but lies above this layer. `Memory` is the only thing that
outlives a round; a restarted operator begins with an empty one, so no safety may depend on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from argosy_operator.api.v1alpha1 import RoleName, ServingDeployment
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import Contest, Failure
from argosy_operator.core.fleet.objects import ChildKey, Object, is_owned
from argosy_operator.core.fleet.pods import Load, Pod
from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.observe import FleetMetrics
from argosy_operator.core.scaling.state import ScalingState


@dataclass(frozen=True, slots=True)
class Memory:
    """What a round tells the next one.

    `settled`: differences that stayed after an apply, so that it is not tried for ever; `starting`:
    uids of pods seen before they were ready, `starts`: measured seconds from creation to ready, by
    uid; `published`: when an Event was last published; `decide_at`: when the law is due
    next. Both are on the monotonic clock. `failed`: orders that failed, `contests`: changes that
    were put back, both by the order's key.
    """

    scaling: ScalingState = field(default_factory=ScalingState)
    decision: Decision | None = None
    decide_at: float = 0.0
    figures_at: float = float("-inf")
    """When status last updated what users got, on the monotonic clock."""
    targets: Mapping[RoleName, int] = field(default_factory=dict)
    ask_loads: bool = False
    settled: Mapping[ChildKey, str] = field(default_factory=dict)
    starting: frozenset[str] = frozenset()
    starts: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, Failure] = field(default_factory=dict)
    contests: Mapping[str, Contest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of one round, read once."""

    now: float
    """Seconds since the epoch. For what is written and for times that the cluster wrote."""
    monotonic: float
    """Seconds on a clock that is never set. Pauses are counted on it: `now` may step by an hour."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One fleet at one moment (`now`, `monotonic`: see `Clock`).

    `children`: live objects in the fleet's namespace that carry its label, pods apart. `wanted`:
    rendered objects that do not depend on replicas. `engines`: the rendered Deployment of each role
    that the mode uses, without replicas. `loads`: answers of the engines that were asked, by pod
    uid. `metrics`: None when they were not asked for in this round.
    """

    fleet: ServingDeployment
    revision: str
    wanted: tuple[Object, ...]
    engines: Mapping[RoleName, Object]
    children: Mapping[ChildKey, Object]
    pods: tuple[Pod, ...]
    now: float
    monotonic: float
    loads: Mapping[str, Load | None] = field(default_factory=dict)
    metrics: FleetMetrics | None = None
    metrics_next_at: float | None = None
    """When to ask for metrics again, on the monotonic clock; None: after the law's interval."""
    memory: Memory = Memory()

    def is_ours(self, child: Object) -> bool:
        """Owned by this very fleet, not by an earlier one of the same name."""
        return is_owned(child, self.fleet.metadata.uid)

    def owned(self, kind: str) -> dict[str, Object]:
        """Our children of one kind that are not being deleted, by name."""
        return {
            name: child
            for (of, name), child in sorted(self.children.items())
            if of == kind and self.is_ours(child) and "deletionTimestamp" not in child["metadata"]
        }

    def deployment(self, role: RoleName) -> Object | None:
        """The role's engine Deployment of the current revision."""
        name = names.engine_deployment(self.fleet.name, role, self.revision)
        return self.owned("Deployment").get(name)

    def retired(self) -> list[Object]:
        """Engine Deployments of other revisions, or of roles that the mode no longer uses."""
        kept = {obj["metadata"]["name"] for obj in self.engines.values()}
        return [
            child
            for name, child in self.owned("Deployment").items()
            if name not in kept and role_of(child) != names.GATEWAY_ROLE
        ]

    def pods_of(self, deployment: Object) -> tuple[Pod, ...]:
        """Its pods, dead and leaving ones included."""
        labels = deployment["metadata"].get("labels") or {}
        role, revision = labels.get(names.ROLE), labels.get(names.REVISION)
        return tuple(p for p in self.pods if p.role == role and p.revision == revision)

    def current(self, role: RoleName) -> tuple[Pod, ...]:
        return tuple(p for p in self.pods if p.role == role and p.revision == self.revision)


def role_of(child: Object) -> str:
    return str((child["metadata"].get("labels") or {}).get(names.ROLE, ""))
