"""What one round knows (`Snapshot`), and what it leaves for the next (`LoopMemory`).

The worker of `shell/workers.py` keeps the memory between two rounds. A restarted operator begins
with an empty one, so no safety may depend on it: what must survive is in the cluster (replicas of
ServingRoles, annotations of pods, status). `core.steps.targets` keeps what the law has learnt.

The revision is a digest of everything that the engine pods of a fleet are made of. All roles of a
mode have one revision, because a prefill and a decode pod work together only if theirs is the same.
What may change without new pods (replicas, SLO, autoscaling, drain times, routing, metrics) is not
part of it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from argosy_law.decision import Decision
from argosy_law.observe import FleetMetrics
from argosy_law.prices import Prices
from argosy_law.signals.gateways import Heard
from argosy_law.signals.samples import Series
from argosy_law.slo import Errors
from argosy_law.state import ScalingState
from argosy_operator.api.bounds import DURATION_BOUNDS
from argosy_operator.api.fields import Duration
from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import RoleName, ServingDeployment
from argosy_operator.api.v1alpha1.engine import KvTransfer
from argosy_operator.api.v1alpha1.roles import GpuType, Role
from argosy_operator.core.budgets import Cap
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.core.snapshot.history import Past, Refusal
from argosy_operator.core.snapshot.objects import ChildKey, Object, digest, is_owned
from argosy_operator.core.snapshot.pods import (
    FetchProgress,
    GatewayLoad,
    Handovers,
    Load,
    Pod,
    Start,
)
from argosy_operator.core.snapshot.template import asked_of


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
class VerdictsRead:
    """What Prometheus said of the verdicts by revision."""

    series: tuple[Series, ...] = ()
    problem: str = ""
    """Why there are none, if it did not say."""


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
    verdicts: VerdictsRead | None = None
    """What was read last for a canary; None without one, and before."""
    verdicts_at: float = 0.0
    """When to read them next."""
    ask_loads: bool = False
    """The next round asks all engines how busy they are, because a pod must be chosen for removal.
    """
    accepted_drift: Mapping[ChildKey, str] = field(default_factory=dict)
    """Digests of the differences, fields and values, that a child kept after an apply (a webhook
    changes it back). They are accepted until either side changes."""
    starting: frozenset[str] = frozenset()
    """Uids of pods that were seen before their first readiness."""
    starts: Mapping[str, Start] = field(default_factory=dict)
    """By uid of the pod, oldest first."""
    published: Mapping[str, float] = field(default_factory=dict)
    """When each event was published last, by its key."""
    failed: Mapping[str, Failure] = field(default_factory=dict)
    """Actions that failed when they were last tried, by `actions.key_of`."""
    field_conflicts: Mapping[str, FieldConflict] = field(default_factory=dict)
    """Changes of other writers that were reverted lately, by the key of the action that reverts."""

    def of(self, uid: str) -> "LoopMemory":
        """This memory, or an empty one if it is that of an earlier fleet of the same name."""
        return self if self.uid == uid else LoopMemory(uid)

    def starts_of(self, role: str, revision: str) -> list[Start]:
        """The role's measured starts, newest last: those of the revision, or of all while it has
        none. Another revision may be a larger model."""
        of_role = [start for start in self.starts.values() if start.role == role]
        return [start for start in of_role if start.revision == revision] or of_role


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
    """As it runs: with the pods of another revision than the spec's where that is refused."""
    revision: str
    """The revision that runs or comes; Deployments of others are retired."""
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
    past: Object | None = None
    """The rendered ControllerRevision of the revision, without a number."""
    history: tuple[Past, ...] = ()
    """Revisions whose rollout was completed, the newest first."""
    refusal: Refusal | None = None
    """What comes of the mark in status; None without one."""
    memory: LoopMemory = field(default_factory=LoopMemory)
    """What the last round left."""

    @property
    def asked(self) -> str:
        """The revision that the spec asks for."""
        return self.revision if self.refusal is None else self.refusal.asked

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


TEMPLATE = 5
"""Number of the pod template that render/{workload,engines}.py write. Raise it with every
change of that template, or an upgrade of the operator replaces running pods in place, unpaired."""


def made_from(deployments: Iterable[Object], made_of: str) -> Object | None:
    """The Deployment that notes `made_of`, a digest of `inputs`: its pods were made from the same
    inputs, in whatever template."""
    for deployment in deployments:
        notes = deployment["metadata"].get("annotations") or {}
        if notes.get(names.INPUTS) == made_of:
            return deployment
    return None


def verifies_callers(deployment: Object) -> bool:
    """Whether the pods of an engine Deployment verify who calls them."""
    volumes = deployment["spec"].get("template", {}).get("spec", {}).get("volumes") or ()
    return any(volume.get("name") == names.PEERS_VOLUME for volume in volumes)


def certificate_of(deployment: Object) -> str | None:
    """The Secret that the pods of a Deployment mount for TLS; None if they have none."""
    volumes = deployment["spec"].get("template", {}).get("spec", {}).get("volumes") or ()
    names_of = (v["secret"]["secretName"] for v in volumes if v.get("name") == names.TLS_VOLUME)
    return next(names_of, None)


