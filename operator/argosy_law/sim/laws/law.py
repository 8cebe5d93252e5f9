"""The protocol of a law, the operator's own, and what the laws of other autoscalers share.

Others read signals made from what `Observations` has; None means that it is not known. Gauges are
sums over the pods that report. Rates are those of the newest scrape interval, from the step
counters of at most `samples.MOST_STEP_ROWS` pods, which stand for all that report.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from argosy_law.decide import decide
from argosy_law.decision import Decision, RoleTarget, Rule, bounded, why_bounded
from argosy_law.goals import Goals, Windows
from argosy_law.observe import (
    FleetMetrics,
    Idle,
    Observations,
    RoleMetrics,
    RoleSupply,
    Signal,
    Value,
)
from argosy_law.signals.samples import MOST_STEP_ROWS
from argosy_law.state import ScalingState

STEP_TOKENS, SEQUENCES = 2048, 256
"""Prompt tokens of one prefill step and sequences of one decode step: the engine's defaults."""

State = TypeVar("State")


class Law(Protocol[State]):
    """Decides how many replicas each role has.

    Pure: equal arguments give equal answers, and arguments are not changed. Every target is within
    the `min` and `max` of its role. `State` is what the law remembers; `record` can write it.
    """

    @property
    def start(self) -> State:
        """The state before the first decision."""
        ...

    def decide(
        self, state: State, observations: Observations, goals: Goals, now: float
    ) -> tuple[State, Decision]:
        """The state after this decision, and the decision. `now`: seconds, the metrics' clock."""
        ...


@dataclass(frozen=True, slots=True)
class Goodput:
    """Our law: the fewest replicas whose predicted share of requests within the SLO suffices."""

    start: ScalingState = field(default_factory=ScalingState)

    def decide(
        self, state: ScalingState, observations: Observations, goals: Goals, now: float
    ) -> tuple[ScalingState, Decision]:
        return decide(state, observations, goals, now)


def target(
    supply: RoleSupply,
    goals: Goals,
    why: str,
    replicas: int,
    rule: Rule = Rule.DEMAND,
    *,
    wanted: int | None = None,
) -> RoleTarget:
    """Return one role's answer, within its bounds. `wanted`: before windows and steps, if it
    differs."""
    role = supply.role
    goal = goals.role(role)
    given, rule = bounded(replicas, rule, goal)
    message = why if rule is Rule.DEMAND else f"{why}; {why_bounded(rule, goal, given)}"
    demanded = replicas if wanted is None else wanted
    return RoleTarget(role, supply.desired, given, demanded, rule, message)


def keep_unknown(supply: RoleSupply, goals: Goals, what: str) -> RoleTarget:
    """Leave a role as it is, because `what` is not known."""
    return target(supply, goals, f"{what} is unknown", supply.desired, Rule.METRICS_UNAVAILABLE)


def decision(now: float, targets: Iterable[RoleTarget], **numbers: float) -> Decision:
    """Return the answer for all roles. `numbers`: what it was made from, by name with unit."""
    of_roles = tuple(targets)
    moving = next((t for t in of_roles if t.replicas != t.current), of_roles[0])
    return Decision(
        at=now,
        targets=of_roles,
        rule=moving.rule,
        message="; ".join(f"{t.role} {t.current} → {t.replicas} ({t.message})" for t in of_roles),
        active=True,
        reachable=True,
        numbers=numbers,
    )


def number(signal: Signal) -> float | None:
    """Return the number of a signal; None if nothing happened."""
    return signal.value if isinstance(signal, Value) else None


def queued(role: RoleMetrics) -> float | None:
    """Return the outstanding prompt tokens of prefill, the running sequences of other roles."""
    if role.pods_reporting == 0:
        return None
    return number(role.outstanding_prompt_tokens if role.role == "prefill" else role.running)


def busy(role: RoleMetrics, windows: Windows) -> float | None:
    """Return the share of time in which a step runs, the mean over the pods. A pod without a row
    took no step."""
    if role.pods_reporting == 0:
        return None
    pods = len(role.steps)
    if pods < MOST_STEP_ROWS:
        pods = max(pods, role.pods_reporting)
    seconds = sum(row.seconds for row in role.steps)
    return min(seconds / max(windows.interval_s, windows.scrape_s) / pods, 1.0)


def context(role: RoleMetrics) -> float | None:
    """Return the mean tokens of context of a sequence in decode steps; None if none was in one."""
    sequences = sum(row.decode_sequences for row in role.steps)
    return sum(row.context_tokens for row in role.steps) / sequences if sequences else None


def prefill_token_s(role: RoleMetrics) -> float | None:
    """Return the seconds of steps per prompt token; None if none was computed."""
    tokens = sum(row.prefill_tokens for row in role.steps)
    return sum(row.seconds for row in role.steps) / tokens if tokens else None


def computed_share(metrics: FleetMetrics) -> float:
    """Return the share of prompts that prefill computes, which no prefix cache has; above 0."""
    return max(1 - (number(metrics.cached_share) or 0.0), 0.01)


def requests_per_s(metrics: FleetMetrics) -> float | None:
    """Return the arrivals in the rate window; 0 if the source says that there were none."""
    if isinstance(metrics.arrivals, Idle):
        return 0.0
    return number(metrics.arrivals)
