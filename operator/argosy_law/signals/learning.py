"""What one round of metrics teaches: validity times, lengths, gauges, capacity, headroom.

Called by `decide` with metrics that `validity` has checked; everything learnt goes into
`state.ScalingState`.
"""

from collections.abc import Collection, Mapping
from dataclasses import astuple, replace
from math import exp, isfinite

from argosy_law.estimate import capacity
from argosy_law.goals import Inputs, forecast_horizon_s
from argosy_law.observe import (
    LARGEST,
    FleetMetrics,
    RoleMetrics,
    RoleName,
    RoleSupply,
    Signal,
    Value,
    plausible,
)
from argosy_law.signals import lengths
from argosy_law.state import Gauges, Lengths, RoleState, ScalingState, restarted

FEEDBACK_GAIN = 0.03
"""How much of an error of attainment changes the headroom in one interval."""
FEEDBACK_ERROR = (-0.03, 0.12)
"""Bounds of that error. Missing counts for more than exceeding, because a miss is a user's request.

Measured 0.7, aimed at 0.95: the error is 0.25, bounded to 0.12, and the headroom grows by
exp(0.03 · 0.12) − 1 = 0.36 % in this interval. Measured 1.0: the error is −0.05, bounded to −0.03,
and it shrinks by 0.09 %. From 1.0 to 1.1 takes 27 intervals.
"""
RESERVE = 0.1
"""Part of the allowed misses that is not aimed at: a share of a few hundred requests is not exact.
"""
LEAST_PART = 0.1
"""Of the allowed misses: what a role gets at least, however rarely it should miss."""
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
    # While a gateway is silent, or gateways alone speak, only a part is seen: the hold begins when
    # the whole is.
    gap = gap or bool(metrics.silent_gateways) or bool(metrics.gateways_alone)
    busy = gap or isinstance(metrics.arrivals, Value)
    return replace(
        state,
        valid_since=now if gap else state.valid_since,
        last_valid_at=now,
        busy_at=now if busy else state.busy_at,
        roles=_roles(state, inputs, renewed),
        lengths=lengths.update_lengths(state.lengths, metrics, windows),
    )


def _roles(state: ScalingState, inputs: Inputs, renewed: bool) -> tuple[RoleState, ...]:
    """The remembered state of each role of the fleet; the prior for a role that is new. On another
    GPU type a role begins at that type's prior, with the holds that it had."""
    known = {role.role: role for role in state.roles}
    roles = list[RoleState]()
    for goal in inputs.goals.roles:
        role = known.get(goal.role)
        if role is None or role.gpu_type != goal.gpu_type:
            prior = goal.profile or inputs.goals.prior
            gauges = Gauges(kv_capacity_tokens=(prior and prior.kv_tokens) or None)
            estimate = replace(capacity.begin(goal.role, prior, inputs.slo), renewed=renewed)
            new = RoleState(goal.role, estimate, gauges, gpu_type=goal.gpu_type)
            role = new if role is None else replace(new, holds=role.holds, aim=role.aim)
        roles.append(role)
    return tuple(roles)


def sound(state: ScalingState) -> bool:
    """Whether every remembered number is usable. False for a state that was read back corrupt."""
    demand, last = state.demand, [astuple(role.gauges) for role in state.roles]
    times = (state.valid_since, state.last_valid_at, state.busy_at)
    shift_at, other_since = state.shift.at, state.first_tokens.other_since
    times_of_parts = (demand.end, demand.rose_at, state.answered.end, shift_at, other_since)
    hold_states = [role.holds for role in state.roles]
    wants = [want for held in hold_states for want in (*held.highs, *held.lows)]
    wants += state.shift.highs
    numbers = (
        *(n for part in (_means(state.lengths), *last) for n in part if n is not None),
        *(n for kept in (state.lengths.prompts, state.lengths.answers) for b in kept for n in b),
        *demand.counts,
        *(forecast.rate for forecast in demand.pending),
        *(n for pair in demand.residuals for n in pair),
        *(n for row in state.answered.rows for n in row),
        *state.season.numbers,
        *(want.replicas for want in wants),
        *(role.aim for role in state.roles if role.aim is not None),
    )
    moments = (
        *(
            moment
            for moment in (*times, *times_of_parts, *(held.raised_at for held in hold_states))
            if moment is not None
        ),
        *(forecast.due for forecast in demand.pending),
        *(want.at for want in wants),
    )
    return (
        # The sum is NaN if one is. A thousand numbers are not asked one by one.
        isfinite(sum(numbers))
        and plausible(min(numbers, default=0.0))
        and plausible(max(numbers, default=0.0))
        and all(map(isfinite, moments))
        and all(HEADROOM[0] <= role.headroom <= HEADROOM[1] for role in state.roles)
        and all(capacity.sound(role.estimate) for role in state.roles)
        and all(role.former is None or capacity.sound(role.former) for role in state.roles)
    )


def _means(lengths_: Lengths) -> tuple[float | None, ...]:
    means = (lengths_.prompt, lengths_.variation, lengths_.output)
    return (*means, lengths_.transfer_s, lengths_.cached, lengths_.context)


