"""NVIDIA Dynamo's planner: load mode above the least replicas of throughput mode, as by default.

Source: ai-dynamo/dynamo, components/src/dynamo/planner: core/load_scaling.py at 0c6da1e,
core/throughput_scaling.py at 0c9050c, core/perf_model/prefill.py at 4d3f672 and decode.py at
439d645, core/load/predictors.py at 260b6ae, config/defaults.py at 1ca6015.

Throughput mode takes the mean load of 180 s, one interval ahead. Prefill: requests per second times
the time of a mean prompt, so a replica is busy all the time. Decode: the largest batch of mean
context whose step is within the limit. Its limits are of means, where ours are of a share of the
requests. Requests, prompt and answer are each predicted by the planner's Kalman filter, a choice of
its config; the default there, ARIMA, needs a library. What prefix caches have of a prompt is taken
off the work of prefill, by the last share that was measured. The planner's documentation has
correction factors of TTFT and of ITL besides, which its code no longer has: that of TTFT counts
while it is below 1 alone, as the share of caches is here, and with an exact profile that of ITL
is 1.

Load mode adds one replica if the next TTFT, or the next step, would miss its limit, and removes one
if it kept 80 % of it with the load of N pods on N - 1; nothing moves while pods start. There it
runs every 5 s on each engine's events and fits the time of a step; here it runs in every round, the
engines of a role are taken to be alike, and the time of a step comes from the profile. In a step of
N - 1 pods both sequences and context grow. The planner scales the context alone, but fits two
features that go together, so the context carries both.

The profile is the law's prior, exact in the simulator unless --profile-error says otherwise. There
is no GPU budget (default: 8), and what Prometheus does not know keeps replicas.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from argosy_law.decision import Decision, RoleTarget, Rule
from argosy_law.goals import SLO, Goals, Profile
from argosy_law.observe import FleetMetrics, Observations, RoleName, RoleSupply
from argosy_law.signals import validity
from argosy_law.sim.laws import law

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
class Engine:
    """One replica."""

    profile: Profile

    def prefill_s(self, tokens: float) -> float:
        """Seconds to prefill so many tokens, in steps of `law.STEP_TOKENS` and a rest."""
        if tokens <= 0:
            return 0.0
        whole = ceil(tokens / law.STEP_TOKENS) - 1
        return whole * self.profile.prefill_s(law.STEP_TOKENS) + self.profile.prefill_s(
            tokens - whole * law.STEP_TOKENS
        )

    def best_batch(self, context: float, limit_s: float) -> int:
        """The most sequences of this context that fit and whose step takes at most `limit_s`; ≥ 1.

        A step of 29 ms and 0.3 ms a sequence within 60 ms: (60 - 29) / 0.3 = 103 sequences.
        """
        most = law.SEQUENCES
        if self.profile.kv_tokens > 0 and context > 0:
            most = min(most, int(self.profile.kv_tokens / context))
        each = self.profile.step_s(1, context) - self.profile.decode_base_s
        if each > 0:
            most = min(most, int((limit_s - self.profile.decode_base_s) / each + 1e-9))
        return max(most, 1)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput mode. The planner's limits are its user's; here they come from the SLO."""

    ttft: float
    """The planner's limit of TTFT as a share of the SLO's."""
    itl: float
    """The same of inter-token latency."""

    def plan(self, state: PlanState, observations: Observations, goals: Goals, now: float) -> Plan:
        """Return the state with a new plan if an interval has ended. The first starts now."""
        if state is None:
            return Plan(now)
        if now - state.at < INTERVAL_S or goals.prior is None or goals.slo is None:
            return state
        metrics = validity.validated(observations.metrics)
        if law.requests_per_s(metrics) is None:
            return Plan(now, state.requests, state.prompt, state.output, state.replicas)
        requests = self._next(state.requests, arrived(metrics, goals.windows.scrape_s))
        prompt = self._next(state.prompt, law.number(metrics.prompt_tokens))
        output = self._next(state.output, law.number(metrics.output_tokens))
        if requests is None or prompt is None or output is None:
            return Plan(now, requests, prompt, output, state.replicas)
        rate = max(requests.level, 0.0) / INTERVAL_S
        lengths = max(prompt.level, 1.0), max(output.level, 1.0)
        work = lengths[0] * law.computed_share(metrics)
        replicas = self._replicas(Engine(goals.prior), goals.slo, rate, work, *lengths)
        return Plan(now, requests, prompt, output, replicas)

    def _next(self, before: Kalman | None, value: float | None) -> Kalman | None:
        """The prediction for the next interval; zeros before the first request are left out."""
        if value is None or (before is None and value == 0):
            return before
        if before is None:
            return Kalman(value).predicted()
        return before.measured(value).predicted()

    def _replicas(
        self, engine: Engine, slo: SLO, rate: float, work: float, prompt: float, output: float
    ) -> Mapping[RoleName, int]:
        alone_s, limit_s = engine.prefill_s(work), self.ttft * slo.ttft_s
        prefill = max(ceil(rate * alone_s - 1e-9), 1)
        if alone_s > limit_s:
            prefill = max(prefill, ceil(alone_s / limit_s))
        context = prompt + output / 2
        batch = engine.best_batch(context, self.itl * slo.tpot_s)
        step_s = engine.profile.step_s(batch, batch * context)
        decode = max(ceil(rate * output * step_s / batch - 1e-9), 1)
        return {"prefill": prefill, "decode": decode}


