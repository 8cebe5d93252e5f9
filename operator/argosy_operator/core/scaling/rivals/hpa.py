"""The HorizontalPodAutoscaler of Kubernetes: one metric per role, kept near a target average.

Source: https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/, "Algorithm
details" and "Default behavior" (autoscaling/v2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import Decision, RoleTarget, Rule, meaning_of
from argosy_operator.core.scaling.goals import Goals, StepLimits
from argosy_operator.core.scaling.observe import (
    Observations,
    RoleMetrics,
    RoleSupply,
    Signal,
    Value,
)
from argosy_operator.core.scaling.pace import holds
from argosy_operator.core.scaling.signals import validity
from argosy_operator.core.scaling.state import HoldState

TOLERANCE = 0.1
"""A ratio of average to target within 1 ± 0.1 changes nothing."""
STABILIZATION = holds.HoldWindows(up_s=0.0, down_s=300.0)
"""Default `behavior`: down by the largest recommendation of the last 300 s, up at once."""
UP_PERCENT, UP_PODS = 100.0, 4
"""Default scale-up per 15 s, the usual interval: the larger of 100 % and 4 pods. A scale-down may
remove 100 %."""
TARGETS: dict[RoleName, float] = {"prefill": 4096.0, "decode": 32.0, "colocated": 32.0}
"""Example target averages per replica: outstanding prompt tokens of prefill, running sequences of
the others. No SLO gives them; the owner of an HPA finds them by trial."""

HpaState = Mapping[RoleName, HoldState]


@dataclass(frozen=True, slots=True)
class HorizontalPodAutoscaler:
    """Implements `law.Law`."""

    targets: Mapping[RoleName, float] = field(default_factory=lambda: dict(TARGETS))
    """Target average of the role's metric per replica."""
    start: HpaState = field(default_factory=dict)

    def decide(
        self, state: HpaState, observations: Observations, goals: Goals, now: float
    ) -> tuple[HpaState, Decision]:
        metrics = validity.validated(observations.metrics)
        after, targets = dict(state), []
        for supply in observations.supply:
            role, current = supply.role, supply.desired
            number = self._recommend(metrics.role(role), supply)
            held = state.get(role, HoldState())
            after[role] = held = holds.record(held, number, number, now, STABILIZATION)
            steps = StepLimits(UP_PERCENT, UP_PODS, down_pods=current)
            replicas, rule = holds.apply(held, current, Rule.DEMAND, None, steps)
            replicas, rule = holds.clamp(replicas, rule, goals.role(role))
            why = f"{number} wanted at a target of {self.targets[role]:g} per replica"
            message = why if rule is Rule.DEMAND else f"{why}; {meaning_of(rule, role)}"
            targets.append(RoleTarget(role, current, replicas, number, rule, message))
        return after, Decision(
            at=now,
            targets=tuple(targets),
            rule=targets[0].rule,
            message="; ".join(
                f"{t.role} {t.current} → {t.replicas} ({t.message})" for t in targets
            ),
            active=True,
            reachable=True,
            numbers={},
        )

    def _recommend(self, metrics: RoleMetrics, supply: RoleSupply) -> int:
        signal = _metric(metrics)
        if not isinstance(signal, Value) or metrics.pods_reporting == 0:
            return supply.desired
        target = self.targets[supply.role]
        return recommendation(supply.desired, signal.value, metrics.pods_reporting, target)


def _metric(metrics: RoleMetrics) -> Signal:
    """The sum over reporting pods that the role is scaled by."""
    if metrics.role == "prefill":
        return metrics.outstanding_prompt_tokens
    return metrics.running


def recommendation(current: int, total: float, reporting: int, target: float) -> int:
    """desired = ceil(current · average / target), within the tolerance `current`.

    `total` is the sum of the metric over `reporting` pods. Pods without a value count as 0 on the
    way up and as the target on the way down; if that turns the direction round, nothing changes.

    Three replicas with 120 running sequences and a target of 32: ratio 40/32 = 1.25, so
    ceil(3 · 1.25) = 4. With 102 the ratio is 1.06 and within the tolerance: 3.
    """
    ratio = total / reporting / target
    missing = max(current - reporting, 0)
    if missing:
        assumed = total + missing * (0.0 if ratio > 1 else target)
        whole = assumed / current / target
        if (whole > 1) != (ratio > 1):
            return current
        ratio = whole
    if abs(ratio - 1) <= TOLERANCE:
        return current
    return ceil(ratio * current - 1e-9)