def learn(state: ScalingState, inputs: Inputs) -> ScalingState:
    """Capacity from the step counters, and the gauges.

    What is known of a revision is a guess about the next one, which may be another model. In a
    rollout pods of both report, and each revision is learnt from its own: of the two together a
    slow one with few sequences and a quick one with many would say that sequences cost nothing.
    """
    mixed = any(supply.mixed for supply in inputs.observations.supply)
    return replace(
        state, roles=tuple(_learn_role(role, inputs, mixed=mixed) for role in state.roles)
    )


def _learn_role(role: RoleState, inputs: Inputs, *, mixed: bool) -> RoleState:
    of_role, supply = inputs.metrics.role(role.role), inputs.observations.of(role.role)
    role = _of_revision(role, supply.revision)
    new = tuple(row for row in of_role.steps if row.pod not in supply.old_pods)
    old = tuple(row for row in of_role.steps if row.pod in supply.old_pods)
    estimate, former = role.estimate, role.former if mixed else None
    if not (mixed and role.gpu_type):
        estimate = capacity.learn(estimate, new, inputs.windows)
    if mixed:
        estimate = replace(estimate, rows=0, steps=0.0)
    return replace(
        role,
        estimate=estimate,
        former=former and capacity.learn(former, old, inputs.windows),
        gauges=_gauges(role.gauges, of_role, supply),
    )


def _of_revision(role: RoleState, revision: str) -> RoleState:
    """The state for a revision: another one begins with a guess, unless it is the one before."""
    if revision in ("", role.revision):
        return role
    if not role.revision:
        return replace(role, revision=revision)
    back = role.former if role.former_revision == revision else None
    return replace(
        role,
        revision=revision,
        estimate=capacity.guess(role.estimate) if back is None else back,
        former=role.estimate,
        former_revision=role.revision,
    )


def correct_headroom(
    state: ScalingState, full: Collection[RoleName], inputs: Inputs
) -> ScalingState:
    """The state with each role's headroom corrected by this round's attainment.

    `full`: the roles without room for another request.
    """
    up, metrics, goal = rising(state, inputs), inputs.metrics, inputs.slo.attainment
    return replace(
        state,
        roles=tuple(
            replace(
                role,
                headroom=corrected_headroom(role, metrics, goal, rising=up, full=role.role in full),
            )
            for role in state.roles
        ),
    )


def corrected_headroom(
    role: RoleState,
    metrics: FleetMetrics,
    goal: float,
    *,
    rising: bool = False,
    full: bool = False,
) -> float:
    """The factor on the planned load after this round's attainment; unchanged if too few scored.

    It is not lowered while the load rises, nor while the role is at fault that requests miss.
    """
    measured = own_share(role.role, metrics)
    if not isinstance(measured, Value) or metrics.scored < SCORED_ENOUGH:
        return role.headroom
    error = aim_of(role, goal) - measured.value
    if error < 0 and (rising or at_fault(role, metrics, goal, full=full)):
        return role.headroom
    low, high = FEEDBACK_ERROR
    corrected = role.headroom * exp(FEEDBACK_GAIN * min(max(error, low), high))
    return min(max(corrected, HEADROOM[0]), HEADROOM[1])


def own_share(role: RoleName, metrics: FleetMetrics) -> Signal:
    """The share of requests within the limit that the role answers for."""
    shares = {"prefill": metrics.ttft_attainment, "decode": metrics.tpot_attainment}
    return shares.get(role, metrics.attainment)


def aim_of(role: RoleState, goal: float) -> float:
    """The share that should be within the role's limit."""
    return role.aim if role.aim is not None else (1 + goal) / 2


def at_fault(role: RoleState, metrics: FleetMetrics, goal: float, *, full: bool) -> bool:
    """Whether the role may be why the fleet misses its goal.

    It is where its own limit is missed more often than it aims at, and where it is `full`: prompts
    that wait for room in decode miss TTFT.
    """
    if not misses(metrics, goal):
        return False
    measured = own_share(role.role, metrics)
    return full or not isinstance(measured, Value) or measured.value < aim_of(role, goal)


def aimed(state: ScalingState, shares: Mapping[RoleName, float], goal: float) -> ScalingState:
    """The state with what each role aims at, from the shares that its size was chosen for.

    A request must meet both limits, so the roles divide what may be missed: as they would miss by
    their sizes, which the search for the cheapest fleet has chosen. Without sizes nothing changes.
    """
    if not shares:
        return state
    allowed = (1 - goal) * (1 - RESERVE)
    missed = {role: 1 - share for role, share in shares.items()}
    total = sum(missed.values())

    def aim(role: RoleName) -> float:
        if len(missed) == 1:
            return 1 - allowed
        part = missed[role] / total if total > 0 else 1 / len(missed)
        return 1 - allowed * min(max(part, LEAST_PART), 1 - LEAST_PART)

    return replace(state, roles=tuple(replace(r, aim=aim(r.role)) for r in state.roles))


def misses(metrics: FleetMetrics, goal: float) -> bool:
    """Whether the measured share of requests within both limits is below the goal."""
    return isinstance(metrics.attainment, Value) and metrics.attainment.value < goal


def headroom_in_force(role: RoleState, state: ScalingState, inputs: Inputs, *, full: bool) -> float:
    """The factor on the planned load now.

    What was trimmed under a steady load is given back while the load rises or the role is at fault.
    """
    fault = at_fault(role, inputs.metrics, inputs.slo.attainment, full=full)
    untrimmed = rising(state, inputs) or fault
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
