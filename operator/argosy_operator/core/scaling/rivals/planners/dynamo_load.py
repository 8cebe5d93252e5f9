"""NVIDIA Dynamo's planner in load mode: one replica more or less, by the estimated latency.

Source: ai-dynamo/dynamo, components/src/dynamo/planner, core/load_scaling.py at 0c6da1e and the
modules that `dynamo_throughput` names. There it runs every 5 s on each engine's events and fits the
time of a step; here it runs in every round, the engines of a role are taken to be alike, and the
time of a step comes from the profile. One more if the next TTFT, or the next step, would miss its
limit; one less if it kept 80 % of it with the load of N pods on N - 1; nothing while pods start.
Throughput mode is on beside it, as by default, and gives the least replicas.

In a step of N - 1 pods both sequences and context grow. The planner scales the context alone, but
fits two features that go together, so the context carries both.
"""

from dataclasses import dataclass, field

from argosy_operator.core.scaling.decision import Decision, RoleTarget, Rule
from argosy_operator.core.scaling.goals import SLO, Goals
from argosy_operator.core.scaling.observe import FleetMetrics, Observations, RoleSupply
from argosy_operator.core.scaling.rivals import answer, seen
from argosy_operator.core.scaling.rivals.planners.dynamo_throughput import (
    DynamoThroughput,
    Plan,
    PlanState,
)
from argosy_operator.core.scaling.rivals.planners.engine import Engine
from argosy_operator.core.scaling.signals import validity


@dataclass(frozen=True, slots=True)
class DynamoLoad:
    """Implements `law.Law`."""

    limits: float = 1.0
    """The planner's limits of TTFT and inter-token latency as a share of the SLO's."""
    sensitivity: float = 0.8
    """load_scaling_down_sensitivity: the share of the limits that must be kept to remove one."""
    floor: bool = True
    """enable_throughput_scaling: whether throughput mode gives the least replicas."""
    start: PlanState = field(default=None, init=False)

    def decide(
        self, state: PlanState, observations: Observations, goals: Goals, now: float
    ) -> tuple[PlanState, Decision]:
        plan = DynamoThroughput(self.limits).planned(state, observations, goals, now)
        metrics = validity.validated(observations.metrics)
        targets = [self._target(plan, supply, metrics, goals) for supply in observations.supply]
        return plan, answer.decision(now, targets)

    def _target(
        self, plan: Plan, supply: RoleSupply, metrics: FleetMetrics, goals: Goals
    ) -> RoleTarget:
        if goals.prior is None or goals.slo is None:
            return answer.unknown(supply, goals, "the profile of a replica")
        if supply.role == "colocated":
            return answer.apart_only(supply, goals)
        least = plan.replicas.get(supply.role, 1) if self.floor else 1
        if supply.pending:
            why = f"{supply.pending} pods are starting"
            return answer.target(
                supply, goals, why, max(supply.desired, least), Rule.SCALE_UP_PENDING
            )
        engine = Engine(goals.prior)
        change = (
            self._prefill(engine, metrics, goals.slo, supply.desired)
            if supply.role == "prefill"
            else self._decode(engine, metrics, goals.slo, supply)
        )
        if change is None:
            return answer.unknown(supply, goals, "the load of the engines")
        wanted = max(supply.desired + change, least)
        return answer.target(supply, goals, f"{change:+d} by load, at least {least}", wanted)

    def _prefill(
        self, engine: Engine, metrics: FleetMetrics, slo: SLO, replicas: int
    ) -> int | None:
        role = metrics.role("prefill")
        tokens, prompt = seen.queued(role), seen.number(metrics.prompt_tokens)
        if tokens is None:
            return None
        if prompt is None:
            # No prompt has ended of late: nothing to add, nothing to judge a removal by.
            return 0
        queued = tokens / role.pods_reporting
        limit_s = self.limits * slo.ttft_s
        return prefill_change(engine, queued, prompt, limit_s, replicas, self.sensitivity)

    def _decode(
        self, engine: Engine, metrics: FleetMetrics, slo: SLO, supply: RoleSupply
    ) -> int | None:
        role = metrics.role(supply.role)
        running, context = seen.queued(role), seen.context(role)
        if running is None:
            return None
        sequences = running / role.pods_reporting
        limit_s = self.limits * slo.tpot_s
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
    if engine.step_s(sequences + 1, (sequences + 1) * context) > limit_s:
        return 1
    if replicas < 2:
        return 0
    fewer = sequences * replicas / (replicas - 1)
    if 0 < engine.profile.kv_tokens <= fewer * context:
        return 0
    step_s = engine.step_s(fewer + 1, (fewer + 1) * context)
    return -1 if step_s < limit_s * sensitivity else 0
