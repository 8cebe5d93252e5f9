"""decide(): from one round of observations to the wanted replicas of every role, with reasons.

The chain: is the fleet at zero? → are the metrics valid? → demand (requests per second ahead) →
what a replica can do → size of each role → holds and steps → min and max → GPU budget.
Observations come from `adapters.prometheus` and the snapshot. The decision goes to `core.plan` and,
as a record, to status, Event and log. The operator, the simulator and the tests call it.
"""

from dataclasses import dataclass, replace

from argosy_law import explain
from argosy_law.decision import Decision, RoleTarget, Rule, bounded, why_bounded
from argosy_law.estimate import capacity, season
from argosy_law.estimate.demand import Demand, append_bins, estimate_demand, raised
from argosy_law.estimate.longer import append_answered, with_growth
from argosy_law.goals import (
    Goals,
    Inputs,
    cold_start_s,
    forecast_horizon_s,
    removal_hold_s,
)
from argosy_law.observe import Observations, RoleName
from argosy_law.pace import first_tokens, gates, schedules
from argosy_law.pace.gates import Gate, RoleView, blocked_by
from argosy_law.signals import learning, lengths, validity
from argosy_law.size import sizing
from argosy_law.size.pools import Limits, Model, model_of
from argosy_law.size.work import Work
from argosy_law.state import RoleState, ScalingState, idle


def decide(
    state: ScalingState, observations: Observations, goals: Goals, now: float
) -> tuple[ScalingState, Decision]:
    """The scaling law. Pure: equal arguments give equal answers. `now` is on the metrics' clock."""
    observations = replace(observations, metrics=validity.validated(observations.metrics))
    if (at_zero := schedules.judge_zero(observations, goals)) is not None:
        return state, explain.without_load(observations, goals, now, at_zero.rule, at_zero.why)
    if goals.policy == "None" or goals.slo is None:
        return state, explain.at_minimum(observations, goals, now)
    unavailable = validity.why_unavailable(observations.metrics, goals.windows)
    if unavailable is not None:
        return state, explain.held(observations, goals, now, unavailable)
    inputs = Inputs(observations, goals, goals.slo, now)
    state = learning.mark_valid(state, inputs)
    work = lengths.work(state.lengths, inputs.metrics)
    state, demand = _estimate_demand(state, work, inputs)
    state = learning.learn(state, inputs)
    sizes = _sizes_for_load(state, demand, work, inputs)
    shares = {role: size.share for role, size in sizes.items()}
    state = learning.aimed(state, shares, inputs.slo.attainment)
    full = {role for role, size in sizes.items() if size.full}
    state = learning.correct_headroom(state, full, inputs)
    state, compared = first_tokens.choose(state, sizes, limits_of(state, inputs), inputs)
    sized = tuple(_size_role(RoleView(role, state, sizes, inputs)) for role in state.roles)
    state, sized = _shift(state, sized, inputs)
    pools = _pools(sized, sizes, inputs)
    targets = _within_budget(sized, pools, inputs)
    roles = tuple(
        _with_raise(role.state, target, now) for role, target in zip(sized, targets, strict=True)
    )
    state = replace(state, roles=roles)
    decision = explain.decided(targets, sizes, demand, work, state, inputs)
    decision = replace(
        decision,
        numbers=decision.numbers | compared,
        holds_first_tokens=first_tokens.holds(state, goals),
    )
    if goals.gpu_cap is not None:
        decision = replace(decision, worth=sizing.worth(pools, demand.planned))
    return state, decision


@dataclass(frozen=True, slots=True)
class Sized:
    """One role after holds, steps, min and max, before the GPU budget."""

    target: RoleTarget
    state: RoleState
    blocked_by: Gate | None
    """Why nothing may be removed now; None if removal is allowed."""

    @property
    def fewest(self) -> int:
        """What a budget that is too small leaves to this role: all that it has while its need is
        not known, otherwise no less than its own load asks for."""
        current = self.target.current
        if self.blocked_by is not None and not self.blocked_by.need_known:
            return current
        return min(current, self.target.demanded)


def _estimate_demand(
    state: ScalingState, work: Work, inputs: Inputs
) -> tuple[ScalingState, Demand]:
    """Requests per second to provide for, until a replica that is added now would serve."""
    windows = inputs.windows
    horizon_s = forecast_horizon_s(inputs.observations.supply, windows)
    bins = append_bins(state.demand, inputs.metrics.bins, windows.scrape_s)
    demand_state, demand = estimate_demand(bins, windows, horizon_s, inputs.now)
    days = season.counted(state.season, inputs.metrics.bins, windows.scrape_s)
    days = season.scored(days, demand_state, windows)
    due = inputs.now + horizon_s
    foretold = season.foretold(days, demand, windows.scrape_s, inputs.now, due)
    days = season.noted(days, demand, foretold, due)
    if foretold is not None and days.trusted and foretold > demand.forecast:
        demand_state, demand = raised(demand_state, demand, foretold)
    answered = append_answered(state.answered, inputs.metrics.answered, windows.scrape_s)
    demand = with_growth(demand, answered, work, windows, due)
    return replace(state, demand=demand_state, season=days, answered=answered), demand


