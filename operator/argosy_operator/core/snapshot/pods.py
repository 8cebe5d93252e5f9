"""What a plan knows of a pod, and the order in which Kubernetes removes pods.

`pod_of` takes a Pod as the API server sends it and keeps about 300 bytes of it. `owned_pods` leaves
out pods that only carry the fleet's labels: any user who may create pods can write those.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cmp_to_key
from itertools import accumulate, pairwise
from typing import NamedTuple

from argosy_law.observe import Front
from argosy_law.signals.gateways import Reading
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, quantity, seconds

GPU = "nvidia.com/gpu"
OUR_COST = "-1000"
"""The deletion cost of a victim; a ReplicaSet removes the lowest first, and 0 is the default."""
FLIPPED_COST = "1000"
"""The deletion cost of a pod that was flipped and still drains. Where its new ReplicaSet has a pod
too many, it removes one that still loads before this one."""
_CLAIMED = re.compile("[1-9][0-9]?")
_COST = re.compile("0|-?[1-9][0-9]{0,9}")
_AT_FIRST = ("ContainerCreating", "PodInitializing")
"""Why containers of every new pod wait."""


@dataclass(frozen=True, slots=True, order=True)
class FailingPair:
    """Two pods whose last handovers failed, as a gateway says."""

    prefill: str
    """Name of the pod; so is `decode`."""
    decode: str
    reason: str
    """The decode engine's word for it."""
    failures: int
    """In a row."""
    since_s: float = 0.0
    """How long ago the first of these failures was; so is `last_s` for the last one. A gateway that
    does not say when is no evidence of anything that lasts."""
    last_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Handovers:
    """What gateways have seen of handovers. Pods are known by name."""

    failing: frozenset[FailingPair] = frozenset()
    whole_s: Mapping[str, float] = field(default_factory=dict)
    """How many seconds ago a pod had its last whole handover; pods without one are left out."""

    def join(self, other: "Handovers") -> "Handovers":
        """What both have seen."""
        known, new = self.whole_s, other.whole_s
        latest = {pod: min(known.get(pod, age), age) for pod, age in new.items()}
        return Handovers(self.failing | other.failing, {**known, **latest})


class StartPhases(NamedTuple):
    """What the seconds from a pod's creation to its readiness went to. None is negative, and
    together they are all of that time."""

    scheduling: float
    """Until it had a node."""
    files: float
    """Until its volumes were mounted, and while its init containers ran."""
    images: float
    """Until its engine's process was started: nodes pull images then, and image volumes."""
    load: float
    """From there until it was ready."""


