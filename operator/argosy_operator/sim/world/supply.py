"""The pods of the simulated fleet: created, ready, leaving and gone.

`fleet.World` adds the requests. Pods are made and removed as the operator does it.
"""

from abc import ABC, abstractmethod
from heapq import heappush
from math import inf, log
from random import Random
from typing import Literal

from argosy_operator.sim.world.machine import Setup
from argosy_operator.sim.world.pods import DecodePod, Pod, PrefillPod

PoolName = Literal["prefill", "decode", "colocated"]
STEP, READY, DEADLINE = range(3)
"""Kinds of events."""


class Supply(ABC):
    """Pods and the events that are due."""

    roles: tuple[PoolName, ...] = ("prefill", "decode")
    """Of the fleet's pods."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.now = setup, 0.0
        self.pods: dict[PoolName, list[Pod]] = {role: [] for role in self.roles}
        """All that were ever created, oldest first."""
        self._ready_prefill: list[PrefillPod] = []
        self._ready_decode: list[DecodePod] = []
        self._events: list[tuple[float, int, int, Pod, float]] = []
        """Heap of (time, order, kind, pod, stamp)."""
        self._order = 0
        self._random = Random(f"pods {setup.seed}")  # noqa: S311 (a simulation, not a secret)

    @abstractmethod
    def _resume(self) -> None:
        """A pod takes requests from now on: give it those that waited for one."""

    @abstractmethod
    def _end(self, pod: Pod) -> None:
        """Delete a pod whose time to leave is over. What it still has is lost."""

    def wanted(self, role: PoolName) -> list[Pod]:
        """Pods that stay, ready or not."""
        return [pod for pod in self.pods[role] if not pod.draining and not pod.gone]

    def living(self, role: PoolName) -> list[Pod]:
        """Pods that exist, leaving ones included."""
        return [pod for pod in self.pods[role] if pod.gone_at > self.now]

    def scale(self, role: PoolName, replicas: int, *, warm: bool = False) -> None:
        """Want so many pods. Leaving ones are called back first; new ones take a cold start.

        Pods that are not ready leave first, then those with the least work, the newest first.
        """
        pods = self.wanted(role)
        missing = replicas - len(pods)
        leaving = [pod for pod in self.pods[role] if pod.draining and not pod.gone]
        recalled = leaving[::-1][: max(missing, 0)]
        for pod in recalled:
            pod.drain_at = inf
            self._serve(pod)
        for _ in range(missing - len(recalled)):
            self._create(role, warm=warm)
        pods.reverse()  # a sort keeps the order of equals: the newest first
        pods.sort(key=lambda pod: (pod.ready_at <= self.now, pod.open))
        for pod in pods[: max(-missing, 0)]:
            self._drain(pod)

    def _create(self, role: PoolName, *, warm: bool) -> None:
        cold = self.setup.cold
        start_s = 0.0
        if not warm:
            start_s = cold.median_s
            if cold.sigma > 0:
                start_s = self._random.lognormvariate(log(cold.median_s), cold.sigma)
        name, ready_at = f"{role}-{len(self.pods[role])}", self.now + start_s
        pod = self._made(role, name, ready_at)
        self.pods[role].append(pod)
        if warm:
            self._serve(pod)
        else:
            self._at(ready_at, READY, pod)

    def _serve(self, pod: Pod) -> None:
        self._ready_pods(pod).append(pod)
        self._resume()

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
        if pod.open:
            self._at(self.now + self.setup.drain_s, DEADLINE, pod, pod.drain_at)
        else:
            self._delete(pod)

    def _delete(self, pod: Pod) -> None:
        """It goes, once its link has moved the KV that it is moving."""
        pod.gone_at = max(self.now, pod.link_free_at)

    def _change(self, kind: int, pod: Pod, stamp: float) -> None:
        if kind == READY:
            if not pod.draining:
                self._serve(pod)
        elif pod.drain_at == stamp and not pod.gone:
            self._end(pod)

    def _at(self, time: float, kind: int, pod: Pod, stamp: float = 0.0) -> None:
        self._order += 1
        heappush(self._events, (time, self._order, kind, pod, stamp))
