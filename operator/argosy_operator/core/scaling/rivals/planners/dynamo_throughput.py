"""NVIDIA Dynamo's planner in throughput mode: mean load of 180 s, one interval ahead.

Source: ai-dynamo/dynamo, components/src/dynamo/planner, core/throughput_scaling.py at 0c9050c,
core/perf_model/prefill.py at 4d3f672 and decode.py at 439d645, core/load/predictors.py at 260b6ae,
config/defaults.py at 1ca6015. Prefill: requests per second times the time of a mean prompt, so a
replica is busy all the time. Decode: the largest batch of mean context whose step is within the
limit. Its limits are of means, where ours are of a share of the requests.

Requests, prompt and answer are each predicted by the planner's Kalman filter, a choice of its
config; the default there, ARIMA, needs a library. There is no GPU budget (default: 8), and what
Prometheus does not know keeps replicas.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import Decision, RoleTarget
from argosy_operator.core.scaling.goals import SLO, Goals
from argosy_operator.core.scaling.observe import FleetMetrics, Observations, RoleSupply
from argosy_operator.core.scaling.rivals import answer, seen
from argosy_operator.core.scaling.rivals.planners.engine import Engine
from argosy_operator.core.scaling.signals import validity

INTERVAL_S = 180.0
"""throughput_adjustment_interval."""
Q_LEVEL, Q_TREND, R = 1.0, 0.1, 10.0
"""kalman_q_level, kalman_q_trend, kalman_r: variances of level, trend and measurement."""
SURE = 1000.0
"""Variance at the start of level and trend."""


@dataclass(frozen=True, slots=True)
class Kalman:
    """A level and a trend per interval, as predicted for the next one, and their covariance."""

    level: float
    trend: float = 0.0
    level_variance: float = SURE
    covariance: float = 0.0
    trend_variance: float = SURE

    def predicted(self) -> "Kalman":
        """One interval later."""
        return Kalman(
            self.level + self.trend,
            self.trend,
            self.level_variance + 2 * self.covariance + self.trend_variance + Q_LEVEL,
            self.covariance + self.trend_variance,
            self.trend_variance + Q_TREND,
        )

    def measured(self, value: float) -> "Kalman":
        """After a measurement of the level."""
        spread = self.level_variance + R
        gain, drift = self.level_variance / spread, self.covariance / spread
        surprise = value - self.level
        return Kalman(
            self.level + gain * surprise,
            self.trend + drift * surprise,
            (1 - gain) * self.level_variance,
            (1 - gain) * self.covariance,
            self.trend_variance - drift * self.covariance,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What is remembered."""

    at: float
    """When the last interval ended."""
    requests: Kalman | None = None
    """Of one interval. None: none has ended with a request."""
    prompt: Kalman | None = None
    output: Kalman | None = None
    replicas: Mapping[RoleName, int] = field(default_factory=dict)
    """What the last interval gave."""


PlanState = Plan | None


@dataclass(frozen=True, slots=True)
class DynamoThroughput:
    """Implements `law.Law`. The planner's limits are its user's; here they come from the SLO."""

    itl: float = 1.0
    """The planner's limit of inter-token latency as a share of the SLO's."""
    predict: bool = True
    """False: the next interval is taken to be like the last (load_predictor: constant)."""
    start: PlanState = field(default=None, init=False)

    def decide(
        self, state: PlanState, observations: Observations, goals: Goals, now: float
    ) -> tuple[PlanState, Decision]:
        state = self.planned(state, observations, goals, now)
        targets = tuple(self._target(state, s, goals) for s in observations.supply)
        return state, answer.decision(now, targets)

    def planned(
        self, state: PlanState, observations: Observations, goals: Goals, now: float
    ) -> Plan:
        """The state with a new plan if an interval has ended. The first starts now."""
        if state is None:
            return Plan(now)
        if now - state.at < INTERVAL_S or goals.prior is None or goals.slo is None:
            return state
        metrics = validity.validated(observations.metrics)
        if seen.requests_per_s(metrics) is None:
            return Plan(now, state.requests, state.prompt, state.output, state.replicas)
        requests = self._next(state.requests, arrived(metrics, goals.windows.scrape_s))
        prompt = self._next(state.prompt, seen.number(metrics.prompt_tokens))
        output = self._next(state.output, seen.number(metrics.output_tokens))
        if requests is None or prompt is None or output is None:
            return Plan(now, requests, prompt, output, state.replicas)
        rate = max(requests.level, 0.0) / INTERVAL_S
        replicas = self._replicas(
            Engine(goals.prior), goals.slo, rate, max(prompt.level, 1.0), max(output.level, 1.0)
        )
        return Plan(now, requests, prompt, output, replicas)

    def _next(self, before: Kalman | None, value: float | None) -> Kalman | None:
        """The prediction for the next interval; zeros before the first request are left out."""
        if value is None or (before is None and value == 0):
            return before
        if before is None or not self.predict:
            return Kalman(value).predicted()
        return before.measured(value).predicted()

    def _replicas(
        self, engine: Engine, slo: SLO, rate: float, prompt: float, output: float
    ) -> Mapping[RoleName, int]:
        alone_s = engine.prefill_s(prompt)
        prefill = max(ceil(rate * alone_s - 1e-9), 1)
        if alone_s > slo.ttft_s:
            prefill = max(prefill, ceil(alone_s / slo.ttft_s))
        context = prompt + output / 2
        batch = engine.best_batch(context, self.itl * slo.tpot_s)
        step_s = engine.step_s(batch, batch * context)
        decode = max(ceil(rate * output * step_s / batch - 1e-9), 1)
        return {"prefill": prefill, "decode": decode}

    def _target(self, plan: Plan, supply: RoleSupply, goals: Goals) -> RoleTarget:
        if goals.prior is None:
            return answer.unknown(supply, goals, "the profile of a replica")
        if supply.role == "colocated":
            return answer.apart_only(supply, goals)
        wanted = plan.replicas.get(supply.role)
        if wanted is None:
            return answer.target(supply, goals, "no interval has ended yet", supply.desired)
        return answer.target(supply, goals, f"{wanted} wanted for the next 180 s", wanted)


def arrived(metrics: FleetMetrics, scrape_s: float) -> float:
    """Requests of one interval: those of the newest bins, made up for bins that are missing."""
    newest = metrics.bins[-round(INTERVAL_S / scrape_s) :]
    if not newest:
        return 0.0
    return sum(b.count for b in newest) * INTERVAL_S / (len(newest) * scrape_s)
