"""What the plan knows of a pod, and of the order in which Kubernetes removes pods.

`pod_of` takes a Pod as the API server sends it and keeps about 300 bytes of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from argosy_operator.core import names

ENGINE_CONTAINER = "engine"
OUR_COST = "-1000"


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. Times are seconds since the epoch, None where it has not come to that.

    `draining`: annotated, by us or by a person; `ours`: the operator chose it as a victim.
    `started`: its engine's process runs; `probed`: it has been ready since. `trouble` is (reason,
    message) of a container that waits, `ended` the (reason, message) with which the engine's last
    process ended.
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


def pod_of(raw: Mapping[str, Any]) -> Pod:
    """The excerpt of a Pod object."""
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    scheduled = conditions.get("PodScheduled", {})
    containers = {c["name"]: c for c in status.get("containerStatuses") or ()}
    waiting = [*(status.get("initContainerStatuses") or ()), *containers.values()]
    engine: Mapping[str, Any] = containers.get(ENGINE_CONTAINER) or next(
        iter(containers.values()), {}
    )
    cost = annotations.get(names.DELETION_COST, "0")
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        role=labels.get(names.ROLE, ""),
        revision=labels.get(names.REVISION, ""),
        owner=next(
            (o["uid"] for o in meta.get("ownerReferences") or () if o.get("controller")), ""
        ),
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
        cost=int(cost) if cost.removeprefix("-").isdigit() else 0,
        restarts=engine.get("restartCount", 0),
        gpus=_gpus(spec),
        unschedulable=(
            scheduled.get("message", "no node takes the pod")
            if scheduled.get("reason") == "Unschedulable"
            else None
        ),
        trouble=_waiting(waiting),
        ended=_ended(engine),
    )


def seconds(time: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time; None for none or for something else."""
    if not time:
        return None
    try:
        parsed = datetime.fromisoformat(time)
    except ValueError:
        return None
    return parsed.timestamp() if parsed.tzinfo else None


def _gpus(spec: Mapping[str, Any]) -> int:
    limits = [(c.get("resources") or {}).get("limits") or {} for c in spec.get("containers") or ()]
    return sum(int(limit.get("nvidia.com/gpu", 0)) for limit in limits)


def _waiting(statuses: Iterable[Mapping[str, Any]]) -> tuple[str, str] | None:
    for status in statuses:
        waiting = (status.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return waiting["reason"], waiting.get("message", "")
    return None


def _ended(engine: Mapping[str, Any]) -> tuple[str, str] | None:
    for state in (engine.get("state") or {}, engine.get("lastState") or {}):
        ended = state.get("terminated")
        if ended and ended.get("exitCode") != 0:
            return ended.get("reason", "Error"), ended.get(
                "message"
            ) or f"exit code {ended['exitCode']}"
    return None
