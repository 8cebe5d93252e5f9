"""The HorizontalPodAutoscaler of Kubernetes: one metric per role, kept near a target average.

Source: Kubernetes 1.36.3, pkg/controller/podautoscaler/replica_calculator.go
(calcPlainMetricReplicas) and horizontal.go (behavior), and
https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/. Two HPAs, one per role,
do not know each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, floor

from argosy_law.decision import Decision, RoleTarget, Rule
from argosy_law.goals import Goals, StepLimits
from argosy_law.observe import Observations, RoleName, RoleSupply
from argosy_law.pace import gates
from argosy_law.signals import validity
from argosy_law.sim.laws import law
from argosy_law.state import HoldState

TOLERANCE = 0.1
"""A ratio of average to target within 1 ± 0.1 changes nothing."""
STABILIZATION = gates.HoldWindows(up_s=0.0, down_s=300.0)
"""Default `behavior`: down by the largest recommendation of the last 300 s, up at once."""
UP_PERCENT, UP_PODS = 100.0, 4
"""Default scale-up per 15 s, the usual interval: the larger of 100 % and 4 pods. A scale-down may
remove 100 %."""

HpaState = Mapping[RoleName, HoldState]


@dataclass(frozen=True, slots=True)
class HorizontalPodAutoscaler:
    """By outstanding prompt tokens of prefill and running sequences. Implements `law.Law`.

    Kubernetes has no default target: the owner finds one by trial. These did best on the traces of
    docs/figures/autoscaling.md.
    """

    prefill: float = 1650.0
    """Target of outstanding prompt tokens per prefill replica."""
    decode: float = 28.0
    """Target of running sequences per decode or colocated replica."""
    start: HpaState = field(default_factory=dict, init=False)

    def decide(
        self, state: HpaState, observations: Observations, goals: Goals, now: float
    ) -> tuple[HpaState, Decision]:
        metrics = validity.validated(observations.metrics)
        after, answers = dict(state), []
        for supply in observations.supply:
            role = metrics.role(supply.role)
            total = law.queued(role)
            if total is None:
                answers.append(law.keep_unknown(supply, goals, "the metric"))
                continue
            aim = self.prefill if role.role == "prefill" else self.decode
            wanted = recommendation(supply.desired, total, role.pods_reporting, aim)
            why = f"{wanted} wanted at a target of {aim:g} per replica"
            after[role.role], one = behave(state.get(role.role), supply, goals, wanted, now, why)
            answers.append(one)
        return after, law.decision(now, answers)


def behave(
    held: HoldState | None, supply: RoleSupply, goals: Goals, wanted: int, now: float, why: str
) -> tuple[HoldState, RoleTarget]:
    """The default `behavior` on a recommendation: window, steps and bounds.

    The window starts with the replicas that there are, so a restart removes none for 300 s.
    """
    current = supply.desired
    if held is None:
        held = gates.record_wants(HoldState(), current, current, now, STABILIZATION)
    held = gates.record_wants(held, wanted, wanted, now, STABILIZATION)
    steps = StepLimits(UP_PERCENT, UP_PODS, down_pods=current)
    replicas, rule = gates.apply_holds(held, current, Rule.DEMAND, None, steps)
    return held, law.target(supply, goals, why, replicas, rule, wanted=wanted)


def recommendation(current: int, total: float, reporting: int, target: float) -> int:
    """desired = ceil(current · average / target), within the tolerance `current`.

    `total` is the sum of the metric over `reporting` pods. Pods without a value count as 0 on the
    way up and as the target on the way down; if that turns the direction round, nothing changes.

    Three replicas with 120 running sequences and a target of 32: ratio 40/32 = 1.25, so
    ceil(3 · 1.25) = 4. With 102 the ratio is 1.06 and within the tolerance: 3.
    """
    ratio = _ratio(total, reporting, target)
    missing = max(current - reporting, 0)
    if missing:
        assumed = total + missing * (0.0 if ratio > 1 else target)
        whole = _ratio(assumed, current, target)
        if (whole > 1) != (ratio > 1):
            return current
        ratio = whole
    return current if within(ratio) else ceil(ratio * current)


def _ratio(total: float, pods: int, target: float) -> float:
    """Mean over target. The mean is a whole number of thousandths, as in the metrics APIs."""
    return floor(total * 1000 / pods + 1e-6) / (target * 1000)


def within(ratio: float) -> bool:
    """Whether the ratio of a metric to its target is near enough to 1 to change nothing."""
    return 1 - TOLERANCE <= ratio <= 1 + TOLERANCE
