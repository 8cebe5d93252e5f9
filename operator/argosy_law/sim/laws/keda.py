"""KEDA's Prometheus scaler: one sum per role, and an HPA that divides it by a target.

Source: KEDA at 8b4f083, pkg/scalers/prometheus_scaler.go, and Kubernetes 1.36.3,
pkg/controller/podautoscaler/replica_calculator.go (GetExternalPerPodMetricReplicas), because KEDA
hands its number to an HPA as an external metric of type AverageValue. The HPA has its default
behavior (`hpa.behave`). pollingInterval, 30 s, and cooldownPeriod, 300 s, move a workload between
zero and one replica; above that the HPA asks every 15 s.

An empty answer of Prometheus reads as 0 while ignoreNullValues is true, its default, so an outage
of the exporters takes the replicas away. An error keeps them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, floor

from argosy_law.decision import Decision
from argosy_law.goals import Goals
from argosy_law.observe import Observations, RoleMetrics, RoleName, Unknown
from argosy_law.signals import validity
from argosy_law.sim.laws import hpa, law
from argosy_law.state import HoldState

NO_SERIES = "NoSamples"
"""Why a signal is unknown when the query worked and its answer is empty."""


KedaState = Mapping[RoleName, HoldState]


@dataclass(frozen=True, slots=True)
class Keda:
    """By outstanding prompt tokens of prefill and running sequences. Implements `law.Law`.

    KEDA has no default threshold: the owner finds one by trial. These did best on the traces of
    docs/figures/autoscaling.md.
    """

    prefill: float = 1650.0
    """Threshold: outstanding prompt tokens per prefill replica."""
    decode: float = 28.0
    """Threshold: running sequences per decode or colocated replica."""
    start: KedaState = field(default_factory=dict, init=False)

    def decide(
        self, state: KedaState, observations: Observations, goals: Goals, now: float
    ) -> tuple[KedaState, Decision]:
        metrics = validity.validated(observations.metrics)
        after, answers = dict(state), []
        for supply in observations.supply:
            role = supply.role
            total = _ask(metrics.role(role))
            if total is None:
                answers.append(law.keep_unknown(supply, goals, "the metric"))
                continue
            threshold = self.prefill if role == "prefill" else self.decode
            wanted = recommendation(supply.desired, total, threshold)
            why = f"{wanted} wanted for {total:g} at a threshold of {threshold:g}"
            after[role], one = hpa.behave(state.get(role), supply, goals, wanted, now, why)
            answers.append(one)
        return after, law.decision(now, answers)


def _ask(role: RoleMetrics) -> float | None:
    signal = role.outstanding_prompt_tokens if role.role == "prefill" else role.running
    if isinstance(signal, Unknown) and signal.reason.startswith(NO_SERIES):
        return 0.0
    return law.number(signal)


def recommendation(current: int, total: float, threshold: float) -> int:
    """desired = ceil(total / threshold), within a tolerance of 10 % `current`.

    Replicas that are still starting count: the number does not grow while they do. Three replicas
    with 120 running sequences at a threshold of 32 become ceil(3.75) = 4.
    """
    # In thousandths, as the metrics APIs have it: at the edges of the tolerance doubles differ.
    sum_of_all = floor(total * 1000 + 1e-6)
    each = max(floor(threshold * 1000 + 1e-6), 1)
    if current and hpa.within(sum_of_all / (each * current)):
        return current
    return ceil(sum_of_all / each)
