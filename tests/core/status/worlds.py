"""A fleet in a world of plain values, and the status that one round writes about it.

What is not said of a world is at rest: the fleet is `chat` in `ns`, one colocated pod and one
gateway pod serve, its objects exist, every write succeeds, and the scaling law is not due.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from argosy_law.decision import Decision
from argosy_law.observe import FleetMetrics
from argosy_law.slo import Errors
from argosy_operator.adapters.protocols import Measurement
from argosy_operator.api.v1alpha1.status import ServingDeploymentStatus
from argosy_operator.core.plan import Plan, conclude, plan
from argosy_operator.core.snapshot.actions import Apply, Create, ErrorKind, Outcome, target
from argosy_operator.core.snapshot.names import FIELD_MANAGER, GATEWAY_ROLE, SETTINGS_KEY
from argosy_operator.core.snapshot.objects import child_key
from argosy_operator.core.snapshot.pods import (
    FailingPair,
    FetchProgress,
    GatewayLoad,
    Handovers,
    Load,
    Pod,
    SettingsRead,
)
from argosy_operator.core.snapshot.snapshot import (
    Clock,
    FieldConflict,
    Issuer,
    LoopMemory,
    Snapshot,
)
from argosy_operator.core.status.compose import status_of
from argosy_operator.render.fleet import render_past
from argosy_operator.shell.gather import Observed, compose
from tests.support.model import IMAGES, ISSUER, fleet

NOW = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""
NEVER = 1e12
CLAIM_KIND = "PersistentVolumeClaim"
LONG_AGO = "2025-01-01T00:00:00Z"
GENERATION = 2
"""`metadata.generation` of the gateways' Deployments."""


def pod(role: str, n: int = 1, revision: str = "new", **looks: Any) -> Pod:
    """A pod that serves, but for its `looks`. Revision "new" is the one that the spec asks for."""
    looks = {"shows_token": role == "gateway"} | looks
    return Pod(f"chat-{role}-{n}", f"{role}-{n}-{revision}", role, revision, **looks)


def unready(role: str, n: int = 1, revision: str = "new", **looks: Any) -> Pod:
    return pod(role, n, revision, ready=False, **looks)


def leaving(role: str, n: int = 1, **looks: Any) -> Pod:
    """A pod that the operator chose for removal, and that still answers."""
    return pod(role, n, draining=True, victim=True, drain_at=NOW, cost=-1000, **looks)


GATEWAY = pod("gateway", revision="")


@dataclass(frozen=True)
class World:
    """What is true of the fleet and of the cluster."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    pods: tuple[Pod, ...] = (pod("colocated"), GATEWAY)
    deployed: Mapping[str, int] = field(default_factory=dict)
    """Replicas of a role's Deployment, where they are not the role's minimum."""
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Replicas of a role's ServingRole, where they are not the role's minimum."""
    gateways: Mapping[str, int] = field(default_factory=dict)
    """What the status of the gateways' Deployment says else than that all is done."""
    said: Mapping[str, GatewayLoad | None] = field(default_factory=dict)
    """What gateways answered, by name; None: nothing. Those that are not here were not asked."""
    settings: str = ""
    """The gateways' settings in the cluster, where they are not those of the spec."""
    settings_at: str = LONG_AGO
    """When the operator applied them."""
    autoscaler: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    """Conditions of the gateways' HorizontalPodAutoscaler: status, reason and message, by type."""
    noted: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the ServingRoles beside ours."""
    runs_instead: bool = False
    """The spec asks for another image, which is refused: the pods are of the revision before."""
    old: str = ""
    """The role of a Deployment of revision "old" that still exists."""
    taken: tuple[str, ...] = ()
    """Names that an object of another owner has, such as Service/chat."""
    no_pods: str = ""
    """The message with which the Deployment controller says that it cannot create pods."""
    no_pods_since: str = LONG_AGO
    """When it said so first."""
    fails: Mapping[str, tuple[ErrorKind, str]] = field(default_factory=dict)
    """Objects that are missing and cannot be created, by the beginning of kind/name: the error."""
    for_s: float = 0.0
    """How long the writes have failed."""
    contested: Mapping[str, int] = field(default_factory=dict)
    """What another writer changes, and how many times in a row it was put back."""
    decision: Decision | None = None
    """What the law said last."""
    errors: Errors = field(default_factory=Errors)
    """Verdicts that were counted."""
    metrics: FleetMetrics | None = None
    """The law is due, and Prometheus answers this."""
    before: Mapping[str, str] = field(default_factory=dict)
    """What status said before the round, by type of condition: status and reason."""
    told_of: int = 1
    """The generation that it was about; the fleet's own is 1."""
    status: Mapping[str, Any] = field(default_factory=dict)
    """Other parts of the status before the round."""
    issuer: Issuer | None = ISSUER
    """What the API server says of its tokens."""
    failing_pairs: frozenset[FailingPair] = frozenset()
    """What the gateways say about handovers."""
    fetch_pods: tuple[Pod, ...] = ()
    """Pods of the Job that fetches the model."""
    fetch_progress: Mapping[str, FetchProgress] = field(default_factory=dict)
    """How far they are, by name."""
    job_made: str = ""
    """When the Job was made; empty: now."""
    job_says: Mapping[str, Any] = field(default_factory=dict)
    """The status of the Job."""
    deleting: bool = False
    """The user deleted the fleet, and Kubernetes has not removed it yet."""


