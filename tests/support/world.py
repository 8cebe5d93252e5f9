"""A cluster in virtual time around the operator's real loop, with the faults that clusters have.

`Api` keeps the objects. Here are the controllers that read them: Deployments and their ReplicaSets,
the garbage collector, a kubelet, engines with answers in them; and the operator, which has a round
when an event reports a change or when its last round asked for the next one. It may die at any
call. What must never happen is noted in `wrongs`, by rules that are written here by hand.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from argosy_operator.adapters.protocols import ClusterError, Gateways
from argosy_operator.core.snapshot.pods import Load
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.render.common import Images
from argosy_operator.shell import loop
from argosy_operator.shell.gather import Sources
from argosy_operator.shell.loop import UnfinishedError, round_of
from tests.support.api import FLEET, Api, DiedError, Object, written
from tests.support.replica_sets import created, is_active, ready_since, removed_first

KEY = ("ns", "chat")
ROLE = "serving.argosy.dev/role"
REVISION = "serving.argosy.dev/revision"
HASH = "pod-template-hash"
FLIPPED = "serving.argosy.dev/flipped"
DRAIN = "serving.argosy.dev/drain"
ACCOUNT = "serving.argosy.dev/account"
TIMEOUT = "serving.argosy.dev/drain-timeout-s"
ORDER_S = 60.0  # an order to drain; designs/0001-seams.md
START_S = 2.0
AGAIN_S = 1.0
IMAGES = Images("engine:1", "gateway:1", fetch="fetch:1")
RESTS_S = 400.0  # longer than the operator rests without an event


def scaled_by_others(drain: str, **autoscaling: Any) -> dict[str, Any]:
    """A spec of one to four pods in each role, which drain for so long at most."""
    wide = {"replicas": {"min": 1, "max": 4}}
    return {
        "roles": {"prefill": wide, "decode": wide, "colocated": wide},
        "autoscaling": {"policy": "External", **autoscaling},
        "drain": {"timeout": drain},
        "kvTransfer": {"timeout": "1s"},
    }


@dataclass
class Engine:
    """The process in one pod."""

    running: int = 0
    leases: int = 0
    until: float = float("-inf")
    """It takes no work until then."""
    marked_at: float | None = None
    """When the pod's mark was first seen; None without one."""
    role: str = ""
    """What it does; the file with its pod's label may say something else."""