def as_rolled_out(
    fleet: ServingDeployment,
    deployments: Mapping[str, Object],
    *,
    engine_image: str,
    called: bool,
) -> ServingDeployment:
    """The fleet whose engine pods may exist now: without TLS until the gateways can call them.

    `deployments` are the fleet's own, by name. `called`: every gateway pod has a certificate. Pods
    with TLS that exist stay, in whatever template: of their gateways some may just be replaced.
    """
    if fleet.spec.security.tls is None or called:
        return fleet
    made_of = digest(inputs(fleet, engine_image=engine_image))
    if made_from(deployments.values(), made_of) is not None:
        return fleet
    security = fleet.spec.security.model_copy(update={"tls": None})
    spec = fleet.spec.model_copy(update={"security": security})
    return fleet.model_copy(update={"spec": spec})


def fields(fleet: ServingDeployment, *, engine_image: str) -> dict[str, object]:
    """What the revision is made of; `engine_image` is the operator's default image."""
    spec = fleet.spec
    unverified = not spec.verifies_peers
    flips = {"roleFlip": True} if spec.flips_roles else {}
    tensor = {name: role.parallelism.tensor for name, role in spec.active_roles()}
    split = {"tensor": tensor} if set(tensor.values()) != {1} else {}
    types = {name: _type(kind) for name, _ in spec.active_roles() if (kind := spec.type_of(name))}
    typed = {"gpuTypes": types} if types else {}
    templates, fetched = _templates(fleet), fleet.fetched_model
    commit = {} if fetched is None else {"commit": fetched.commit, "claim": fetched.claim_name}
    engine = {} if spec.engine.type == "argosy" else {"engine": spec.engine.type}
    adapters = [[adapter.name, adapter.uri] for adapter in spec.model.adapters]
    return (
        flips
        | commit
        | engine
        | ({"adapters": adapters} if adapters else {})
        | ({"templates": templates} if templates else {})
        | split
        | typed
        | {
            "template": TEMPLATE,
            "image": spec.engine.image or engine_image,
            "model": spec.model.uri,
            "servedName": fleet.name,
            "dtype": spec.engine.dtype,
            "maxModelLen": spec.engine.max_model_len,
            "maxNumSeqs": spec.engine.max_num_seqs,
            "maxNumBatchedTokens": spec.engine.max_num_batched_tokens,
            "maxBodyBytes": spec.engine.max_body_bytes,
            "args": list(spec.engine.args),
            "env": [[env.name, env.value] for env in spec.engine.env],
            "roles": {name: _resources(role) for name, role in spec.active_roles()},
            "kvTransfer": _kv_transfer(spec.kv_transfer) if spec.mode == "disaggregated" else None,
            **({"verifyPeers": False} if unverified else {}),
            **({"tls": spec.security.tls.secret_name} if spec.security.tls else {}),
        }
    )


def _resources(role: Role) -> Object:
    """Return the resources without what renders nothing."""
    fields = dump(role.resources)
    if role.resources.gpu_from == "Resource":
        del fields["gpuFrom"]
    return fields


def _templates(fleet: ServingDeployment) -> Object:
    """What the fleet's templates ask of each role's pods; roles of which they ask nothing are left
    out. All of it counts: a pod cannot change any of it while it runs."""
    asked = {name: asked_of(fleet.spec, name) for name, _ in fleet.spec.active_roles()}
    return {name: template for name, template in asked.items() if template}


def _type(kind: GpuType) -> Object:
    """What the pods show of their GPU type: neither what it costs nor how fast it is."""
    return {"name": kind.name, "nodeSelector": dict(kind.node_selector)}


def _kv_transfer(kv_transfer: KvTransfer) -> Object:
    """Return the fields without those that render nothing."""
    fields = dump(kv_transfer)
    if kv_transfer.on_failure == "recompute":
        del fields["onFailure"]
    if kv_transfer.transport == "auto":
        del fields["transport"]
    return fields


def inputs(fleet: ServingDeployment, *, engine_image: str) -> Object:
    """The fields of the spec in the revision, without the number of the template."""
    return {
        name: value
        for name, value in fields(fleet, engine_image=engine_image).items()
        if name != "template"
    }


def revision(fleet: ServingDeployment, *, engine_image: str) -> str:
    """8 hexadecimal digits: SHA-256 of the fields' canonical JSON."""
    return digest(fields(fleet, engine_image=engine_image), digits=8)


def drain_timeout_s(fleet: ServingDeployment, deployment: Object | None) -> int:
    """How long the pods of an engine Deployment may drain, in whole seconds.

    It is part of the pod template but not of the revision: a Deployment keeps the time-out that it
    was created with, as its annotation says. The spec decides for a new Deployment (None) and where
    the annotation is not a time-out that a spec may have.
    """
    annotations = ((deployment or {}).get("metadata") or {}).get("annotations") or {}
    text = annotations.get(names.DRAIN_TIMEOUT, "")
    if _WHOLE.fullmatch(text):
        bound = DURATION_BOUNDS["drain.timeout"]
        if Duration(bound.least).seconds <= int(text) <= Duration(bound.most).seconds:
            return int(text)
    return whole_seconds(fleet.spec.drain.timeout.seconds)


def whole_seconds(duration_s: float) -> int:
    """Rounded up: a time-out of 500ms becomes one second, never none."""
    return max(1, -int(-duration_s // 1))


_WHOLE = re.compile("[0-9]{1,6}")