def status(world: World) -> ServingDeploymentStatus:
    """What the operator writes about the fleet in this world."""
    snapshot, planned, outcomes = round_of(world)
    return status_of(snapshot, planned.draft, outcomes)


def round_of(world: World) -> tuple[Snapshot, Plan, tuple[Outcome, ...]]:
    """One round: what it saw, what it planned, and what came of it."""
    conflicts = {
        cause: FieldConflict(cause, times, at=NOW, retry_at=NOW)
        for cause, times in world.contested.items()
    }
    memory = LoopMemory(
        uid="fleet-1",
        decision=world.decision,
        errors=world.errors,
        decide_at=0.0 if world.metrics is not None else NEVER,
        field_conflicts=conflicts,
    )
    if world.for_s:
        memory = _carried_out(world, snapshot_of(world, memory, NOW - world.for_s))[0].memory
    snapshot = snapshot_of(world, memory, NOW)
    return snapshot, *_carried_out(world, snapshot)


def _carried_out(world: World, snapshot: Snapshot) -> tuple[Plan, tuple[Outcome, ...]]:
    planned = plan(snapshot)
    outcomes = tuple(Outcome(action, *_error(world, target(action))) for action in planned.actions)
    return conclude(snapshot, planned, outcomes), outcomes


def _error(world: World, what: str) -> tuple[ErrorKind | None, str]:
    return next((e for name, e in world.fails.items() if what.startswith(name)), (None, ""))


def snapshot_of(world: World, memory: LoopMemory, now: float) -> Snapshot:
    """What the operator sees at this moment."""
    asked, said = dict(world.spec), dict(world.status)
    if world.runs_instead:
        asked["engine"] = {"image": "engine:2"}
        mark = {"revision": _made(json.dumps(asked))[0], "message": "it crashes"}
        said["refused"] = mark
    user_wrote = fleet(**asked)
    before = ServingDeploymentStatus.model_validate(
        {
            "conditions": [
                dict(zip(("type", "status", "reason"), (type_, *said.split()), strict=True))
                | {"lastTransitionTime": LONG_AGO, "observedGeneration": world.told_of}
                for type_, said in world.before.items()
            ]
        }
        | said
    )
    gone = {"deletion_timestamp": "2026-01-01T00:00:00Z"} if world.deleting else {}
    meta = user_wrote.metadata.model_copy(update=gone)
    user_wrote = user_wrote.model_copy(update={"status": before, "metadata": meta})
    revision, made = _made(json.dumps(world.spec), json.dumps(world.status))
    pods = tuple(
        replace(p, revision=revision if p.revision == "new" else p.revision) for p in world.pods
    )
    busy = Load(draining=True, running=1, leases=0)
    seen = Observed(
        children=_children(world, made),
        pods=pods,
        loads={p.uid: busy for p in pods if p.draining},
        measured=None if world.metrics is None else Measurement(world.metrics, NEVER),
        issuer=world.issuer,
        handovers=Handovers(world.failing_pairs),
        gateway_loads=world.said,
        fetch_pods=world.fetch_pods,
        fetch_progress=world.fetch_progress,
    )
    return compose(user_wrote, IMAGES, seen, memory, Clock(now, now))