@dataclass(frozen=True, slots=True)
class Dynamo:
    """Implements `law.Law`. Its limits are its user's; these did best on the traces of
    docs/figures/autoscaling.md."""

    ttft: float = 0.4
    """The planner's limit of TTFT as a share of the SLO's."""
    itl: float = 0.8
    """The same of inter-token latency."""
    sensitivity: float = 0.8
    """load_scaling_down_sensitivity: the share of the limits that must be kept to remove one."""
    start: PlanState = field(default=None, init=False)

    def decide(
        self, state: PlanState, observations: Observations, goals: Goals, now: float
    ) -> tuple[PlanState, Decision]:
        plan = Throughput(self.ttft, self.itl).plan(state, observations, goals, now)
        metrics = validity.validated(observations.metrics)
        targets = [self._target(plan, supply, metrics, goals) for supply in observations.supply]
        return plan, law.decision(now, targets)

    def _target(
        self, plan: Plan, supply: RoleSupply, metrics: FleetMetrics, goals: Goals
    ) -> RoleTarget:
        if goals.prior is None or goals.slo is None:
            return law.keep_unknown(supply, goals, "the profile of a replica")
        if supply.role == "colocated":
            why = "this law sizes prefill and decode separately: colocated replicas stay"
            return law.target(supply, goals, why, supply.desired)
        least = plan.replicas.get(supply.role, 1)
        if supply.pending:
            why = f"{supply.pending} pods are starting"
            return law.target(supply, goals, why, max(supply.desired, least), Rule.SCALE_UP_PENDING)
        engine = Engine(goals.prior)
        change = (
            self._prefill(engine, metrics, goals.slo, supply.desired)
            if supply.role == "prefill"
            else self._decode(engine, metrics, goals.slo, supply)
        )
        if change is None:
            return law.keep_unknown(supply, goals, "the load of the engines")
        wanted = max(supply.desired + change, least)
        return law.target(supply, goals, f"{change:+d} by load, at least {least}", wanted)

    def _prefill(
        self, engine: Engine, metrics: FleetMetrics, slo: SLO, replicas: int
    ) -> int | None:
        role = metrics.role("prefill")
        tokens, prompt = law.queued(role), law.number(metrics.prompt_tokens)
        if tokens is None:
            return None
        if prompt is None:
            # No prompt has ended of late: nothing to add, nothing to judge a removal by.
            return 0
        queued = tokens / role.pods_reporting
        limit_s, work = self.ttft * slo.ttft_s, prompt * law.computed_share(metrics)
        return prefill_change(engine, queued, work, limit_s, replicas, self.sensitivity)

    def _decode(
        self, engine: Engine, metrics: FleetMetrics, slo: SLO, supply: RoleSupply
    ) -> int | None:
        role = metrics.role(supply.role)
        running, context = law.queued(role), law.context(role)
        if running is None:
            return None
        sequences = running / role.pods_reporting
        limit_s = self.itl * slo.tpot_s
        return decode_change(
            engine, sequences, context or 0.0, limit_s, supply.desired, self.sensitivity
        )


def prefill_change(
    engine: Engine,
    queued: float,
    prompt: float,
    limit_s: float,
    replicas: int,
    sensitivity: float,
) -> int:
    """1, 0 or -1 for prefill pods with so many queued tokens each and a mean prompt.

    The part of TTFT that the queue causes must keep the share of what the prompt itself leaves.
    """
    if engine.prefill_s(queued + prompt) > limit_s:
        return 1
    if replicas < 2:
        return 0
    alone_s = engine.prefill_s(prompt)
    spare_s = (limit_s - alone_s) * sensitivity
    fewer_s = engine.prefill_s(queued * replicas / (replicas - 1) + prompt) - alone_s
    return -1 if spare_s > 0 and fewer_s < spare_s else 0


def decode_change(
    engine: Engine,
    sequences: float,
    context: float,
    limit_s: float,
    replicas: int,
    sensitivity: float,
) -> int:
    """1, 0 or -1 for decode pods with so many sequences each of a mean context."""
    if engine.profile.step_s(sequences + 1, (sequences + 1) * context) > limit_s:
        return 1
    if replicas < 2:
        return 0
    fewer = sequences * replicas / (replicas - 1)
    if 0 < engine.profile.kv_tokens <= fewer * context:
        return 0
    step_s = engine.profile.step_s(fewer + 1, (fewer + 1) * context)
    return -1 if step_s < limit_s * sensitivity else 0


def arrived(metrics: FleetMetrics, scrape_s: float) -> float:
    """Requests of one interval: those of the newest bins, made up for bins that are missing."""
    newest = metrics.bins[-round(INTERVAL_S / scrape_s) :]
    if not newest:
        return 0.0
    return sum(b.count for b in newest) * INTERVAL_S / (len(newest) * scrape_s)
