"""The pod autoscaler of AIBrix (APA): the mean of a metric over pods and three minutes.

Source: AIBrix at e3e10f9, pkg/controller/podautoscaler/algorithm/apa.go, context/context.go,
metrics/client.go and podautoscaler_controller.go (stabilizeRecommendation). There it runs every
10 s, here in every round. A scale-down takes the smallest recommendation of the last 300 s and not
the largest, as the code does, so the window does not hold capacity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, floor

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.goals import Goals
from argosy_operator.core.scaling.observe import Observations
from argosy_operator.core.scaling.rivals import answer, seen
from argosy_operator.core.scaling.signals import validity
from argosy_operator.core.scaling.state import Want

OBSERVED_S = 180.0
"""observeWindowSeconds: the metric is averaged over it."""
TOLERANCE = 0.1
"""Up and down fluctuation tolerance."""
MAX_RATE = 2.0
"""Most and least times the current replicas in one step."""
DOWN_S = 300.0
"""Scale-down cooldown window. The window for scale-up is 0."""


@dataclass(frozen=True, slots=True)
class Average:
    """The mean of the metric over the pods at one time."""

    at: float
    per_pod: float


@dataclass(frozen=True, slots=True)
class ApaRole:
    """What is remembered of one role, oldest first."""

    averages: tuple[Average, ...] = ()
    recommended: tuple[Want, ...] = ()


ApaState = Mapping[RoleName, ApaRole]


@dataclass(frozen=True, slots=True)
class AIBrix:
    """By outstanding prompt tokens of prefill and running sequences. Implements `law.Law`.

    AIBrix has no default target: the owner names metric and target.
    """

    prefill: float = 4096.0
    """Target of outstanding prompt tokens per prefill replica."""
    decode: float = 32.0
    """Target of running sequences per decode or colocated replica."""
    start: ApaState = field(default_factory=dict, init=False)

    def decide(
        self, state: ApaState, observations: Observations, goals: Goals, now: float
    ) -> tuple[ApaState, Decision]:
        metrics = validity.validated(observations.metrics)
        after, answers = dict(state), []
        for supply in observations.supply:
            role = metrics.role(supply.role)
            total = seen.queued(role)
            if total is None:
                answers.append(answer.unknown(supply, goals, "the metric"))
                continue
            before = state.get(supply.role, ApaRole())
            kept = (a for a in before.averages if a.at > now - OBSERVED_S)
            averages = (*kept, Average(now, total / role.pods_reporting))
            mean = sum(a.per_pod for a in averages) / len(averages)
            target = self.prefill if supply.role == "prefill" else self.decode
            wanted = recommendation(supply.desired, mean, target)
            past = (w for w in before.recommended if w.at > now - DOWN_S)
            recommended = (*past, Want(now, wanted))
            after[supply.role] = ApaRole(averages, recommended)
            replicas = wanted
            if wanted < supply.desired:
                replicas = min(want.replicas for want in recommended)
            why = f"{wanted} wanted for a mean of {mean:.4g} at a target of {target:g}"
            answers.append(answer.target(supply, goals, why, replicas, wanted=wanted))
        return after, answer.decision(now, answers)


def recommendation(current: int, mean: float, target: float) -> int:
    """desired = ceil(current · mean / target) outside of ±10 %, at most twice and at least half.

    Four replicas with a mean of 48 at a target of 32: ceil(4 · 1.5) = 6. With 90: 8, not 12.
    """
    ratio = mean / target
    wanted = ceil(current * ratio - 1e-9)
    if ratio > 1 + TOLERANCE:
        return min(wanted, ceil(MAX_RATE * current))
    if ratio < 1 - TOLERANCE:
        return max(wanted, floor(current / MAX_RATE))
    return current
