"""What one round of metrics teaches: validity times, lengths, gauges, capacity, headroom.

Called by `decide` with metrics that `validity` has checked; everything learnt goes into
`state.ScalingState`.
"""

from dataclasses import astuple, replace
from math import exp, isfinite

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.estimate import capacity
from argosy_operator.core.scaling.estimate.cold_start import forecast_horizon_s
from argosy_operator.core.scaling.goals import Inputs
from argosy_operator.core.scaling.observe import (
    LARGEST,
    FleetMetrics,
    RoleMetrics,
    RoleSupply,
    Signal,
    Value,
    plausible,
)
from argosy_operator.core.scaling.signals import lengths
from argosy_operator.core.scaling.state import Gauges, Lengths, RoleState, ScalingState, restarted

FEEDBACK_GAIN = 0.03
"""How much of an error of attainment changes the headroom in one interval."""
FEEDBACK_ERROR = (-0.03, 0.12)
"""Bounds of that error. Missing counts for more than exceeding, because a miss is a user's request.

Goal 0.9, measured 0.7: a pool aims at (1 + 0.9)/2 = 0.95, so the error is 0.25, bounded to 0.12,
and the headroom grows by exp(0.03 · 0.12) − 1 = 0.36 % in this interval. Measured 1.0: the error is
−0.05, bounded to −0.03, and it shrinks by 0.09 %. From 1.0 to 1.1 takes 27 intervals.
"""
HEADROOM = (0.85, 1.1)
"""Bounds of the correction: it trims the formulas, which answer bursts."""
SCORED_ENOUGH = 20
"""Verdicts from which a share is used: at 0.9 its standard error is √(0.9 · 0.1/20) = 0.07."""


def mark_valid(state: ScalingState, inputs: Inputs) -> ScalingState:
    """Record that the metrics are valid now, whether requests come, and what a request brings.

    Starts again after the clock of the samples went back, and from the prior if the state that was
    read back cannot be right.
    """
    metrics, windows, now = inputs.metrics, inputs.windows, inputs.now
    if state.last_valid_at is not None and now < state.last_valid_at - windows.fresh_s:
        state = restarted(state)
    renewed = not sound(state)
    if renewed:
        state = ScalingState()
    last_at = state.last_valid_at
    gap = last_at is None or now - last_at > windows.fresh_s + windows.interval_s
    # While a gateway is silent, only a part is seen: the hold begins when the whole is.
    gap = gap or bool(metrics.silent_gateways)
    busy = gap or isinstance(metrics.arrivals, Value)
    return replace(
        state,
        valid_since=now if gap else state.valid_since,
        last_valid_at=now,
        busy_at=now if busy else state.busy_at,
        roles=_roles(state, inputs, renewed),
        lengths=lengths.updated(state.lengths, metrics, windows),
    )


def _roles(state: ScalingState, inputs: Inputs, renewed: bool) -> tuple[RoleState, ...]:
    """The remembered state of each role of the fleet; the prior for a role that is new."""
    prior = inputs.goals.prior
    gauges = Gauges(kv_capacity_tokens=(prior and prior.kv_tokens) or None)
    roles: dict[RoleName, RoleState] = {}
    for goal in inputs.goals.roles:
        estimate = replace(capacity.begin(goal.role, prior, inputs.slo), renewed=renewed)
        roles[goal.role] = RoleState(goal.role, estimate, gauges)
    roles |= {role.role: role for role in state.roles if role.role in roles}
    return tuple(roles.values())


def sound(state: ScalingState) -> bool:
    """Whether every remembered number is usable. False for a state that was read back corrupt."""
    demand, last = state.demand, [astuple(role.gauges) for role in state.roles]
    times = (state.valid_since, state.last_valid_at, state.busy_at, demand.end, demand.rose_at)
    hold_states = [role.holds for role in state.roles]
    wants = [want for held in hold_states for want in (*held.highs, *held.lows)]
    numbers = (
        *(n for part in (_means(state.lengths), *last) for n in part if n is not None),
        *(n for kept in (state.lengths.prompts, state.lengths.answers) for b in kept for n in b),
        *demand.counts,
        *(forecast.rate for forecast in demand.pending),
        *(n for pair in demand.residuals for n in pair),
        *(want.replicas for want in wants),
    )
    moments = (
        *(
            moment
            for moment in (*times, *(held.raised_at for held in hold_states))
            if moment is not None
        ),
        *(forecast.due for forecast in demand.pending),
        *(want.at for want in wants),
    )
    return (
        all(map(plausible, numbers))
        and all(map(isfinite, moments))
        and all(HEADROOM[0] <= role.headroom <= HEADROOM[1] for role in state.roles)
        and all(capacity.sound(role.estimate) for role in state.roles)
    )


