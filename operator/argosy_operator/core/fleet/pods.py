"""What the plan knows of a pod, and of the order in which Kubernetes removes pods.

`owned_pods` leaves out pods that only carry our labels: a user who may create pods can write
them. `pod_of` takes a Pod as the API server sends it and keeps about 300 bytes of it.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.objects import Object, quantity, seconds

GPU = "nvidia.com/gpu"
ENGINE_CONTAINER = "engine"
OUR_COST = "-1000"
_COST = re.compile("-?[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. Times are seconds since the epoch, None where it has not come to that.

    `draining`: annotated, by us or by a person; `ours`: the operator chose it as a victim.
    `started`: its engine's process runs; `probed`: it has been ready since. `trouble` is (reason,
    message) of a container that waits, `ended` the (reason, message) with which the engine's last
    process ended. `unreadable` quotes what was to be a number and is none.
    """

    name: str
    uid: str
    role: str
    revision: str
    owner: str = ""
    ip: str | None = None
    created_at: float = 0.0
    ready_at: float | None = None
    drain_at: float | None = None
    phase: str = "Running"
    assigned: bool = True
    started: bool = True
    probed: bool = False
    ready: bool = True
    terminating: bool = False
    draining: bool = False
    ours: bool = False
    cost: int = 0
    restarts: int = 0
    gpus: int = 0
    unreadable: str | None = None
    unschedulable: str | None = None
    trouble: tuple[str, str] | None = None
    ended: tuple[str, str] | None = None

    @property
    def alive(self) -> bool:
        """Counted by its ReplicaSet."""
        return not self.terminating and self.phase not in ("Succeeded", "Failed")

    @property
    def serving(self) -> bool:
        """The gateway chooses it."""
        return self.alive and self.ready and not self.draining


def removal_order(pods: Iterable[Pod]) -> list[Pod]:
    """Living pods in the order in which a ReplicaSet removes them (Kubernetes' controller_utils.go,
    ActivePodsWithRanks; its rank by node, which needs other pods, is left out)."""
    phases = {"Pending": 0, "Unknown": 1}

    def key(pod: Pod) -> tuple[object, ...]:
        return (
            pod.assigned,
            phases.get(pod.phase, 2),
            pod.ready,
            pod.cost,
            -(pod.ready_at or 0.0) if pod.ready else 0.0,
            -pod.restarts,
            -pod.created_at,
            pod.name,
        )

    return sorted((pod for pod in pods if pod.alive), key=key)


def owned_pods(
    pods: Iterable[Object], replica_sets: Iterable[Object], deployments: Collection[str]
) -> tuple[Pod, ...]:
    """Pods whose controller is a ReplicaSet whose controller is one of `deployments` (uids)."""
    sets = {
        child["metadata"]["uid"]
        for child in replica_sets
        if _controller(child, "Deployment") in deployments
    }
    return tuple(pod_of(raw) for raw in pods if _controller(raw, "ReplicaSet") in sets)


def _controller(raw: Object, kind: str) -> str | None:
    """The uid of the object's controller, where it is of this kind."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((o["uid"] for o in owners if o.get("controller") and o["kind"] == kind), None)


def pod_of(raw: Object) -> Pod:
    """The excerpt of a Pod object."""
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    scheduled = conditions.get("PodScheduled", {})
    containers = {c["name"]: c for c in status.get("containerStatuses") or ()}
    waiting = [*(status.get("initContainerStatuses") or ()), *containers.values()]
    engine: Object = containers.get(ENGINE_CONTAINER) or next(iter(containers.values()), {})
    cost = annotations.get(names.DELETION_COST, "0")
    gpus, unreadable = _gpus(spec)
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        role=labels.get(names.ROLE, ""),
        revision=labels.get(names.REVISION, ""),
        owner=_controller(raw, "ReplicaSet") or "",
        ip=status.get("podIP"),
        created_at=seconds(meta.get("creationTimestamp")) or 0.0,
        ready_at=seconds(ready.get("lastTransitionTime"))
        if ready.get("status") == "True"
        else None,
        drain_at=seconds(annotations.get(names.DRAIN)),
        phase=status.get("phase", "Pending"),
        assigned=bool(spec.get("nodeName")),
        started="running" in (engine.get("state") or {}),
        probed=engine.get("started") is True,  # the startup probe asks for readiness
        ready=ready.get("status") == "True",
        terminating="deletionTimestamp" in meta,
        draining=names.DRAIN in annotations,
        ours=names.DRAIN in annotations and cost == OUR_COST,
        cost=int(cost) if _COST.fullmatch(cost) else 0,
        restarts=engine.get("restartCount", 0),
        gpus=gpus,
        unreadable=unreadable,
        unschedulable=(
            scheduled.get("message", "no node takes the pod")
            if scheduled.get("reason") == "Unschedulable"
            else None
        ),
        trouble=_waiting(waiting),
        ended=_ended(engine),
    )


def _gpus(spec: Object) -> tuple[int, str | None]:
    """GPUs of all containers, and the text of a limit that is not a number."""
    limits = [(c.get("resources") or {}).get("limits") or {} for c in spec.get("containers") or ()]
    texts = [limit[GPU] for limit in limits if GPU in limit]
    numbers = [quantity(text) for text in texts]
    unreadable = (text for text, number in zip(texts, numbers, strict=True) if number is None)
    bad = next((f"{GPU}: {text}" for text in unreadable), None)
    return int(sum(number for number in numbers if number is not None)), bad


def _waiting(statuses: Iterable[Object]) -> tuple[str, str] | None:
    for status in statuses:
        waiting = (status.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return waiting["reason"], waiting.get("message", "")
    return None


def _ended(engine: Object) -> tuple[str, str] | None:
    for state in (engine.get("state") or {}, engine.get("lastState") or {}):
        ended = state.get("terminated")
        if ended and ended.get("exitCode") != 0:
            return ended.get("reason", "Error"), ended.get(
                "message"
            ) or f"exit code {ended['exitCode']}"
    return None


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine says of itself on its admin port: answers and KV leases that it still serves.
    `expires_in_s`: when it forgets the order to drain; None where it does not."""

    draining: bool
    running: int
    leases: int
    expires_in_s: float | None = None
