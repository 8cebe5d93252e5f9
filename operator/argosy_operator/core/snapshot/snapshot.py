"""What one round knows (`Snapshot`), and what it leaves for the next (`LoopMemory`).

The worker of `shell/workers.py` keeps the memory between two rounds. A restarted operator begins
with an empty one, so no safety may depend on it: what must survive is in the cluster (replicas of
ServingRoles, annotations of pods, status). What the scaling law has learnt is kept by
`core.steps.recall`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from argosy_law.decision import Decision
from argosy_law.observe import FleetMetrics
from argosy_law.prices import Prices
from argosy_law.signals.alone import Heard
from argosy_law.slo import Errors
from argosy_law.state import ScalingState
from argosy_operator.api.v1alpha1 import RoleName, ServingDeployment
from argosy_operator.core.budgets import Cap
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.objects import ChildKey, Object, is_owned
from argosy_operator.core.snapshot.pods import FetchProgress, GatewayLoad, Handovers, Load, Pod


@dataclass(frozen=True, slots=True)
class Failure:
    """An action that failed in every round since `since`. Times are on the monotonic clock, in
    seconds."""

    what: str
    """The object, as `actions.target` writes it."""
    builds: bool
    """Whether pods are missing because of it: the object is a Deployment."""
    error: ErrorKind
    message: str
    """The server's words; kept as they were first while only numbers in them change."""
    since: float
    times: int
    retry_at: float
    generation: int
    """metadata.generation at the last attempt. An edit of the spec ends the wait."""


@dataclass(frozen=True, slots=True)
class FieldConflict:
    """A change by another writer that was reverted `times` in a row. Times are on the monotonic
    clock, in seconds."""

    cause: str
    """Who changes what, for the condition FieldConflict; without numbers that change."""
    times: int
    at: float
    """When it was reverted last."""
    retry_at: float
    """When it may be reverted next."""


