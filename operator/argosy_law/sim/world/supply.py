"""The pods of the simulated fleet: created, ready, leaving and gone.

`fleet.World` adds the requests. Pods are made and removed as the operator does it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from heapq import heappush
from math import inf, log
from random import Random
from typing import Any, Literal

from argosy_law.pace.gates import APART_S
from argosy_law.sim.world.machine import FLIP_S, Revision, Setup
from argosy_law.sim.world.pods import DecodePod, Pod, PrefillPod

PoolName = Literal["prefill", "decode", "colocated"]
STEP, PROMPTS, PATIENCE, READY, DEADLINE, RELENT, MOVE = range(7)
"""Kinds of events. PROMPTS: a step of a prefill pod; STEP: one of another pod; PATIENCE: a request
that waits in the gateway may have waited for too long; it has no pod. RELENT: a
new pod would have started by now, and the one that is to change its role is not empty. MOVE: the
gateway looks at a pod that drains."""
SWEEP_S = 1.0
"""How often it does. It sees a drain by up to as much later."""


class Supply(ABC):
    """Pods and the events that are due."""

    # more than thirty attributes would be looked up in a dict, which is slower
    __slots__ = (
        "_events", "_flip", "_order", "_random", "_ready_decode", "_ready_prefill", "now", "pods",
        "revisions", "setup",
    )  # fmt: skip

    roles: tuple[PoolName, ...] = ("prefill", "decode")
    """Of the fleet's pods."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.now = setup, 0.0
        self.revisions = [Revision()]
        """Oldest first. New pods are of the last one, unless another is asked for."""
        self.pods: dict[PoolName, list[Pod]] = {role: [] for role in self.roles}
        """All that were ever created, oldest first."""
        self._ready_prefill: list[PrefillPod] = []
        self._ready_decode: list[DecodePod] = []
        self._events: list[tuple[float, int, int, Any, float]] = []
        """Heap of (time, order, kind, pod, stamp)."""
        self._order = 0
        self._flip: tuple[float, PoolName | None] = (-inf, None)
        """When a pod was last chosen for another role, and for which."""
        self._random = Random(f"pods {setup.seed}")  # noqa: S311 (a simulation, not a secret)

    @abstractmethod
    def _resume(self) -> None:
        """A pod takes requests from now on: give it those that waited for one."""

    @abstractmethod
    def _end(self, pod: Pod) -> None:
        """Delete a pod whose time to leave is over. What it still has is lost."""

    def edit(self, revision: Revision) -> None:
        """Ask for a new revision: new pods are of it from now on."""
        self.revisions.append(revision)

    @property
    def newest(self) -> int:
        """Place of the revision that is asked for."""
        return len(self.revisions) - 1

    @property
    def rolling(self) -> bool:
        """Whether pods of an earlier revision exist."""
        return len(self.revisions) > 1 and any(
            pod.revision != self.newest for role in self.roles for pod in self.living(role)
        )

    def wanted(self, role: PoolName) -> list[Pod]:
        """Pods that stay, ready or not."""
        return [pod for pod in self.pods[role] if not pod.draining and not pod.gone]

    def coming(self, role: PoolName) -> list[Pod]:
        """Pods of the other role that become pods of this one when they are empty."""
        if not self.setup.role_flip:
            return []
        return [pod for of in self.roles for pod in self.pods[of] if pod.becomes == role]

    def counted(self, role: PoolName) -> int:
        """Replicas that the role has been asked for: its pods that stay, and those to come."""
        return len(self.wanted(role)) + len(self.coming(role))

    def living(self, role: PoolName) -> list[Pod]:
        """Pods that exist, leaving ones included."""
        return [pod for pod in self.pods[role] if pod.gone_at > self.now]

    def resize(self, replicas: Mapping[PoolName, int]) -> dict[PoolName, int]:
        """Want so many pods of each role; what was added to each, negative: removed.

        A role that shrinks comes first where one that grows may take its pods.
        """
        changes = {role: replicas[role] - self.counted(role) for role in self.roles}
        growing = [role for role in self.roles if changes[role] > 0]
        flips = self.setup.role_flip
        for role in sorted(self.roles, key=lambda role: changes[role] if flips else 0):
            if changes[role]:
                to = growing[0] if changes[role] < 0 and growing else None
                self.scale(role, replicas[role], to=to)
        return {role: change for role, change in changes.items() if change}

    def scale(
        self,
        role: PoolName,
        replicas: int,
        *,
        warm: bool = False,
        to: PoolName | None = None,
        revision: int | None = None,
    ) -> None:
        """Want so many pods of a revision, by default the newest. Leaving ones are called back
        first, then one that leaves the other role may come; new ones take a cold start. One that
        leaves may become a pod of `to`.

        Pods that are not ready leave first, then those with the least work, the newest first.
        """
        of = self.newest if revision is None else revision
        pods = [pod for pod in self.wanted(role) if pod.revision == of]
        coming = self.coming(role)
        missing = replicas - len(pods) - len(coming)
        for pod in coming[: max(-missing, 0)]:
            pod.becomes = None
            missing += 1
        leaving = [
            pod for pod in self.pods[role] if pod.draining and not pod.gone and pod.revision == of
        ]
        recalled = leaving[::-1][: max(missing, 0)]
        for pod in recalled:
            self._relent(pod)
            pod.drain_at = inf
            self._serve(pod)
        for _ in range(missing - len(recalled)):
            if warm or not self._taken(role):
                self._create(role, of, warm=warm)
        pods.reverse()  # a sort keeps the order of equals: the newest first
        pods.sort(key=lambda pod: (pod.ready_at <= self.now, pod.open))
        for pod in pods[: max(-missing, 0)]:
            if to is not None and pod.ready_at <= self.now and self._may_flip(to):
                self._flips(pod, to)
            self._drain(pod)

    def _may_flip(self, role: PoolName) -> bool:
        """Whether a pod may become one of this role now: one at a time, and none back at once."""
        last_at, last_to = self._flip
        least_s = APART_S if last_to == role else max(APART_S, self.setup.dwell_s)
        return self.setup.role_flip and self.now - last_at >= least_s

    def _taken(self, role: PoolName) -> bool:
        """Let a pod come that leaves the other role and has work left; False if none may."""
        leaving = [
            pod
            for of in self.roles
            for pod in self.pods[of]
            if of != role and pod.draining and not pod.gone and pod.becomes is None
        ]
        if not leaving or not self._may_flip(role):
            return False
        self._flips(min(leaving, key=lambda pod: pod.drain_at), role)
        return True

    def _flips(self, pod: Pod, role: PoolName) -> None:
        """The pod leaves, and comes back in the other role unless a new one would be faster."""
        assert role != "colocated", "a colocated fleet has one role"
        pod.becomes, self._flip = role, (self.now, role)
        drain_at = min(pod.drain_at, self.now)
        self._at(drain_at + self.setup.cold.median_s, RELENT, pod, drain_at)

    def _relent(self, pod: Pod) -> None:
        """The pod keeps its role: where it was to come, a new one starts."""
        if pod.becomes is not None:
            role, pod.becomes = pod.becomes, None
            self._create(role, self.newest, warm=False)

    def _create(self, role: PoolName, of: int, *, warm: bool) -> None:
        cold, revision = self.setup.cold, self.revisions[of]
        start_s = 0.0
        if not warm:
            start_s = cold.median_s
            if cold.sigma > 0:
                start_s = self._random.lognormvariate(log(cold.median_s), cold.sigma)
        pod = self._add(role, self.now + start_s)
        pod.revision, pod.slowness = of, pod.slowness / revision.speed
        if warm:
            self._serve(pod)
        elif revision.starts:
            self._at(pod.ready_at, READY, pod)
        else:
            pod.ready_at, pod.fails_at = inf, pod.ready_at

    def _add(self, role: PoolName, ready_at: float) -> Pod:
        place, speeds = len(self.pods[role]), self.setup.speeds
        pod = self._made(role, f"{role}-{place}", ready_at)
        pod.slowness = 1 / speeds[place % len(speeds)]
        self.pods[role].append(pod)
        return pod

    def _serve(self, pod: Pod) -> None:
        self._ready_pods(pod).append(pod)
        self._pair()
        self._resume()

    @abstractmethod
    def _pair(self) -> None:
        """The ready pods have changed: see which of them work together."""

    def _made(self, role: PoolName, name: str, ready_at: float) -> Pod:
        if role == "prefill":
            return PrefillPod(name=name, created_at=self.now, ready_at=ready_at)
        free = int(self.setup.replica.profile.kv_tokens)
        return DecodePod(name=name, created_at=self.now, ready_at=ready_at, kv_free=free)

    def _ready_pods(self, pod: Pod) -> list[Pod]:
        """The ready pods of its role."""
        if isinstance(pod, PrefillPod):
            return self._ready_prefill  # type: ignore[return-value]
        return self._ready_decode  # type: ignore[return-value]

    def _drain(self, pod: Pod) -> None:
        pod.drain_at = self.now
        ready = self._ready_pods(pod)
        if pod in ready:
            ready.remove(pod)
            self._pair()
        if pod.open:
            self._at(self.now + self.setup.drain_s, DEADLINE, pod, pod.drain_at)
            if self.setup.migrates and isinstance(pod, DecodePod):
                self._at(self.now + SWEEP_S, MOVE, pod, pod.drain_at)
        else:
            self._delete(pod)

    def _delete(self, pod: Pod) -> None:
        """It goes, once its link has moved the KV that it is moving."""
        pod.gone_at = max(self.now, pod.link_free_at)
        if pod.becomes is not None:
            role, pod.becomes = pod.becomes, None
            other = self._add(role, pod.gone_at + FLIP_S)
            other.created_at, other.flipped = pod.gone_at, True
            self._at(other.ready_at, READY, other)

    def _change(self, kind: int, pod: Pod, stamp: float) -> None:
        if kind == READY:
            if not pod.draining:
                self._serve(pod)
        elif pod.drain_at == stamp and not pod.gone and kind == MOVE:
            again_at = self._hand_streams_over(pod)
            if not pod.gone:
                self._at(again_at, MOVE, pod, stamp)
        elif pod.drain_at == stamp and not pod.gone:
            self._relent(pod)
            if kind == DEADLINE:
                self._end(pod)

    @abstractmethod
    def _hand_streams_over(self, pod: Pod) -> float:
        """Let some streams of a pod that drains go on at others; return when to look again."""

    def _at(self, time: float, kind: int, pod: Pod, stamp: float = 0.0) -> None:
        self._order += 1
        heappush(self._events, (time, self._order, kind, pod, stamp))