@dataclass
class World:
    """The fleet `chat` under policy External, and everything around it."""

    spec: Mapping[str, Any]
    gateways: Gateways | None = None
    """What the operator asks about handovers; None: it does not ask."""
    now: float = 1_000_000.0
    memory: LoopMemory = field(default_factory=LoopMemory)
    due_at: float = 0.0
    events: int = 1
    """How often each event arrives; 0: events are lost."""
    deaf: bool = False
    """No call reaches an engine."""
    asleep: frozenset[str] = frozenset()
    """Controllers that do nothing: `Deployment`, or the role of a ReplicaSet."""
    flips: int = 0
    """Pods that got another role."""
    start_s: float = START_S
    """From a pod's creation until its engine serves."""
    runs_s: float = 1.0
    """From a pod's creation until the process of its engine runs, which then loads its weights."""
    nodes: int = 2
    engines: dict[str, Engine] = field(default_factory=dict)
    most_pods: int = 1000
    """More engine pods than these are wrong."""
    wrongs: list[str] = field(default_factory=list)
    """What must never happen, and did."""

    def __post_init__(self) -> None:
        self.api = Api(lambda: self.now, self._changed)
        self.runner = asyncio.Runner()
        self.fleet_is_new()

    def close(self) -> None:
        self.runner.close()

    def twin(self) -> "World":
        """Another world in the same state, which goes its own way from here."""
        engines = {uid: replace(engine) for uid, engine in self.engines.items()}
        other = replace(self, engines=engines, wrongs=[*self.wrongs])
        other.api = self.api.twin(lambda: other.now, other._changed)
        other.due_at = self.due_at
        return other

    # The user, and other writers.

    def fleet_is_new(self) -> None:
        """The user creates the fleet, or deletes it and creates it again."""
        if ("ServingDeployment", "chat") in self.api.objects:
            self.api.remove(("ServingDeployment", "chat"))
        meta = {"name": "chat", "namespace": "ns"}
        self.api.put(
            {
                "apiVersion": "serving.argosy.dev/v1alpha1",
                "kind": "ServingDeployment",
                "metadata": meta,
                "spec": {"model": {"uri": "sim://opt-13b-a100"}, **self.spec},
            }
        )
        self.due_at = self.now

    @property
    def fleet(self) -> Object:
        return self.api.objects["ServingDeployment", "chat"]

    def edit(self, **spec: Any) -> None:
        self.spec = {**self.spec, **spec}
        self.api.put({**self.fleet, "spec": {**self.fleet["spec"], **spec}})

    def scale(self, replicas: int, **roles: int) -> None:
        """Another writer scales the ServingRoles of the fleet, some to a number of their own."""
        for handle in filter(self._is_ours, self.api.of("ServingRole")):
            number = roles.get(handle["metadata"]["labels"][ROLE], replicas)
            self.api.set_replicas("ServingRole", handle["metadata"]["name"], number, "kubectl")

    def take_name(self, kind: str, name: str, labelled: bool = False) -> None:
        """Another owner's object takes the name of a child, whose own object is deleted. It may
        carry the fleet's labels, which anyone can write."""
        if (kind, name) in self.api.objects:
            self.api.remove((kind, name))
        owner = {"kind": "Tenant", "name": "other", "uid": "of-another", "controller": True}
        meta = {"name": name, "namespace": "ns", "ownerReferences": [owner]}
        labels = {FLEET: "chat", ROLE: "gateway"} if labelled else {}
        spec = {"foreign": True, "replicas": 3}
        self.api.put({"kind": kind, "metadata": {**meta, "labels": labels}, "spec": spec})

    def strangers(self) -> list[Object]:
        return [obj for obj in self.api.objects.values() if self._is_foreign(obj)]

    def leave_names(self) -> None:
        """The other owner deletes its objects."""
        for obj in self.strangers():
            self.api.remove((obj["kind"], obj["metadata"]["name"]))

    def evict(self, pod: Object) -> None:
        """A node is drained, or dies: nothing that the operator does."""
        self.api.remove(("Pod", pod["metadata"]["name"]))

    def work(self, *running: int, leases: int = 0) -> None:
        """Requests arrive at the pods that gateways send to: so many at the first, at the second,
        and so on, from the oldest on; the last number counts for all others."""
        pods = sorted(self.serving(), key=lambda pod: (created(pod), pod["metadata"]["name"]))
        for number, pod in enumerate(pods):
            engine = self.engines[pod["metadata"]["uid"]]
            engine.running += running[min(number, len(running) - 1)]
            engine.leases += leases

    # Time.

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes: answers end, controllers act, and the operator has the rounds it is due."""
        self.now += seconds
        for engine in self.engines.values():
            engine.running = max(0, engine.running - 1)
            engine.leases = max(0, engine.leases - 1)
        self.controllers()
        self._judge_number()
        if self.due_at <= self.now:
            for _ in range(max(1, self.events)):
                self.round()

    def settle(self, limit_s: float = 6000.0) -> None:
        """All faults end; time passes until nothing is written any more."""
        self.api.faults.clear()
        self.api.stale, self.api.dies_after, self.deaf = {}, None, False
        self.asleep = frozenset()
        until, changed_at = self.now + limit_s, self.now
        while self.now - changed_at < RESTS_S:
            state = self.api.states[-1]
            self.tick(min(max(1.0, self.due_at - self.now), 60.0))
            if self.api.states[-1] is not state:
                changed_at = self.now
            if self.now > until:
                self.wrongs.append("the fleet does not come to rest")
                return

    def round(self) -> None:
        """One round of the operator; its process may die in it."""
        marked = self._marked()
        before = {role: len(self.serving(role)) for role in self.roles()}
        clock = SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now)
        sources = Sources(self.api, None, self, IMAGES, gateways=self.gateways)  # type: ignore[arg-type]
        self.due_at = float("inf")
        try:
            with patch.object(loop, "time", clock):
                result = self.runner.run(round_of(sources, KEY, self.memory))
        except DiedError:
            self.memory, self.due_at = LoopMemory(), self.now + AGAIN_S
        except UnfinishedError as error:
            self.memory, self.due_at = error.memory, self.now + AGAIN_S
        except ClusterError:
            self.due_at = self.now + AGAIN_S
        else:
            self.memory, wake_s = result or (LoopMemory(), float("inf"))
            self.due_at = min(self.due_at, self.now + wake_s)
        self.api.dead, self.api.dies_after = False, None
        self._judge_orders()
        self._judge_flips()
        if not self.api.stale:
            self._judge_marks(before, self._marked() - marked)
        self.api.stale = {}
        self.controllers()

    # What the engines answer (`protocols.Engines`); an address is the pod's uid.

    async def load(self, ip: str, fleet: object, uid: str) -> Load | None:
        self.api.alive()
        if self.deaf or ip not in self.engines:
            return None
        engine = self.engines[ip]
        left_s = engine.until - self.now
        drains = left_s > 0
        left_s_or_none = left_s if drains else None
        return Load(drains, engine.running, engine.leases, left_s_or_none, engine.role)

    async def drain(self, ip: str, fleet: object, uid: str) -> bool:
        self.api.alive()
        pod = self._pod_by_uid(ip)
        marked = pod is not None and self._is_ours(pod) and DRAIN in _annotations(pod)
        if not (marked or self.api.stale):
            self.wrongs.append(f"an engine was ordered to drain without its pod's mark: {ip}")
        if self.deaf or ip not in self.engines:
            return False
        self.engines[ip].until = self.now + ORDER_S
        return True

    async def take_work_again(self, ip: str, fleet: object, uid: str) -> bool:
        self.api.alive()
        if self.deaf or ip not in self.engines:
            return False
        self.engines[ip].until = float("-inf")
        return True

    # Controllers.

    def controllers(self) -> None:
        """Garbage collector, Deployments with one ReplicaSet each, kubelets."""
        self._collect()
        awake = "Deployment" not in self.asleep
        for deployment in filter(self._is_ours, self.api.of("Deployment")) if awake else ():
            self._deployment(deployment)
        for replica_set in filter(self._is_ours, self.api.of("ReplicaSet")):
            self._replica_set(replica_set)
        for replica_set in filter(self._is_ours, self.api.of("ReplicaSet")) if awake else ():
            self._report(replica_set)
        self._kubelet()

    def _collect(self) -> None:
        """Objects whose owners are gone go, too; terminating pods end."""
        gone = True
        while gone:
            uids = {obj["metadata"]["uid"] for obj in self.api.objects.values()} | {"of-another"}
            gone = [
                key
                for key, obj in self.api.objects.items()
                if (owners := obj["metadata"].get("ownerReferences"))
                and all(owner["uid"] not in uids for owner in owners)
            ]
            for key in gone:
                self.api.remove(key)

    def _deployment(self, deployment: Object) -> None:
        """Its ReplicaSet exists, and wants as many pods."""
        meta = deployment["metadata"]
        hashed = hashlib.sha256(meta["name"].encode()).hexdigest()[:5]
        name = f"{meta['name']}-{hashed}"
        owner = {"kind": "Deployment", "name": meta["name"], "uid": meta["uid"], "controller": True}
        labels = {**deployment["spec"]["template"]["metadata"]["labels"], HASH: hashed}
        own = {"name": name, "namespace": "ns", "labels": labels, "ownerReferences": [owner]}
        child = self.api.objects.get(("ReplicaSet", name)) or self.api.put(
            {"kind": "ReplicaSet", "metadata": own, "spec": {"replicas": 0}}
        )
        if child["metadata"]["ownerReferences"] != [owner]:
            return  # of an earlier Deployment of this name; the garbage collector comes first
        self.api.put({**child, "spec": {"replicas": deployment["spec"]["replicas"]}})

    def _report(self, replica_set: Object) -> None:
        """The Deployment's status follows the pods of its ReplicaSet."""
        (of,) = replica_set["metadata"]["ownerReferences"]
        deployment = self.api.objects["Deployment", of["name"]]
        pods, meta = self._pods_of(replica_set), deployment["metadata"]
        ready = sum(ready_since(pod) is not None for pod in pods)
        status = {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready}
        seen = {"updatedReplicas": len(pods), "observedGeneration": meta["generation"]}
        status = {**status, **seen}
        self.api.put({**deployment, "status": status})

    def _replica_set(self, replica_set: Object) -> None:
        """Releases pods that its selector no longer matches, adopts orphans that it matches; then
        creates or removes."""
        meta, wanted = replica_set["metadata"], replica_set["spec"]["replicas"]
        (of,) = meta["ownerReferences"]
        deployment = self.api.objects.get(("Deployment", of["name"]))
        if meta["labels"][ROLE] in self.asleep or deployment is None:
            return
        self._claim(replica_set)
        pods = self._pods_of(replica_set)
        for pod in removed_first(pods, self.now)[: max(0, len(pods) - wanted)]:
            self._judge_removal(pod, deployment)
            self.api.remove(("Pod", pod["metadata"]["name"]))
        owner = {"kind": "ReplicaSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
        for _ in range(wanted - len(pods)):
            number = next(self.api._serial)
            own = {"name": f"{meta['name']}-{number}", "namespace": "ns", "labels": meta["labels"]}
            self.api.put(
                {
                    "kind": "Pod",
                    "metadata": {**own, "annotations": {}, "ownerReferences": [owner]},
                    "spec": {"containers": [{"name": "engine"}]},
                    "status": {"phase": "Pending"},
                }
            )
        status = {"replicas": wanted, "observedGeneration": meta["generation"]}
        self.api.put({**replica_set, "status": status})

    def _claim(self, replica_set: Object) -> None:
        """As ClaimPods in controller_ref_manager.go."""
        meta = replica_set["metadata"]
        selector = {key: meta["labels"][key] for key in (FLEET, ROLE, HASH)}
        owner = {"kind": "ReplicaSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
        for pod in self.api.of("Pod"):
            own = pod["metadata"]
            owners = own.get("ownerReferences", [])
            matches = selector.items() <= own["labels"].items()
            if owner in owners and not matches:
                self.api.put({**pod, "metadata": {**own, "ownerReferences": []}})
            elif not owners and matches and is_active(pod):
                self.api.put({**pod, "metadata": {**own, "ownerReferences": [owner]}})

    def _pods_of(self, replica_set: Object) -> list[Object]:
        uid = replica_set["metadata"]["uid"]
        pods = self.api.of("Pod")
        return [pod for pod in pods if is_active(pod) and _owner(pod) == uid]

    def _kubelet(self) -> None:
        """Pods start, and are ready unless their engine drains."""
        for pod in self.api.of("Pod"):
            if self._is_foreign(pod):
                continue
            uid = pod["metadata"]["uid"]
            age_s = self.now - _seconds(pod["metadata"]["creationTimestamp"])
            if age_s < self.start_s:
                if age_s >= self.runs_s and pod["status"]["phase"] == "Pending":
                    self._runs(pod)
                continue
            engine = self.engines.setdefault(uid, Engine())
            if engine.role != (label := pod["metadata"]["labels"][ROLE]) and not (
                engine.running or engine.leases
            ):
                engine.role = label
            mark = DRAIN in _annotations(pod)
            engine.marked_at = (engine.marked_at or self.now) if mark else None
            ready = engine.until <= self.now
            since = ready_since(pod)
            at = written(since if since is not None and ready else self.now)
            old = next((c for c in pod["status"].get("conditions", ()) if c["type"] == "Ready"), {})
            if old.get("status") == str(ready):
                at = old["lastTransitionTime"]
            self._runs(pod, ready, at)
        there = {pod["metadata"]["uid"] for pod in self.api.of("Pod")}
        self.engines = {uid: engine for uid, engine in self.engines.items() if uid in there}

    def _runs(self, pod: Object, ready: bool | None = None, at: str = "") -> None:
        """The process runs on a node; it is ready or not since `at`, or still loads (None)."""
        uid = pod["metadata"]["uid"]
        containers = pod["status"].get("containerStatuses", ())
        loaded = bool(ready) or any(container["started"] for container in containers)
        is_ready = {"type": "Ready", "status": str(bool(ready))}
        engine = {"name": "engine", "state": {"running": {}}, "restartCount": 0}
        status = {
            "phase": "Running",
            "podIP": uid,
            "conditions": [{**is_ready, "lastTransitionTime": at or written(self.now)}],
            "containerStatuses": [{**engine, "started": loaded}],
        }
        spec = {**pod["spec"], "nodeName": f"node-{int(uid, 16) % self.nodes}"}
        self.api.put({**pod, "spec": spec, "status": status})

    def _changed(self, obj: Object) -> None:
        """A watch reports the object, if the event is not lost."""
        labels = obj["metadata"].get("labels") or {}
        watched = obj["kind"] == "ServingDeployment" or FLEET in labels
        if self.events and watched and obj["kind"] not in ("ReplicaSet", "Event"):
            self.due_at = min(self.due_at, self.now)

    # What is asked of the world.

    def roles(self) -> tuple[str, ...]:
        split = self.fleet["spec"].get("mode", "colocated") == "disaggregated"
        return ("prefill", "decode") if split else ("colocated",)

    def target(self, role: str) -> int:
        """What the ServingRole asks for, within the bounds of the spec."""
        bounds = self.fleet["spec"]["roles"][role]["replicas"]
        live = self.api.objects.get(("ServingRole", f"chat-{role}"))
        ours = live is not None and self._is_ours(live)
        asked = live["spec"].get("replicas", bounds["min"]) if live and ours else bounds["min"]
        return min(max(asked, bounds["min"]), bounds["max"])

    def serving(self, role: str | None = None) -> list[Object]:
        """Engine pods of the fleet that gateways send requests to."""
        return [
            pod
            for pod in self.api.of("Pod")
            if self._is_ours(pod)
            and is_active(pod)
            and ready_since(pod) is not None
            and DRAIN not in _annotations(pod)
            and pod["metadata"]["labels"][ROLE] in ((role,) if role else ALL_ROLES)
        ]

    def end_state(self) -> dict[str, Any]:
        """What is left when all is done, without names and times that differ."""
        children = {
            f"{kind}/{name}": _without_account(obj.get("spec"))
            for (kind, name), obj in self.api.objects.items()
            if kind not in ("Pod", "ReplicaSet", "ServingDeployment")
        }
        pods = sorted(
            f"{labels[ROLE]} {labels.get(REVISION)} ready={ready_since(pod) is not None} "
            f"{[key for key in _annotations(pod) if key != FLIPPED]}"
            for pod in self.api.of("Pod")
            if (labels := pod["metadata"]["labels"])
        )
        conditions = {
            c["type"]: (c["status"], c["reason"]) for c in self.fleet["status"]["conditions"]
        }
        return {**children, "pods": pods, **conditions}

    # Rules by hand.

    def _judge_orders(self) -> None:
        for kind, obj in self.api.orders:
            named = f"{kind}/{obj['metadata']['name']}"
            if kind == "ServingDeployment":
                self.wrongs.append(f"the user's object was written: {named}")
            elif kind != "ServingDeployment/status" and not self._is_ours(obj):
                self.wrongs.append(f"an object of another owner was written: {named}")
        self.api.orders.clear()

    def _judge_flips(self) -> None:
        """Only a marked pod whose engine has nothing to do gets another role."""
        for pod in self.api.relabelled:
            engine = self.engines.get(pod["metadata"]["uid"])
            empty = engine is not None and not (engine.running or engine.leases)
            if not (empty and DRAIN in _annotations(pod)):
                self.wrongs.append(f"{pod['metadata']['name']} got another role with {engine}")
            self.flips += 1
        self.api.relabelled.clear()

    def _judge_marks(self, before: Mapping[str, int], newly: frozenset[str]) -> None:
        """Pods leave only as long as every role keeps the pods that it is to have."""
        for role in self.roles() if newly else ():
            keeps = len(self.serving(role))
            if keeps < min(before.get(role, 0), self.target(role)) - self._spared():
                had = f"had {before[role]} serving pods"
                self.wrongs.append(f"{role} {had}, and keeps {keeps} of {self.target(role)}")

    def _spared(self) -> int:
        """Pods of a role that a rollout may take before others serve in their place."""
        rollout = self.fleet["spec"].get("rollout", {})
        if rollout.get("strategy") == "Recreate":
            return 1000
        return 1 if rollout.get("maxSurgeGPUs") == 0 else 0

    def _judge_number(self) -> None:
        """Pods that are about to be removed hold their GPUs, too."""
        engines = [p for p in self.api.of("Pod") if p["metadata"]["labels"][ROLE] in ALL_ROLES]
        if len(engines) > self.most_pods:
            self.wrongs.append(f"{len(engines)} engine pods, of {self.most_pods} at most")

    def _judge_removal(self, pod: Object, deployment: Object) -> None:
        """A ReplicaSet removes this pod because the operator lowered replicas."""
        managers = {entry["manager"] for entry in deployment["metadata"]["managedFields"]}
        engine = self.engines.get(pod["metadata"]["uid"])
        gateway = pod["metadata"]["labels"][ROLE] == "gateway"
        if managers != {"argosy"} or engine is None or gateway or not self._is_ours(pod):
            return
        timeout_s = float(deployment["metadata"]["annotations"][TIMEOUT])
        over = engine.marked_at is not None and self.now - engine.marked_at >= timeout_s
        empty = engine.running == 0 and engine.leases == 0 and engine.until > self.now
        if not (over or (empty and engine.marked_at is not None)):
            self.wrongs.append(f"{pod['metadata']['name']} was removed with {engine}")

    def _marked(self) -> frozenset[str]:
        return frozenset(
            pod["metadata"]["uid"] for pod in self.api.of("Pod") if DRAIN in _annotations(pod)
        )

    def _is_ours(self, obj: Object) -> bool:
        """Whether the chain of controllers ends at the fleet that is there now."""
        for owner in obj["metadata"].get("ownerReferences", ()):
            if owner["uid"] == self.fleet["metadata"]["uid"]:
                return True
            live = self.api.objects.get((owner["kind"], owner["name"]))
            if live is not None and live["metadata"]["uid"] == owner["uid"]:
                return self._is_ours(live)
        return False

    def _is_foreign(self, obj: Object) -> bool:
        owners = obj["metadata"].get("ownerReferences", ())
        return any(owner["uid"] == "of-another" for owner in owners)

    def _pod_by_uid(self, uid: str) -> Object | None:
        return next((pod for pod in self.api.of("Pod") if pod["metadata"]["uid"] == uid), None)


ALL_ROLES = ("prefill", "decode", "colocated")


def _without_account(spec: Any) -> Any:
    """Gateway pods name the uid of a ServiceAccount that was made anew; the rest is the same."""
    if not spec or "template" not in spec:
        return spec
    meta = spec["template"]["metadata"]
    annotations = {key: text for key, text in meta["annotations"].items() if key != ACCOUNT}
    template = {**spec["template"], "metadata": {**meta, "annotations": annotations}}
    return {**spec, "template": template}


def _owner(pod: Object) -> str:
    return next((str(o["uid"]) for o in pod["metadata"].get("ownerReferences", ())), "")


def _annotations(pod: Object) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