@cache
def _made(spec: str, said: str = "{}") -> tuple[str, tuple[Any, ...]]:
    """The revision that this spec asks for, and the objects that the fleet's first round makes."""
    asked, there = fleet(**json.loads(spec)), dict[tuple[str, str], Any]()
    model = json.loads(said).get("model")
    if model is not None:
        known = ServingDeploymentStatus.model_validate({"model": model})
        asked = asked.model_copy(update={"status": known})
        claim: dict[str, Any] = {"name": model["claimName"], "uid": model["claimUid"]}
        claim["ownerReferences"] = [{"uid": "fleet-1"}]
        there[CLAIM_KIND, claim["name"]] = {"kind": CLAIM_KIND, "metadata": claim}
    nothing, memory, clock = Observed(there, (), {}, None, ISSUER), LoopMemory(), Clock(NOW, NOW)
    first = compose(asked, IMAGES, nothing, memory, clock)
    actions = plan(first).actions
    return first.revision, tuple(a.obj for a in actions if isinstance(a, Create | Apply))


def _children(world: World, made: tuple[Any, ...]) -> dict[tuple[str, str], Any]:
    """The fleet's objects as its first round made them, but for what the world says."""
    found: dict[tuple[str, str], Any] = {}
    for obj in made:
        name = f"{obj['kind']}/{obj['metadata']['name']}"
        if not any(name.startswith(beginning) for beginning in world.fails):
            found[obj["kind"], obj["metadata"]["name"]] = _stored(world, obj)
    if world.old:
        name = f"chat-{world.old}-old"
        labels = {"serving.argosy.dev/role": world.old, "serving.argosy.dev/revision": "old"}
        owner = [{"uid": "fleet-1", "controller": True}]
        meta = {"name": name, "uid": name, "labels": labels, "ownerReferences": owner}
        pods = {"template": {"spec": {"volumes": [{"name": "peers"}]}}}
        old = {"metadata": meta | {"resourceVersion": "1"}, "spec": {"replicas": 1, **pods}}
        found["Deployment", name] = {"kind": "Deployment", **old}
    if world.runs_instead:
        revision, _ = _made(json.dumps(world.spec))
        past = render_past(fleet(**world.spec), revision, IMAGES.engine)
        found["ControllerRevision", past["metadata"]["name"]] = {**past, "revision": 1}
    for kind, name in (taken.split("/") for taken in world.taken):
        found[kind, name] = {"kind": kind, "metadata": {"name": name, "uid": "x"}, "spec": {}}
    return found


def _stored(world: World, obj: Any) -> Any:
    meta = obj["metadata"] | {"uid": f"{obj['kind']}-uid", "resourceVersion": "1"}
    if obj["kind"] == "ServingRole":
        meta = meta | {"annotations": meta.get("annotations", {}) | world.noted}
    stored = obj | {"metadata": meta}
    role = meta["labels"].get("serving.argosy.dev/role")
    replicas = {"Deployment": world.deployed, "ServingRole": world.wanted}.get(obj["kind"], {})
    if role in replicas:
        stored["spec"] = obj["spec"] | {"replicas": replicas[role]}
    if obj["kind"] == "Deployment" and role == GATEWAY_ROLE:
        replicas = obj["spec"]["replicas"]
        whole = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), replicas)
        stored["metadata"] = meta | {"generation": GENERATION}
        stored["status"] = whole | {"observedGeneration": GENERATION} | world.gateways
    if child_key(obj) == ("ConfigMap", "chat-gateway"):
        ours = {"manager": FIELD_MANAGER, "time": world.settings_at}
        stored["metadata"] = meta | {"managedFields": [ours]}
        stored["data"] = {SETTINGS_KEY: world.settings} if world.settings else obj["data"]
    if obj["kind"] == "Job" and world.job_made:
        stored["metadata"] = stored["metadata"] | {"creationTimestamp": world.job_made}
    if obj["kind"] == "Job" and world.job_says:
        stored["status"] = dict(world.job_says)
    if obj["kind"] == "HorizontalPodAutoscaler":
        words = ("type", "status", "reason", "message")
        found = [dict(zip(words, (t, *said), strict=True)) for t, said in world.autoscaler.items()]
        stored["status"] = {"conditions": found}
    if obj["kind"] == "Deployment" and role != "gateway" and world.no_pods:
        said = {"type": "ReplicaFailure", "status": "True", "message": world.no_pods}
        since = {"lastTransitionTime": world.no_pods_since}
        stored["status"] = {"conditions": [said | since]}
    return stored