class Start(NamedTuple):
    """A pod's time from its creation to its first readiness."""

    role: str
    seconds: float
    revision: str
    phases: StartPhases | None = None
    """None for a start that an earlier operator measured."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. Times are seconds since the epoch; None if it has not happened."""

    name: str
    uid: str
    role: str
    """The label; "gateway" for gateways."""
    revision: str
    """The label; "" for gateways."""
    owner: str = ""
    """Uid of its ReplicaSet, or of the Job of a pod that fetches the model."""
    ip: str | None = None
    created_at: float = 0.0
    ready_at: float | None = None
    """When it became ready the last time; None if it is not ready."""
    phases: StartPhases | None = None
    """What it did until `ready_at`; None if it is not ready, or its process was started again."""
    waits_since: float = 0.0
    """When it was made, got its node or was ready last: since then it waits for what comes next."""
    drain_at: float | None = None
    """When its drain began, as the annotation says; None if it cannot be read."""
    account: str = ""
    """Its ServiceAccount."""
    flipped_at: float | None = None
    """When it got its role of now, from the other one; None if it was made for its role."""
    recycled_at: float | None = None
    """When it was chosen to be replaced, because its handovers fail."""
    phase: str = "Running"
    assigned: bool = True
    """It has a node."""
    node: str = ""
    """The node's name; "" without one."""
    started: bool = True
    """The process of its engine runs."""
    probed: bool = False
    """It has been ready since its process started."""
    ready: bool = True
    terminating: bool = False
    draining: bool = False
    """Annotated to drain, by the operator or by a person."""
    victim: bool = False
    """The operator chose it for removal, or for another role: annotated, with a cost of ours."""
    cost: int = 0
    """Its deletion cost."""
    restarts: int = 0
    shows_token: bool = False
    """Its calls of engines carry a token."""
    tls: bool = False
    """It has a certificate."""
    admin: bool = True
    """Its engine has an admin port, which other engines than ours do not."""
    gpus: int = 0
    """GPUs of all its containers."""
    gpu_type: str = ""
    """The label; "" where the role has no gpuTypes."""
    unreadable: str | None = None
    """A GPU limit that is not a number, quoted."""
    unschedulable: str | None = None
    """The scheduler's message, if no node takes the pod."""
    unplaced: str = ""
    """Why it has no node although no node was found too small: a gate, or a scheduler's error."""
    waiting: tuple[str, str] | None = None
    """Reason and message of a container that cannot start."""
    creating: str = ""
    """The kubelet's word for a container that it has not made yet: ContainerCreating, or
    PodInitializing, after init containers. Every pod is so at first."""
    set_up: bool | None = None
    """Its volumes are mounted and it has its network; None if the kubelet does not say."""
    terminated: tuple[str, str] | None = None
    """Reason and message with which the engine's last process failed."""
    said: str = ""
    """The termination message of a process that ended well."""

    @property
    def running(self) -> bool:
        """Its process may still make calls, even while it is being deleted."""
        return self.phase not in ("Succeeded", "Failed")

    @property
    def alive(self) -> bool:
        """Its ReplicaSet counts it."""
        return not self.terminating and self.running

    @property
    def serving(self) -> bool:
        """Gateways send it requests."""
        return self.alive and self.ready and not self.draining

    @property
    def crashes(self) -> bool:
        """Its engine's process has ended before. Between two crashes it runs for a moment, but it
        is not ready then."""
        return self.restarts > 0 and not self.ready

    @property
    def fails(self) -> bool:
        """It is not ready and says why: no node takes it, its container cannot start or crashes."""
        says = self.unschedulable is not None or self.waiting is not None or self.crashes
        return self.alive and not self.ready and says


def removal_order(pods: Iterable[Pod], now: float) -> list[Pod]:
    """Live pods of one Deployment, in the order in which its ReplicaSet removes them at `now`.

    As ActivePodsWithRanks in Kubernetes' controller_utils.go, for a Deployment with one ReplicaSet.
    """
    live = [pod for pod in pods if pod.alive]
    on_node = Counter(pod.node for pod in live)
    phases = {"Pending": 0, "Unknown": 1}

    def looks(pod: Pod) -> tuple[int, ...]:
        return pod.assigned, phases.get(pod.phase, 2), pod.ready, pod.cost, -on_node[pod.node]

    def compare(one: Pod, other: Pod) -> int:
        if looks(one) != looks(other):
            return -1 if looks(one) < looks(other) else 1
        return (
            (_younger(one, other, one.ready_at, other.ready_at, now) if one.ready else 0)
            or other.restarts - one.restarts
            or _younger(one, other, one.created_at, other.created_at, now)
            or (1 if one.name > other.name else -1)  # so that every round sees one order
        )

    return sorted(live, key=cmp_to_key(compare))


def _younger(
    one: Pod, other: Pod, since: float | None, other_since: float | None, now: float
) -> int:
    """The younger pod comes first. Ages count in powers of two of nanoseconds; within one power the
    uid decides, so that a ReplicaSet does not always remove the newest pods."""
    if since is None or other_since is None or since == other_since:
        return 0
    power, other_power = (int(math.log2(max(1.0, (now - t) * 1e9))) for t in (since, other_since))
    return power - other_power or (1 if one.uid > other.uid else -1)