def _means(lengths_: Lengths) -> tuple[float | None, ...]:
    means = (lengths_.prompt, lengths_.variation, lengths_.output)
    return (*means, lengths_.transfer_s, lengths_.context)


def learn(state: ScalingState, inputs: Inputs) -> ScalingState:
    """Capacity from the step counters, headroom from measured attainment, and the gauges.

    During a rollout what is known becomes a guess: the new revision may be another model.
    """
    rolling, up = (
        any(supply.rolling for supply in inputs.observations.supply),
        rising(state, inputs),
    )
    return replace(
        state,
        roles=tuple(_learn_role(role, inputs, rolling=rolling, up=up) for role in state.roles),
    )


def _learn_role(role: RoleState, inputs: Inputs, *, rolling: bool, up: bool) -> RoleState:
    of_role, supply = inputs.metrics.role(role.role), inputs.observations.of(role.role)
    estimate = capacity.learn(role.estimate, of_role.steps, inputs.windows)
    if rolling:
        estimate = replace(estimate, rows=0, steps=0.0)
    return replace(
        role,
        estimate=estimate,
        headroom=corrected_headroom(role, inputs.metrics, inputs.slo.attainment, rising=up),
        gauges=_gauges(role.gauges, of_role, supply),
    )


def corrected_headroom(
    role: RoleState, metrics: FleetMetrics, goal: float, *, rising: bool = False
) -> float:
    """The factor on the planned load after this round's attainment; unchanged if too few scored.

    It is not lowered while the load rises, nor while the fleet as a whole misses its goal: what one
    role lacks may show in the other's limit, because prompts wait for room in decode too.
    """
    shares = {"prefill": metrics.ttft_attainment, "decode": metrics.tpot_attainment}
    measured = shares.get(role.role, metrics.attainment)
    if not isinstance(measured, Value) or metrics.scored < SCORED_ENOUGH:
        return role.headroom
    # Each pool aims above the fleet's goal, so that the product of both does not fall below it.
    error = (1 + goal) / 2 - measured.value
    if error < 0 and (rising or misses(metrics, goal)):
        return role.headroom
    low, high = FEEDBACK_ERROR
    corrected = role.headroom * exp(FEEDBACK_GAIN * min(max(error, low), high))
    return min(max(corrected, HEADROOM[0]), HEADROOM[1])


def misses(metrics: FleetMetrics, goal: float) -> bool:
    """Whether the measured share of requests within both limits is below the goal."""
    return isinstance(metrics.attainment, Value) and metrics.attainment.value < goal


def headroom_in_force(role: RoleState, state: ScalingState, inputs: Inputs) -> float:
    """The factor on the planned load now.

    What was trimmed under a steady load is given back while the load rises or the goal is missed.
    """
    untrimmed = rising(state, inputs) or misses(inputs.metrics, inputs.slo.attainment)
    return max(role.headroom, 1.0) if untrimmed else role.headroom


def rising(state: ScalingState, inputs: Inputs) -> bool:
    """Whether the load rises, or rose until less than a cold start ago."""
    rose_at = state.demand.rose_at
    supply, windows = inputs.observations.supply, inputs.windows
    return rose_at is not None and inputs.now - rose_at <= forecast_horizon_s(supply, windows)


def _gauges(before: Gauges, metrics: RoleMetrics, supply: RoleSupply) -> Gauges:
    """The gauges after this round, scaled up for pods that do not report their share."""
    silent = max(supply.ready / metrics.pods_reporting, 1.0) if metrics.pods_reporting else 1.0

    def whole(part: Signal) -> Signal:
        if not isinstance(part, Value):
            return part
        return Value(min(part.value * silent, LARGEST), part.at)

    return Gauges(
        lengths.last(whole(metrics.running), before.running),
        lengths.last(whole(metrics.outstanding_prompt_tokens), before.outstanding_prompt_tokens),
        lengths.last(metrics.kv_capacity_tokens, before.kv_capacity_tokens),
    )
