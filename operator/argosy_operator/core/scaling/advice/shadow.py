"""What other autoscalers would ask for now, beside ours, on the same metrics. Nothing applies it.

Each law of `spec.autoscaling.shadow` decides from the round that our law decides from, as if its
own replicas had the fleet's queues and sequences. What its numbers would have led to is not known:
more queueing with fewer replicas, less with more. GPU-hours are those of what was asked for.
`core.reconcile.targets.ask` keeps the `Shadow` between rounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, get_args

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.goals import Goals
from argosy_operator.core.scaling.observe import Observations
from argosy_operator.core.scaling.rivals.table import RIVALS

ROLES: tuple[RoleName, ...] = get_args(RoleName)
LONGEST_GAP_S = 120.0
"""Time without a decision that counts at most: what was asked for meanwhile is unknown."""


@dataclass(frozen=True, slots=True)
class Played:
    """One other law."""

    name: str
    since: float
    """Seconds since the epoch; GPU-hours count from then."""
    at: float
    """Its newest decision."""
    state: Any = None
    """What it remembers."""
    targets: Mapping[RoleName, int] = field(default_factory=dict)
    """Replicas that it asks for."""
    gpu_hours: float = 0.0
    our_gpu_hours: float = 0.0
    """Of our law over the same time."""
    failed: str = ""
    """Why it could not decide; "" if it could."""

    @classmethod
    def resumed(
        cls,
        name: str,
        since: float | None,
        targets: Mapping[str, int],
        gpu_hours: str,
        our_gpu_hours: str,
        now: float,
    ) -> "Played":
        """As status has it, after a restart. What is no number there counts as 0."""
        roles = {role: targets[role] for role in ROLES if role in targets}
        spent, ours = _hours(gpu_hours), _hours(our_gpu_hours)
        if since is None or spent is None or ours is None:
            return cls(name, now, now)
        return cls(name, min(since, now), now, None, roles, spent, ours)


def _hours(text: str) -> float | None:
    try:
        hours = float(text)
    except ValueError:
        return None
    return hours if isfinite(hours) and hours >= 0 else None


Shadow = tuple[Played, ...]


def played(
    before: Shadow,
    names: tuple[str, ...],
    observations: Observations,
    goals: Goals,
    ours: Decision,
) -> Shadow:
    """The shadow after this round: one more decision of each law that is asked for."""
    known = {one.name: one for one in before if one.name in RIVALS}
    now = ours.at
    found = (known.get(name) or Played(name, now, now) for name in dict.fromkeys(names))
    return tuple(_next(one, observations, goals, ours) for one in found)


def _next(one: Played, observations: Observations, goals: Goals, ours: Decision) -> Played:
    law, now = RIVALS[one.name], ours.at
    gpus = {supply.role: supply.gpus_per_replica for supply in observations.supply}
    hours = min(max(now - one.at, 0.0), LONGEST_GAP_S) / 3600
    current = {target.role: target.current for target in ours.targets}
    asked = one.targets or current
    spent = sum(n * gpus.get(role, 0) for role, n in asked.items()) * hours
    our = sum(n * gpus[role] for role, n in current.items()) * hours
    state, failed, targets = one.state, "", one.targets
    try:
        begun = law.start if state is None else state
        state, decision = law.decide(begun, _as_its_own(observations, asked), goals, now)
        targets = {target.role: target.replicas for target in decision.targets}
    except Exception as error:
        state, failed = None, f"{type(error).__name__}: {error}"[:200]
    return Played(
        name=one.name,
        since=one.since,
        at=now,
        state=state,
        targets=targets,
        gpu_hours=one.gpu_hours + spent,
        our_gpu_hours=one.our_gpu_hours + our,
        failed=failed,
    )


def _as_its_own(seen: Observations, asked: Mapping[RoleName, int]) -> Observations:
    """The round as a fleet of these replicas would have it: the same sums over other pods."""
    supply = tuple(
        replace(of, desired=n, ready=n, pending=0, unschedulable=0)
        for of in seen.supply
        for n in [asked.get(of.role, of.desired)]
    )
    roles = tuple(
        replace(of, pods_reporting=asked.get(of.role, of.pods_reporting))
        if of.pods_reporting
        else of
        for of in seen.metrics.roles
    )
    return replace(seen, metrics=replace(seen.metrics, roles=roles), supply=supply)