def owned_pods(
    pods: Iterable[Object], replica_sets: Iterable[Object], deployments: Collection[str]
) -> tuple[Pod, ...]:
    """Pods whose controller is a ReplicaSet whose controller is one of `deployments` (uids)."""
    sets = {
        child["metadata"]["uid"]
        for child in replica_sets
        if controller_of(child, "Deployment") in deployments
    }
    return tuple(pod_of(raw) for raw in pods if controller_of(raw, "ReplicaSet") in sets)


def controller_of(raw: Object, kind: str) -> str | None:
    """The uid of the object's controller if it is of this kind."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((o["uid"] for o in owners if o.get("controller") and o["kind"] == kind), None)


def pod_of(raw: Object) -> Pod:
    """The excerpt of a Pod object."""
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    ready, scheduled, set_up = _conditions(status)
    is_ready = ready.get("status") == "True"
    containers = {c["name"]: c for c in status.get("containerStatuses") or ()}
    waiting = [*(status.get("initContainerStatuses") or ()), *containers.values()]
    ours = (containers[name] for name in (*names.CONTAINERS, *containers) if name in containers)
    engine: Object = next(ours, {})
    cost = annotations.get(names.DELETION_COST, "0")
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    gpus, unreadable = _gpus(spec, annotations.get(names.GPU_RESOURCE, GPU))
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        role=labels.get(names.ROLE, ""),
        revision=labels.get(names.REVISION, ""),
        owner=controller_of(raw, "ReplicaSet") or controller_of(raw, "Job") or "",
        ip=status.get("podIP"),
        created_at=seconds(meta.get("creationTimestamp")) or 0.0,
        ready_at=seconds(ready.get("lastTransitionTime")) if is_ready else None,
        phases=_phases(raw, engine) if is_ready else None,
        waits_since=_latest(meta.get("creationTimestamp"), scheduled, ready),
        account=spec.get("serviceAccountName") or "",
        drain_at=seconds(annotations.get(names.DRAIN)),
        flipped_at=seconds(annotations.get(names.FLIPPED)),
        recycled_at=seconds(annotations.get(names.RECYCLE)),
        phase=status.get("phase", "Pending"),
        assigned=bool(spec.get("nodeName")),
        node=spec.get("nodeName") or "",
        started="running" in (engine.get("state") or {}),
        probed=engine.get("started") is True,  # the startup probe asks for readiness
        ready=is_ready,
        terminating="deletionTimestamp" in meta,
        draining=names.DRAIN in annotations,
        victim=names.DRAIN in annotations and cost in (OUR_COST, FLIPPED_COST),
        cost=_cost(cost),
        restarts=engine.get("restartCount", 0),
        shows_token=names.TOKEN_VOLUME in volumes,
        tls=names.TLS_VOLUME in volumes,
        admin=names.ENGINE not in annotations,
        gpus=gpus + _claimed(annotations.get(names.GPUS_CLAIMED, "")),
        gpu_type=labels.get(names.GPU_TYPE, ""),
        unreadable=unreadable,
        unschedulable=_unschedulable(scheduled),
        unplaced=_unplaced(scheduled),
        waiting=_waiting(waiting),
        creating=_creating(waiting),
        set_up={"True": True, "False": False}.get(set_up.get("status", "")),
        terminated=_ended(engine),
        said=_said(engine),
    )


def _conditions(status: Object) -> tuple[Object, Object, Object]:
    """Is it ready, has it a node, and has the node set it up?"""
    found = {c["type"]: c for c in status.get("conditions") or ()}
    ready, scheduled = found.get("Ready", {}), found.get("PodScheduled", {})
    return ready, scheduled, found.get("PodReadyToStartContainers", {})


def _phases(raw: Object, engine: Object) -> StartPhases | None:
    """Divide the time from a pod's creation to its readiness.

    Each time is read on another machine's clock, in whole seconds: one that lies before the one
    that must precede it counts as equal to it. Where the kubelet does not say when the volumes were
    mounted, that time is part of `images`.
    """
    status = raw.get("status") or {}
    ready, scheduled, set_up = (seconds(c.get("lastTransitionTime")) for c in _conditions(status))
    created = seconds(raw["metadata"].get("creationTimestamp"))
    started = seconds(((engine.get("state") or {}).get("running") or {}).get("startedAt"))
    if created is None or started is None or ready is None or engine.get("restartCount", 0) > 0:
        return None
    ready = max(created, ready)
    in_order = accumulate((created, scheduled or 0.0, set_up or 0.0, started, ready), max)
    times = [min(at, ready) for at in in_order]
    scheduling, mounting, starting, load = (later - at for at, later in pairwise(times))
    init = min(starting, sum(map(_ran_s, status.get("initContainerStatuses") or ())))
    return StartPhases(scheduling, mounting + init, starting - init, load)


def _ran_s(status: Object) -> float:
    """How long an init container ran that has ended."""
    ended = (status.get("state") or {}).get("terminated") or {}
    start, end = seconds(ended.get("startedAt")), seconds(ended.get("finishedAt"))
    return 0.0 if start is None or end is None else max(0.0, end - start)


def _unschedulable(scheduled: Object) -> str | None:
    if scheduled.get("reason") != "Unschedulable":
        return None
    return str(scheduled.get("message", "no node takes the pod"))


def _unplaced(scheduled: Object) -> str:
    reason = scheduled.get("reason", "")
    if scheduled.get("status") != "False" or reason in ("", "Unschedulable"):
        return ""
    return f"{reason}: {scheduled.get('message') or 'no reason was given'}"


def _latest(created: str | None, *conditions: Object) -> float:
    """When it was made, or when one of these conditions last changed."""
    return max(
        seconds(t) or 0.0 for t in (created, *(c.get("lastTransitionTime") for c in conditions))
    )


def _cost(text: str) -> int:
    """0 for what Kubernetes does not accept as a cost: a 32-bit number without leading zeros."""
    cost = int(text) if _COST.fullmatch(text) else 0
    return cost if -(2**31) <= cost < 2**31 else 0


def _claimed(text: str) -> int:
    """GPUs that come with claims; 0 for what no spec could ask for."""
    return int(text) if _CLAIMED.fullmatch(text) else 0


def _gpus(spec: Object, resource: str) -> tuple[int, str | None]:
    """GPUs of all containers, and the text of a limit that is not a number."""
    limits = [(c.get("resources") or {}).get("limits") or {} for c in spec.get("containers") or ()]
    texts = [limit[resource] for limit in limits if resource in limit]
    numbers = [quantity(text) for text in texts]
    unreadable = (text for text, number in zip(texts, numbers, strict=True) if number is None)
    bad = next((f"{resource}: {text}" for text in unreadable), None)
    return int(sum(number for number in numbers if number is not None)), bad


def gpus_of_template(template: Object) -> int:
    """GPUs of one pod of a Deployment's template."""
    notes = (template.get("metadata") or {}).get("annotations") or {}
    gpus, _ = _gpus(template.get("spec") or {}, notes.get(names.GPU_RESOURCE, GPU))
    return gpus + _claimed(notes.get(names.GPUS_CLAIMED, ""))