def settings_read(refused: str = "", **spec: Any) -> GatewayLoad:
    """What a gateway says that has read the settings of this spec."""
    _, made = _made(json.dumps(spec))
    (found,) = (obj for obj in made if child_key(obj) == ("ConfigMap", "chat-gateway"))
    digest = hashlib.sha256(found["data"][SETTINGS_KEY].encode()).hexdigest()[:16]
    return GatewayLoad(0, 1.0, settings=SettingsRead(digest, refused))


AT_REST = {
    "Ready": "True AsSpecified",
    "RolledOut": "True RolledOut",
    "Servable": "True AsSpecified",
    "Reconciling": "False AsSpecified",
    "Progressing": "False AsSpecified",
    "Stalled": "False AsSpecified",
    "ModelFetched": "True AsSpecified",
    "SLOMet": "Unknown NoSLO",
    "ErrorBudgetBurning": "Unknown NoSLO",
    "SLOFeasible": "Unknown NoSLO",
    "ScalingActive": "False NoSLO",
    "GatewayScalingActive": "False PolicyNone",
    "MetricsAvailable": "Unknown NoSLO",
    "CapacityLimited": "False AsSpecified",
    "Draining": "False AsSpecified",
    "NameConflict": "False AsSpecified",
    "FieldConflict": "False AsSpecified",
    "PeersVerified": "True AsSpecified",
    "TransportSecured": "False NoCertificate",
    "KVTransferHealthy": "True AsSpecified",
}
"""What status says of a fleet without an SLO that has all that it needs."""


@dataclass(frozen=True)
class Row:
    """One row of a table: in this world, status says this."""

    words: str
    world: World
    says: Mapping[str, str]
    """Conditions that are not as `AT_REST` has them: status and reason."""


def compare(row: Row) -> tuple[dict[str, str], dict[str, str]]:
    """Every condition that status has in the row's world, and that it should have."""
    said = {c.type: f"{c.status} {c.reason}" for c in status(row.world).conditions}
    return said, {**AT_REST, **row.says}


def messages(world: World) -> dict[tuple[str, str], list[str]]:
    """Types of conditions by reason and message. NEW stands for the new revision."""
    revision, _ = _made(json.dumps(world.spec))
    found: dict[tuple[str, str], list[str]] = {}
    for c in status(world).conditions:
        text = c.message.replace(revision, "NEW")
        text = text.removesuffix(f". See docs/runbook/{c.reason}.md")
        found.setdefault((c.reason, text), []).append(c.type)
    return found


TWO = {"roles": {"colocated": {"replicas": {"min": 2, "max": 4}}}}
ROLLED_OUT = {"RolledOut": "True RolledOut", "Servable": "True AsSpecified"}
"""Before this round the spec was reached."""
SERVED = {"Servable": "True AsSpecified"}
"""Before this round the fleet answered requests."""
STARTING = {
    "Ready": "False Starting",
    "RolledOut": "False Starting",
    "Servable": "False NoPods",
    "Reconciling": "True Starting",
    "Progressing": "True Starting",
}
LOST = STARTING | {"Ready": "False PodsNotReady"}


def sick(**looks: Any) -> World:
    """The only engine pod does not serve, and looks like this."""
    return World(pods=(unready("colocated", **looks), GATEWAY))


PULL = 'rpc error: no such image "none:1"'
QUOTA = "exceeded quota: gpus, requested: 1, used: 8, limited: 8"
CLAIM = 'persistentvolumeclaim "weights" not found'
BUDGET = "PodDisruptionBudget/chat-colocated"
HOOK = (ErrorKind.FAILED, 'failed calling webhook "policy.example": timeout.')


def ended(reason: str, message: str) -> World:
    """The engine ended with this typed message."""
    return sick(terminated=("Error", json.dumps({"reason": reason, "message": message})))


def refused(error: ErrorKind, message: str, what: str = "Deployment/chat-colocated") -> World:
    """This object does not exist, and the API server answers its creation so."""
    return World(pods=(GATEWAY,), fails={what: (error, message)})