def _sizes_for_load(
    state: ScalingState, demand: Demand, work: Work, inputs: Inputs
) -> dict[RoleName, sizing.Size]:
    """What load alone asks for, per role; empty after an idle window without requests.

    While pods of two revisions serve, each role has the size that the slower one needs: which of
    them serves how much changes with every step of the rollout.
    """
    sizes = _sizes_of_revision(state, demand, work, inputs)
    if all(role.former is None for role in state.roles):
        return sizes
    roles = tuple(replace(role, estimate=role.former or role.estimate) for role in state.roles)
    former = _sizes_of_revision(replace(state, roles=roles), demand, work, inputs)
    return {role: max(size, former[role], key=lambda one: one.up) for role, size in sizes.items()}


def _sizes_of_revision(
    state: ScalingState, demand: Demand, work: Work, inputs: Inputs
) -> dict[RoleName, sizing.Size]:
    """What load alone asks for, of replicas as the estimates have them."""
    windows = inputs.windows
    if idle(state, windows, inputs.now):
        return {}
    limits, loads = limits_of(state, inputs), dict[RoleName, sizing.Load]()
    models = dict[RoleName, Model]()
    # A prompt that waits is work for every role: the queue may be one for room in decode.
    queued = max(role.gauges.outstanding_prompt_tokens or 0.0 for role in state.roles)
    # A fleet that misses its goal does not plan for less than it expects.
    least = 1.0 if learning.misses(inputs.metrics, inputs.slo.attainment) else 0.0
    for role in state.roles:
        gauges, supply = role.gauges, inputs.observations.of(role.role)
        replica = capacity.replica(
            role.estimate, gauges.kv_capacity_tokens or 0.0, inputs.goals.serving
        )
        models[role.role] = model_of(role.role, replica, work, limits)
        full = sizing.is_full(models[role.role], gauges.running, supply.ready, limits.goal)
        loads[role.role] = sizing.Load(
            rate=demand.forecast
            * max(demand.margin, least)
            * demand.longer(role.role)
            * learning.headroom_in_force(role, state, inputs, full=full),
            prompt_tokens=work.computed,
            outstanding_prompt_tokens=queued,
            running=gauges.running or 0.0,
            full=full,
        )
    if first_tokens.holds(state, inputs.goals):
        models = first_tokens.hold(models, loads, limits)
    supplies = {role.role: inputs.observations.of(role.role) for role in state.roles}
    counts = sizing.counts(models, loads, supplies, inputs.goals, limits.goal)
    sizes = {}
    for role in state.roles:
        supply = supplies[role.role]
        horizon = sizing.Horizon(
            cold_s=cold_start_s(supply, windows),
            drain_s=windows.rate_s,
            patience_s=limits.ttft_s,
            started_s=max(inputs.now - (role.holds.raised_at or inputs.now), 0.0),
        )
        sizes[role.role] = sizing.size(
            models[role.role], loads[role.role], counts[role.role], supply, limits.goal, horizon
        )
    return sizes


def limits_of(state: ScalingState, inputs: Inputs) -> Limits:
    """The SLO's limits, and what a request spends outside prefill and decode steps.

    The KV transfer delays the second token, and an answer pays it once. Where decode draws the
    first token, it delays that one, and so does a step, of the time that TPOT allows. With 0.1 s
    for a transfer and 0.05 s for TPOT, 0.85 s of a TTFT of 1 s are left for the prompt.
    """
    goals, slo, transfer_s = inputs.goals, inputs.slo, state.lengths.transfer_s or 0.0
    first_s = transfer_s + slo.tpot_s if goals.serving.pulls_first else 0.0
    return Limits(
        ttft_s=slo.ttft_s - goals.control_round_trip_s - first_s,
        tpot_s=slo.tpot_s,
        pause_s=0.0 if goals.serving.pulls_first else transfer_s,
        goal=slo.attainment,
        order=goals.serving.order,
    )