def _waiting(statuses: Iterable[Object]) -> tuple[str, str] | None:
    for reason, message in _waits(statuses):
        if reason not in _AT_FIRST:
            return reason, message
    return None


def _creating(statuses: Iterable[Object]) -> str:
    return next((reason for reason, _ in _waits(statuses) if reason in _AT_FIRST), "")


def _waits(statuses: Iterable[Object]) -> Iterator[tuple[str, str]]:
    """Reason and message of each container that waits and says why."""
    for status in statuses:
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") is not None:
            yield waiting["reason"], waiting.get("message", "")


def _ended(engine: Object) -> tuple[str, str] | None:
    for state in (engine.get("state") or {}, engine.get("lastState") or {}):
        ended = state.get("terminated")
        if ended and ended.get("exitCode") != 0:
            return ended.get("reason", "Error"), ended.get(
                "message"
            ) or f"exit code {ended['exitCode']}"
    return None


def _said(engine: Object) -> str:
    ended = (engine.get("state") or {}).get("terminated") or {}
    return str(ended.get("message") or "") if ended.get("exitCode") == 0 else ""


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine reports on its admin port."""

    draining: bool
    """It takes no new work."""
    running: int
    """Answers that it still computes."""
    leases: int
    """KV caches that it still holds for decode pods."""
    expires_in_s: float | None = None
    """Seconds until it forgets the order to drain; None if it does not drain by an order."""
    role: str = ""
    """What it does now; "" from an engine that does not say."""


@dataclass(frozen=True, slots=True)
class SettingsRead:
    """What a gateway says of the settings that it looked at last."""

    digest: str
    """Of the settings; "" if it has not read any."""
    refused: str = ""
    """Why it cannot use them, and goes on with older ones; "" if it uses them."""


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """What a gateway reports on its admin port."""

    in_flight: int
    """Requests that it has, those included that wait for a pod."""
    idle_s: float
    """Seconds since its last request, or since its start; 0 while it has one."""
    reading: Reading | None = None
    """Its counters; None from an older gateway, which does not say."""
    on_pods: Mapping[str, int] = field(default_factory=dict)
    """Requests of this gateway on each engine pod without an admin port, by the pod's uid, 0 where
    there is none. A pod that it does not know is missing."""
    left: frozenset[str] = frozenset()
    """Uids of those among them to which it sends nothing more."""
    settings: SettingsRead | None = None
    """None from an older gateway, and from one that has its settings as arguments."""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """What the Job that fetches a model reports."""

    bytes: int
    """That are in the claim."""
    of: int
    """Of the whole model; more than 0."""


def gateways_to_ask(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Gateways that may have requests: those that leave have some until their process ends."""
    found = (pod for pod in pods if pod.role == names.GATEWAY_ROLE and pod.ip)
    return tuple(pod for pod in found if pod.running and pod.started)


