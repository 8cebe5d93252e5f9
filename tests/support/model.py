"""A cluster as a value model: enough of ReplicaSets, kubelets and engines to carry out plans.

No server, and not reachable as one: tests apply a plan's actions to it and let time pass. What the
real API server does with them is tested in tests/reconcile.
"""

import hashlib
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from argosy_law.observe import FleetMetrics, unknown_metrics
from argosy_operator.adapters.protocols import Measurement
from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import ServingDeployment, ServingDeploymentStatus
from argosy_operator.api.v1alpha1.status import Condition, RefusedStatus
from argosy_operator.core.plan import Plan, conclude, plan
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import (
    Action,
    AnnotatePod,
    AnnotateRole,
    Apply,
    Create,
    Delete,
    FlipRole,
    HastenDrain,
    Outcome,
    Refuse,
    Scale,
    TakeWorkAgain,
)
from argosy_operator.core.snapshot.objects import rfc3339, seconds
from argosy_operator.core.snapshot.pods import (
    OUR_COST,
    GatewayLoad,
    Handovers,
    Load,
    Pod,
    SettingsRead,
)
from argosy_operator.core.snapshot.snapshot import Clock, Issuer, LoopMemory, ReplicaSet, Snapshot
from argosy_operator.core.status.compose import status_of
from argosy_operator.core.steps.drain import DRAIN_LEASE_S
from argosy_operator.render.common import Images
from argosy_operator.shell.gather import Observed, compose
from tests.support.replica_sets import COST, removed_first

IMAGES = Images(engine="engine:1", gateway="gateway:1", fetch="fetch:1")
ISSUER = Issuer(
    url="https://kubernetes.default.svc",
    keys=({"kid": "one", "kty": "RSA", "n": "AQAB", "e": "AQAB"},),
    operator="system:serviceaccount:argosy-system:argosy",
)
START_S = 2.0
READ_S = 5
"""How often gateways read their settings."""


def digest_of(settings: str | None) -> str:
    """As a gateway says it."""
    return "" if settings is None else hashlib.sha256(settings.encode()).hexdigest()[:16]


def fleet(uid: str = "fleet-1", generation: int = 1, **spec: Any) -> ServingDeployment:
    meta = {"name": "chat", "namespace": "ns", "uid": uid, "generation": generation}
    body = {"model": {"uri": "sim://opt-13b-a100"}, **spec}
    return ServingDeployment.model_validate({"metadata": meta, "spec": body})


