"""Whether a pod of one role becomes a pod of the other now, and which one.

`step.flip_roles` calls `choose` with the two pools, and turns the answer into actions. The pod is
one that the drain has chosen and emptied (`core/reconcile/victims.py`), so only pods that leave
anyway are flipped, and the role that gives one keeps what its target says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet.pods import FLIPPED_COST, Load, Pod, removal_order
from argosy_operator.core.reconcile.steps import StepReason
from argosy_operator.core.reconcile.victims import changes_role, emptied
from argosy_operator.core.scaling.pace.shift import APART_S


@dataclass(frozen=True, slots=True)
class Pool:
    """One role of the current revision."""

    role: RoleName
    target: int
    """Replicas that it is to have."""
    replicas: int
    """Those of its Deployment."""
    pods: tuple[Pod, ...]

    @property
    def started(self) -> tuple[Pod, ...]:
        """Pods whose engine runs, be it that it still loads. The others have done nothing yet."""
        return tuple(pod for pod in self.pods if pod.alive and pod.started)

    @property
    def loaded(self) -> tuple[Pod, ...]:
        """Pods whose engine has served, and may have work."""
        return tuple(pod for pod in self.started if pod.probed)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often and how long, in seconds."""

    now: float
    """Since the epoch."""
    cold_start_s: float
    """What a flip must be faster than."""
    dwell_s: float
    """How long after a flip none goes the other way."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do about flips in this round, and why."""

    reason: StepReason
    message: str
    taker: RoleName | None = None
    """The role that lacks a pod; None unless a flip is due or near."""
    pod: Pod | None = None
    """The empty pod that is flipped now."""


def choose(
    pools: tuple[Pool, Pool], loads: Mapping[str, Load | None], pace: Pace, hindrance: str | None
) -> Choice:
    """The flip that is due or near. `hindrance` says why there can be none, whatever the pods."""
    if slow := next((p for pool in pools for p in pool.pods if changes_role(p, loads)), None):
        message = f"{slow.name} is a {slow.role} pod, and its engine finishes to become one"
        return Choice(StepReason.ROLE_CHANGING, message)
    for giver, taker in (pools, pools[::-1]):
        if len(giver.started) > giver.target and _lacks_a_pod(taker, giver, pace):
            hindrance = hindrance or _too_soon(pools, giver.role, pace)
            if hindrance is not None:
                return Choice(StepReason.FLIP_WAITS, hindrance)
            return _between(giver, taker, loads, pace)
    counts = ", ".join(f"{pool.role} {len(pool.started)} of {pool.target}" for pool in pools)
    return Choice(StepReason.NO_FLIP_NEEDED, counts)


def _lacks_a_pod(taker: Pool, giver: Pool, pace: Pace) -> bool:
    """Not if it loses pods itself. Pods that load count as lacking, because an empty pod serves at
    once. When its drain has lasted for a cold start, they are what was started instead."""
    late = pace.now - _drains_since(giver, pace) >= pace.cold_start_s
    there = taker.started if late else taker.loaded
    return len(there) < taker.target and taker.replicas <= taker.target


def _drains_since(giver: Pool, pace: Pace) -> float:
    """When the first of its pods that leave began to drain; now if none does yet."""
    began = (pod.drain_at for pod in giver.started if pod.victim and pod.drain_at is not None)
    return min(began, default=pace.now)


def _between(giver: Pool, taker: Pool, loads: Mapping[str, Load | None], pace: Pace) -> Choice:
    draining = [pod for pod in giver.started if pod.victim]
    empty = [pod for pod in draining if emptied(pod, loads)]
    if empty:
        pod = min(empty, key=lambda pod: (pod.drain_at or 0.0, pod.name))
        if lost := next((one for one in _displaced(pod, taker, pace.now) if one.probed), None):
            message = (
                f"if {pod.name} became a {taker.role} pod, Kubernetes would remove {lost.name}"
            )
            return Choice(StepReason.FLIP_WAITS, f"{message}, which has served")
        message = f"{giver.role} pod {pod.name} is empty and becomes a {taker.role} pod"
        return Choice(StepReason.FLIPPING, message, taker.role, pod)
    if pace.now - _drains_since(giver, pace) >= pace.cold_start_s:
        message = f"a {giver.role} pod drains for longer than a new {taker.role} pod takes to start"
        return Choice(StepReason.FLIP_WAITS, message)
    named = ", ".join(pod.name for pod in draining) or "one that is yet to be chosen"
    message = f"a {taker.role} pod is lacking; it is to be the {giver.role} pod that drains: "
    return Choice(StepReason.FLIP_DRAINS, message + named, taker.role)


def _displaced(pod: Pod, taker: Pool, now: float) -> list[Pod]:
    """The pods that the ReplicaSet of `taker` removes when it gets this one too: pods that load.

    A pod that drains is as good as unready: its engine says so sooner than the API server.
    """
    pods = (*taker.pods, replace(pod, role=taker.role, cost=int(FLIPPED_COST)))
    order = removal_order((replace(p, ready=p.ready and not p.draining) for p in pods), now)
    return order[: max(0, len(order) - taker.target)]


def _too_soon(pools: tuple[Pool, Pool], giver: RoleName, pace: Pace) -> str | None:
    """Why the last flip forbids one now. Its time and its direction are on the pod."""
    flipped = [(p.flipped_at, p.role) for pool in pools for p in pool.pods if p.flipped_at]
    last_at, last_to = max(flipped, default=(float("-inf"), giver))
    ago_s = pace.now - last_at
    if ago_s < APART_S:
        return f"the last flip was {ago_s:.0f} s ago: the next one may be after {APART_S:.0f} s"
    if last_to == giver and ago_s < pace.dwell_s:
        return (
            f"a pod became {giver} {ago_s:.0f} s ago: one may become another role after "
            f"{pace.dwell_s:.0f} s"
        )
    return None