def unheard(pods: Iterable[Pod], answers: Mapping[str, GatewayLoad | None]) -> bool:
    """Whether a Ready gateway did not answer. `answers` are by name of the pod."""
    ready = (pod for pod in gateways_to_ask(pods) if pod.alive and pod.ready)
    return any(answers.get(pod.name) is None for pod in ready)


def load_by_gateways(
    uid: str, pods: Iterable[Pod], answers: Mapping[str, GatewayLoad | None]
) -> Load | None:
    """What runs on a pod whose engine does not say, by what gateways have sent there.

    None unless every gateway that runs says it, and knows the pod. It drains when all have stopped
    sending: the engine itself is not told to drain.
    """
    said = [answers.get(pod.name) for pod in gateways_to_ask(pods)]
    heard = [answer for answer in said if answer is not None and uid in answer.on_pods]
    if not said or len(heard) < len(said):
        return None
    running = sum(answer.on_pods[uid] for answer in heard)
    return Load(all(uid in answer.left for answer in heard), running, leases=0)


def front_of(
    pods: Iterable[Pod], answers: Mapping[str, GatewayLoad | None], unheard_s: float
) -> Front:
    """What all gateways together say. They are idle as long as the busiest of them, and only if
    every one that runs says so."""
    asked = gateways_to_ask(pods)
    said = [answer for pod in asked if (answer := answers.get(pod.name)) is not None]
    whole = len(said) == len(asked) and any(pod.alive and pod.ready for pod in asked)
    return Front(
        in_flight=sum(answer.in_flight for answer in said),
        idle_s=min(answer.idle_s for answer in said) if whole else None,
        unheard_s=unheard_s,
    )
