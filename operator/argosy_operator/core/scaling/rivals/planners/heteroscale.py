"""HeteroScale: decode pods by tokens per second, prefill pods in a fixed ratio to them.

Source: "Taming the Chaos", arXiv 2508.19559v1; there is no public code. Tokens per second of a
decode pod are held near a target; outside of a tolerance the pool becomes proportional, and prefill
follows by the ratio of prefill to decode that was found to be best for the workload. While latency
misses its limit the pools grow whatever the tokens say. Cool-downs keep moves apart. Its schedules
and its placement are left out.

The paper gives no numbers for a fleet of ours: tolerance, cool-downs, the step of the feedback and
the target are guesses. Latency misses while fewer requests than the goal meet a limit, and the
ratio is that of the fleet at the start, which in `argosy simulate` is the best constant one.
"""

from dataclasses import dataclass, field, replace
from math import ceil

from argosy_operator.core.scaling.decision import Decision
from argosy_operator.core.scaling.goals import Goals
from argosy_operator.core.scaling.observe import FleetMetrics, Observations
from argosy_operator.core.scaling.rivals import answer, seen
from argosy_operator.core.scaling.signals import validity

TOLERANCE = 0.1
"""A ratio of tokens per second to target within 1 ± 0.1 changes nothing."""
OUT_S, IN_S = 30.0, 300.0
"""Cool-downs after any move, before one up and before one down."""


@dataclass(frozen=True, slots=True)
class Coupled:
    """What is remembered of the fleet."""

    ratio: float
    """Prefill replicas per decode replica."""
    moved_at: float | None = None
    """When the number of decode replicas last changed, in seconds; None: not yet."""


CoupledState = Coupled | None


@dataclass(frozen=True, slots=True)
class HeteroScale:
    """Implements `law.Law`."""

    target: float = 1000.0
    """Tokens per second of one decode replica."""
    feedback: float = 0.1
    """Share of the replicas that is added while latency misses; 0: none."""
    start: CoupledState = field(default=None, init=False)

    def decide(
        self, state: CoupledState, observations: Observations, goals: Goals, now: float
    ) -> tuple[CoupledState, Decision]:
        supplies = {supply.role: supply for supply in observations.supply}
        decode = supplies.get("decode") or supplies.get("colocated")
        if decode is None:
            raise ValueError("a fleet has decode or colocated replicas")
        prefill = supplies.get("prefill")
        if state is None:
            state = Coupled(prefill.desired / max(decode.desired, 1) if prefill else 0.0)
        metrics = validity.validated(observations.metrics)
        role = metrics.role(decode.role)
        each = seen.tokens_per_s(role, goals.windows)
        if each is None:
            targets = [answer.unknown(s, goals, "tokens per second") for s in supplies.values()]
            return state, answer.decision(now, targets)
        wanted = recommendation(decode.desired, each * role.pods_reporting, self.target)
        if self.feedback and misses(metrics, goals):
            wanted = max(wanted, ceil(decode.desired * (1 + self.feedback) - 1e-9))
        replicas = wanted
        cool_down_s = OUT_S if wanted > decode.desired else IN_S
        if state.moved_at is not None and now - state.moved_at < cool_down_s:
            replicas = decode.desired
        if replicas != decode.desired:
            state = replace(state, moved_at=now)
        why = f"{wanted} wanted for {each:.4g} tokens/s a replica at a target of {self.target:g}"
        targets = []
        for supply in supplies.values():
            number = replicas if supply.role != "prefill" else ceil(replicas * state.ratio - 1e-9)
            targets.append(answer.target(supply, goals, why, number))
        return state, answer.decision(now, targets)


def misses(metrics: FleetMetrics, goals: Goals) -> bool:
    """Whether fewer requests than the goal meet the limit of TTFT, or that of TPOT."""
    shares = (seen.number(metrics.ttft_attainment), seen.number(metrics.tpot_attainment))
    return goals.slo is not None and any(
        share is not None and share < goals.slo.attainment for share in shares
    )


def recommendation(current: int, tokens_per_s: float, target: float) -> int:
    """Decode replicas for the tokens per second of all of them, within the tolerance `current`.

    Four replicas with 5,200 tokens/s at a target of 1,000: ceil(5.2) = 6. With 4,300: 4.
    """
    if current and abs(tokens_per_s / (current * target) - 1) <= TOLERANCE:
        return current
    return ceil(tokens_per_s / target - 1e-9)