@dataclass
class Model:
    """One fleet in its cluster."""

    fleet: ServingDeployment
    now: float = 1_000_000.0
    stepped: float = 0.0
    """How far the wall clock was set back, s."""
    memory: LoopMemory = field(default_factory=LoopMemory)
    children: dict[tuple[str, str], Any] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    draining: dict[str, float] = field(default_factory=dict)
    """Until when an engine takes no new work, by pod uid."""
    deaf: bool = False
    """No call reaches an engine."""
    engine_roles: dict[str, str] = field(default_factory=dict)
    """What engines of flipped pods do, by pod uid; the others do what their label says."""
    requests: dict[str, int] = field(default_factory=dict)
    """Running answers, by pod uid."""
    lost: int = 0
    """Answers that were cut off."""
    serial: Any = field(default_factory=lambda: count(1))
    broken_roles: frozenset[str] = frozenset()
    """Roles whose pods never become ready."""
    start_s: float = START_S
    """Seconds from a pod's creation until it is ready."""
    room: dict[str, int] = field(default_factory=dict)
    """Pods that the nodes with a GPU type take, by its name; a type that is not here has room."""
    metrics: FleetMetrics | None = None
    issuer: Issuer | None = ISSUER
    handovers: Handovers = field(default_factory=Handovers)
    """What the gateways say."""
    gateway_loads: dict[str, GatewayLoad | None] = field(default_factory=dict)
    """What they say about their requests, by name of the pod."""
    settings_read: dict[str, str] | None = None
    """The text of the settings that a gateway has read, by name of the pod. None: gateways are not
    asked for it."""
    unreached: bool = False
    """No call reaches a gateway."""

    def says(self, load: GatewayLoad) -> None:
        """Every gateway answers this from now on."""
        gateways = [pod.name for pod in self.pods.values() if pod.role == names.GATEWAY_ROLE]
        self.gateway_loads = dict.fromkeys(gateways, load)

    def snapshot(self) -> Snapshot:
        loads = {
            uid: Load(
                uid in self.draining,
                self.requests.get(uid, 0),
                0,
                self.draining[uid] - self.now if uid in self.draining else None,
                self.engine_roles.get(uid, pod.role),
            )
            for uid, pod in self.pods.items()
            if pod.started and (pod.draining or self.memory.ask_loads)
        }
        metrics = self.metrics or unknown_metrics(self.now, "NoTargets")
        clock = Clock(self.now, self.now + self.stepped)
        due = clock.monotonic >= self.memory.decide_at and not self.memory.listen
        pods = tuple(self.pods.values())
        next_at = clock.monotonic + self.fleet.spec.autoscaling.interval.seconds
        measured = Measurement(metrics, next_at) if due else None
        sets = {
            name: ReplicaSet(
                deployment=child["metadata"]["uid"],
                role=child["metadata"]["labels"][names.ROLE],
                template_hash=f"hash-of-{name}",
                replicas=child["spec"].get("replicas", 1),
            )
            for (kind, name), child in self.children.items()
            if kind == "Deployment"
        }
        seen = Observed(
            {key: self._with_status(child) for key, child in self.children.items()},
            pods,
            loads,
            measured,
            self.issuer,
            self.handovers,
            sets,
            self._said(),
        )
        return compose(self.fleet, IMAGES, seen, self.memory, clock)

    def _said(self) -> dict[str, GatewayLoad | None]:
        """What gateways answer in this round."""
        read = self.settings_read
        if read is None:
            return self.gateway_loads
        gateways = [p.name for p in self.pods.values() if p.role == names.GATEWAY_ROLE]
        if self.unreached:
            return dict.fromkeys(gateways)
        said = {name: SettingsRead(digest_of(read.get(name))) for name in gateways}
        return {name: GatewayLoad(0, 0.0, settings=each) for name, each in said.items()}

    def settings_of_gateways(self) -> str:
        """The text that gateways read."""
        found: str = self.children["ConfigMap", "chat-gateway"]["data"][names.SETTINGS_KEY]
        return found

    def _with_status(self, child: Any) -> Any:
        """A Deployment says how many of its pods there are; all are of its newest template."""
        if child["kind"] != "Deployment":
            return child
        mine = [pod for pod in self.pods.values() if pod.owner == child["metadata"]["name"]]
        status = {
            "replicas": len(mine),
            "updatedReplicas": len(mine),
            "availableReplicas": sum(pod.ready for pod in mine),
        }
        return {**child, "status": {**child.get("status", {}), **status}}

    def round(self, crash_after: int | None = None) -> Plan:
        """Plan and carry out; with `crash_after` only so many actions, and memory is lost."""
        snapshot = self.snapshot()
        planned = plan(snapshot)
        done = planned.actions if crash_after is None else planned.actions[:crash_after]
        outcomes = tuple(self.do(action) for action in done)
        if crash_after is None:
            planned = conclude(snapshot, planned, outcomes)
            self.memory = planned.memory
            status = status_of(snapshot, planned.draft, outcomes)
            self._write(status.model_copy(update={"refused": self.fleet.status.refused}))
        else:
            self.memory = LoopMemory()
        return planned

    def _write(self, status: ServingDeploymentStatus) -> None:
        self.fleet = self.fleet.model_copy(update={"status": status})

    def refuse(self, mark: RefusedStatus | None) -> None:
        """Someone writes status.refused."""
        self._write(self.fleet.status.model_copy(update={"refused": mark}))

    def set_back(self, seconds_: float) -> None:
        """The wall clock is set back."""
        self.now -= seconds_
        self.stepped += seconds_

    def converge(self, rounds: int = 200) -> int:
        """Run rounds and let time pass until a round has nothing to do; the number of rounds."""
        for number in range(rounds):
            planned = self.round()
            quiet = not (
                planned.actions
                or planned.draft.leaving
                or planned.draft.rolling
                or planned.memory.ask_loads
            )
            if quiet and self._steady():
                return number
            self.tick()
        raise AssertionError(f"not converged after {rounds} rounds: {planned.actions}")

    def _steady(self) -> bool:
        """Every Deployment has its pods, and they are ready as far as they can be."""
        wanted = sum(
            child["spec"].get("replicas", 1)
            for (kind, _), child in self.children.items()
            if kind == "Deployment"
        )
        return len(self.pods) == wanted and all(
            pod.ready or pod.role in self.broken_roles for pod in self.pods.values()
        )

    def do(self, action: Action) -> Outcome:
        match action:
            case Create(obj) | Apply(obj):
                return Outcome(action, applied=self._store(obj))
            case Scale(kind, name, replicas):
                self.children[kind, name] = self._with_replicas(kind, name, replicas)
            case Delete(kind, name):
                del self.children[kind, name]
                if kind == "Deployment":
                    self.pods = {
                        u: planned for u, planned in self.pods.items() if planned.owner != name
                    }
            case AnnotatePod(_, uid, values):
                if uid in self.pods:
                    self._annotate(uid, values)
            case AnnotateRole(name, _, values):
                live = self.children["ServingRole", name]
                noted = {**live["metadata"].get("annotations", {}), **values}
                meta = {**live["metadata"], "annotations": noted}
                self.children["ServingRole", name] = {**live, "metadata": meta}
            case FlipRole(_, uid, labels, notes):
                owner = labels[names.TEMPLATE_HASH].removeprefix("hash-of-")
                self.engine_roles[uid] = self.pods[uid].role
                self.pods[uid] = replace(
                    self.pods[uid], role=labels[names.ROLE], owner=owner,
                    flipped_at=seconds(notes[names.FLIPPED]), cost=int(notes[names.DELETION_COST]),
                )  # fmt: skip
            case Refuse(_, _, _, mark):
                self.refuse(None if mark is None else RefusedStatus.model_validate(mark))
            case HastenDrain(_, ip):
                if not self.deaf:
                    self.draining[ip] = self.now + DRAIN_LEASE_S
            case TakeWorkAgain(_, ip):
                if not self.deaf:
                    self.draining.pop(ip, None)
        return Outcome(action)

    def tick(self, seconds_: float = 1.0) -> None:
        """Time passes: answers end, pods start, ReplicaSets create and remove."""
        self.now += seconds_
        self.draining = {uid: until for uid, until in self.draining.items() if until > self.now}
        self.requests = {u: max(0, n - 1) for u, n in self.requests.items()}
        busy = {uid for uid, running in self.requests.items() if running}
        self.engine_roles = {u: role for u, role in self.engine_roles.items() if u in busy}
        for (kind, name), child in list(self.children.items()):
            labels = child["metadata"]["labels"]
            if kind == "Deployment":
                self._replica_set(name, labels, child["spec"].get("replicas", 1))
        for uid, pod in self.pods.items():
            if not pod.assigned and self._is_full(pod.gpu_type):
                self.pods[uid] = replace(pod, unschedulable="0/3 nodes are available")
                continue
            if self.now - pod.created_at < self.start_s or pod.role in self.broken_roles:
                continue
            ready = uid not in self.draining
            self.pods[uid] = replace(
                pod, phase="Running", started=True, probed=True, assigned=True, ready=ready,
                unschedulable=None,
                ready_at=pod.ready_at or self.now,
            )  # fmt: skip
            reads = not pod.ready or (self.now - pod.created_at) % READ_S == 0
            if self.settings_read is not None and pod.role == names.GATEWAY_ROLE and reads:
                self.settings_read[pod.name] = self.settings_of_gateways()

    def _is_full(self, gpu_type: str) -> bool:
        taken = sum(pod.assigned and pod.gpu_type == gpu_type for pod in self.pods.values())
        return gpu_type in self.room and taken >= self.room[gpu_type]

    def _replica_set(self, name: str, labels: Any, replicas: int) -> None:
        mine = [pod for pod in self.pods.values() if pod.owner == name]
        order = removed_first(map(_as_object, mine), self.now)
        for obj in order[: max(0, len(mine) - replicas)]:
            pod = self.pods[obj["metadata"]["uid"]]
            timeout_s = self.fleet.spec.drain.timeout.seconds
            past = pod.drain_at is not None and self.now - pod.drain_at >= timeout_s
            self.lost += 0 if past else self.requests.get(pod.uid, 0)
            del self.pods[pod.uid]
        for _ in range(replicas - len(mine)):
            uid = f"{name}-{next(self.serial)}"
            self.pods[uid] = Pod(
                name=uid, uid=uid, role=labels[names.ROLE], owner=name, ip=uid,
                revision=labels.get(names.REVISION, ""), created_at=self.now, phase="Pending",
                started=False, assigned=False, ready=False,
                gpu_type=self._template_labels(name).get(names.GPU_TYPE, ""),
                shows_token=names.TOKEN_VOLUME in self._volumes(name),
                tls=names.TLS_VOLUME in self._volumes(name),
            )  # fmt: skip

    def _template_labels(self, deployment: str) -> dict[str, str]:
        spec = self.children["Deployment", deployment]["spec"]
        labels: dict[str, str] = spec["template"]["metadata"].get("labels", {})
        return labels

    def _volumes(self, deployment: str) -> set[str]:
        pod = self.children["Deployment", deployment]["spec"]["template"]["spec"]
        return {volume["name"] for volume in pod.get("volumes", ())}

    def _store(self, obj: Any) -> Any:
        key = (obj["kind"], obj["metadata"]["name"])
        born = {"uid": f"uid-{next(self.serial)}", "creationTimestamp": rfc3339(self.now)}
        live = self.children.get(key, {"metadata": born})
        meta = {**live["metadata"], **obj["metadata"], "resourceVersion": str(next(self.serial))}
        if obj["kind"] == "ConfigMap":
            ours = {"manager": names.FIELD_MANAGER, "time": rfc3339(self.now)}
            meta["managedFields"] = [ours]
        spec = {**live.get("spec", {}), **obj.get("spec", {})}
        self.children[key] = {**obj, "metadata": meta, "spec": spec}
        return self.children[key]

    def _with_replicas(self, kind: str, name: str, replicas: int) -> Any:
        live = self.children[kind, name]
        meta = {**live["metadata"], "resourceVersion": str(next(self.serial))}
        return {**live, "metadata": meta, "spec": {**live["spec"], "replicas": replicas}}

    def _annotate(self, uid: str, values: Any) -> None:
        if names.RECYCLE in values:
            at = seconds(values[names.RECYCLE])
            self.pods[uid] = replace(self.pods[uid], recycled_at=at)
            return
        drain = values[names.DRAIN]
        ours = values[names.DELETION_COST] == OUR_COST
        self.pods[uid] = replace(
            self.pods[uid], draining=drain is not None, victim=ours, drain_at=seconds(drain),
            cost=int(OUR_COST) if ours else 0,
        )  # fmt: skip

    def replicas(self, role: str) -> int:
        return sum(
            child["spec"].get("replicas", 1)
            for (kind, _), child in self.children.items()
            if kind == "Deployment" and child["metadata"]["labels"][names.ROLE] == role
        )

    def edit(self, **spec: Any) -> None:
        """The user edits the spec."""
        body = dump(self.fleet.spec) | spec
        generation = self.fleet.metadata.generation + 1
        status = self.fleet.status
        self.fleet = fleet(generation=generation, **body).model_copy(update={"status": status})

    def scale_role(self, role: str, replicas: int) -> None:
        """Another writer scales the ServingRole."""
        name = names.serving_role("chat", role)  # type: ignore[arg-type]
        live = self._with_replicas("ServingRole", name, replicas)
        owner = {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        live["metadata"]["managedFields"] = [owner]
        self.children["ServingRole", name] = live


def _as_object(pod: Pod) -> Any:
    """What a ReplicaSet looks at."""
    ready = {"type": "Ready", "status": str(pod.ready)}
    return {
        "metadata": {
            "name": pod.name,
            "uid": pod.uid,
            "annotations": {COST: str(pod.cost)},
            "creationTimestamp": rfc3339(pod.created_at),
        },
        "spec": {"nodeName": "node-1"} if pod.assigned else {},
        "status": {
            "phase": pod.phase,
            "conditions": [{**ready, "lastTransitionTime": rfc3339(pod.ready_at or 0.0)}],
            "containerStatuses": [{"restartCount": pod.restarts}],
        },
    }


def converged(**spec: Any) -> Model:
    """A fleet with this spec, after so many rounds that the next one has nothing to do."""
    model = Model(fleet(**spec))
    model.converge()
    return model


def condition(model: Model, type_: str) -> Condition:
    """The fleet's condition of this type."""
    return next(c for c in model.fleet.status.conditions if c.type == type_)