def _size_role(view: RoleView) -> Sized:
    """Apply holds and steps, then the user's min and max."""
    goal, now = view.inputs.goals.role(view.name), view.inputs.now
    up, down, rule = goal.min, goal.min, Rule.IDLE
    if view.size is not None:
        up, down, rule = view.size.up, view.size.down, view.size.rule
    if view.supply.rolling:  # what a rollout tries to start may never serve: others stay for it
        down += max(view.supply.desired - view.supply.ready, 0)
    windows = gates.HoldWindows(view.inputs.windows.up_hold_s, view.hold_s)
    held, gate = gates.record_wants(view.role.holds, up, down, now, windows), blocked_by(view)
    current, steps = view.supply.desired, view.inputs.goals.steps
    replicas, rule = gates.apply_holds(held, current, rule, gate.rule if gate else None, steps)
    replicas, rule = bounded(replicas, rule, goal)
    why = why_bounded(rule, goal, replicas)
    if gate is not None and gate.rule is rule:
        why = gate.message(view)
    demanded = view.size.up if view.size else max(up, goal.min)
    target = RoleTarget(view.name, current, replicas, demanded, rule, why)
    return Sized(target, replace(view.role, holds=held), gate)


def _shift(
    state: ScalingState, sized: tuple[Sized, ...], inputs: Inputs
) -> tuple[ScalingState, tuple[Sized, ...]]:
    """Both roles in one decision, if a pod of one may become one of the other."""
    supply = inputs.observations.supply
    alike = len({role.gpus_per_replica for role in supply}) == 1
    if not (inputs.goals.role_flip and len(sized) == 2 and alike):
        return state, sized
    one, other = (
        gates.Side(
            role.target,
            role.state.holds.highs[-1].replicas,
            inputs.goals.role(role.target.role).min,
            role.blocked_by,
        )
        for role in sized
    )
    hold_s = max(removal_hold_s(role, inputs.windows) for role in supply)
    span = gates.Span(hold_s, hold_s + max(cold_start_s(role, inputs.windows) for role in supply))
    after, targets = gates.shift_replicas(state.shift, (one, other), span, inputs.now)
    sized = tuple(replace(role, target=to) for role, to in zip(sized, targets, strict=True))
    return replace(state, shift=after), sized


def _pools(
    sized: tuple[Sized, ...], sizes: dict[RoleName, sizing.Size], inputs: Inputs
) -> tuple[sizing.Pool, ...]:
    """What each role wants of a GPU budget; empty if a role was not sized."""
    if set(sizes) != {role.target.role for role in sized}:
        return ()
    return tuple(
        sizing.Pool(
            minimum=inputs.goals.role(target.role).least,
            wanted=target.replicas,
            gpus=inputs.observations.of(target.role).gpus_per_replica,
            model=sizes[target.role].model,
            rate=sizes[target.role].rate,
            queued=inputs.goals.serving.order == "deadline" and target.role != "prefill",
        )
        for target in (role.target for role in sized)
    )


def _within_budget(
    sized: tuple[Sized, ...], pools: tuple[sizing.Pool, ...], inputs: Inputs
) -> tuple[RoleTarget, ...]:
    """Share the smaller of the two GPU limits between the roles: the most predicted goodput that
    fits.

    Each role keeps its `fewest` if that fits; only a limit below even that, which the user or the
    administrator has set, goes down to the minimum.
    """
    goals, targets = inputs.goals, tuple(role.target for role in sized)
    limit = goals.gpus
    if limit is None or not pools:
        return targets
    floors = tuple(max(pool.minimum, role.fewest) for pool, role in zip(pools, sized, strict=True))
    fits = sizing.gpus(pools, floors) <= limit
    if fits:
        pools = tuple(
            replace(pool, minimum=fewest) for pool, fewest in zip(pools, floors, strict=True)
        )
    if fits or not inputs.metrics.gateways_alone:
        fitted = sizing.fit_budget(pools, limit)
    else:
        # Without metrics a budget takes nothing either, as in a round without any decision.
        fitted = tuple(min(n, pool.wanted) for n, pool in zip(floors, pools, strict=True))
    return tuple(
        _bounded(target, count, goals) for target, count in zip(targets, fitted, strict=True)
    )


def _bounded(target: RoleTarget, replicas: int, goals: Goals) -> RoleTarget:
    """The target with what the budget leaves it, and whose budget it is."""
    if replicas == target.replicas:
        return target
    rule, over = Rule.GPU_BUDGET, target.replicas - replicas
    why = explain.budget_in_force(goals)
    return replace(target, replicas=replicas, rule=rule, message=why, over_budget=over)


def _with_raise(role: RoleState, target: RoleTarget, now: float) -> RoleState:
    """The role's state, which remembers when it was last scaled up."""
    if target.replicas <= target.current:
        return role
    return replace(role, holds=replace(role.holds, raised_at=now))