@dataclass(frozen=True, slots=True)
class LoopMemory:
    """Times are on the monotonic clock, in seconds, unless a field says otherwise."""

    uid: str = ""
    """Of the ServingDeployment that it belongs to; "" before the first round."""
    scaling: ScalingState = field(default_factory=ScalingState)
    """What the scaling law has learnt."""
    heard: Heard = field(default_factory=Heard)
    """What gateways said of their load when they were asked."""
    errors: Errors = field(default_factory=Errors)
    """Verdicts of requests, for the error budget."""
    prices: Prices = field(default_factory=Prices)
    """What the fleet would cost on each of its GPU types."""
    learnt_read: bool = False
    """What an earlier operator kept of `scaling` was looked for."""
    learnt_at: float = float("-inf")
    """When `scaling` was last written to its ConfigMap, or read from it."""
    decision: Decision | None = None
    """The scaling law's last decision that rests on metrics. Conditions speak of it between two
    decisions."""
    decide_at: float = 0.0
    """When the scaling law is due next. 0: at once."""
    figures_at: float = float("-inf")
    """When status last updated what users got."""
    targets: Mapping[RoleName, int] = field(default_factory=dict)
    """Pods wanted per role in the last round. They replace a number that another writer puts into a
    ServingRole that the operator scales."""
    listen: tuple[tuple[str, str], ...] = ()
    """Gateways (pod, address) of a fleet at zero, which are asked for requests until the next
    round; empty for any other fleet."""
    unheard_since: float | None = None
    """Since when a Ready gateway of a fleet at zero has not answered; None if all answer."""
    ask_loads: bool = False
    """The next round asks all engines how busy they are, because a pod must be chosen for removal.
    """
    accepted_drift: Mapping[ChildKey, str] = field(default_factory=dict)
    """Digests of the differences, fields and values, that a child kept after an apply (a webhook
    changes it back). They are accepted until either side changes."""
    starting: frozenset[str] = frozenset()
    """Uids of pods that were seen before their first readiness."""
    starts: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Role, and measured seconds from creation to first readiness, by uid of the pod."""
    published: Mapping[str, float] = field(default_factory=dict)
    """When each event was published last, by its key."""
    failed: Mapping[str, Failure] = field(default_factory=dict)
    """Actions that failed when they were last tried, by `actions.key_of`."""
    field_conflicts: Mapping[str, FieldConflict] = field(default_factory=dict)
    """Changes of other writers that were reverted lately, by the key of the action that reverts."""

    def of(self, uid: str) -> "LoopMemory":
        """This memory, or an empty one if it is that of an earlier fleet of the same name."""
        return self if self.uid == uid else LoopMemory(uid)


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of one round, read once."""

    now: float
    """Seconds since the epoch. For what is written, and to compare with times in the cluster."""
    monotonic: float
    """Seconds on a clock that is never set back. Pauses are counted on it: `now` may step."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who signs the tokens of the cluster's service accounts, as the API server publishes it."""

    url: str
    """`iss` of the tokens."""
    keys: tuple[Object, ...]
    """Public keys as JSON Web Keys."""
    operator: str | None = None
    """`sub` of this operator's own tokens; None outside of a cluster, where it has none."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """What a flip needs to know of a ReplicaSet of one of the fleet's engine Deployments."""

    deployment: str
    """Uid of its Deployment."""
    role: str
    template_hash: str
    """The label `names.TEMPLATE_HASH`, by which it selects its pods."""
    replicas: int
    """As its Deployment has set them."""
    seen: bool = True
    """Its controller acts on that number."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One fleet at one moment, frozen."""

    fleet: ServingDeployment
    revision: str
    """The revision that the spec asks for; Deployments of others are retired."""
    wanted: tuple[Object, ...]
    """Rendered children whose content does not depend on replicas."""
    engines: Mapping[RoleName, Object]
    """The rendered engine Deployment, without replicas, of each role that the mode uses."""
    children: Mapping[ChildKey, Object]
    """Live objects in the fleet's namespace with the fleet's label, except pods, and the Service of
    its name with or without. Another owner's object may be among them: see `is_ours`."""
    pods: tuple[Pod, ...]
    """Pods of the fleet's Deployments, gateways and old revisions included."""
    now: float
    """See `Clock`."""
    monotonic: float
    """See `Clock`."""
    replica_sets: Mapping[str, ReplicaSet] = field(default_factory=dict)
    """Those of the fleet's engine Deployments, by uid."""
    loads: Mapping[str, Load | None] = field(default_factory=dict)
    """Answers of the engines that were asked, by pod uid; None: no answer. Engines of draining pods
    are asked in every round, others only to choose a pod for removal."""
    handovers: Handovers = field(default_factory=Handovers)
    """What the ready gateways of a disaggregated fleet say."""
    gateway_loads: Mapping[str, GatewayLoad | None] = field(default_factory=dict)
    """Answers of the gateways that were asked, by name of the pod; None: no answer."""
    metrics: FleetMetrics | None = None
    """None if Prometheus was not asked in this round, because the scaling law is not due. Those of
    the gateways alone (`gateways_alone`) if Prometheus has none."""
    heard: Heard = field(default_factory=Heard)
    """What gateways said until now of their load."""
    metrics_next_at: float | None = None
    """When to ask for metrics again, on the monotonic clock; None: after the law's interval."""
    proof_required: bool = False
    """They refuse calls without a token: every gateway pod shows one."""
    gpu_cap: Cap | None = None
    """GPUs that budgets shared with other fleets leave to this one; None: no such budget."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Images of the fleet's pods as rendered, by container."""
    newer_images: Mapping[str, str] = field(default_factory=dict)
    """Default images of the operator that the fleet does not take, by container."""
    fetch_job: Object | None = None
    """The rendered Job that fetches the model; None for a model that is used where it is."""
    fetch_pods: tuple[Pod, ...] = ()
    """Pods of Jobs of the fleet."""
    fetch_progress: Mapping[str, FetchProgress] = field(default_factory=dict)
    """What those that answer say, by name."""
    learnt: Object | None = None
    """The rendered ConfigMap for what the scaling law has learnt, without data."""
    memory: LoopMemory = field(default_factory=LoopMemory)
    """What the last round left."""

    def is_ours(self, child: Object) -> bool:
        """Whether this fleet owns the child, and not an earlier fleet of the same name."""
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
        current = {obj["metadata"]["name"] for obj in self.engines.values()}
        return [
            child
            for name, child in self.owned("Deployment").items()
            if name not in current and role_of(child) != names.GATEWAY_ROLE
        ]

    def pods_of(self, deployment: Object) -> tuple[Pod, ...]:
        """The Deployment's pods; those that ended or are being deleted are included."""
        labels = deployment["metadata"].get("labels") or {}
        role, revision = labels.get(names.ROLE), labels.get(names.REVISION)
        return tuple(p for p in self.pods if p.role == role and p.revision == revision)

    def current(self, role: RoleName) -> tuple[Pod, ...]:
        """The role's pods of the current revision."""
        return tuple(p for p in self.pods if p.role == role and p.revision == self.revision)


def role_of(child: Object) -> str:
    """The role of a child by its label; "" for a child without one."""
    return str((child["metadata"].get("labels") or {}).get(names.ROLE, ""))
