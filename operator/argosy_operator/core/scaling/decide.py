"""decide(): from one round of observations to the wanted replicas of every role, with reasons.

The chain: sight (are the metrics true?) → demand (requests per second ahead) → work (what a request
brings) → capacity (what a replica does) → size per role → hold and step → min, max → GPU budget.
Observations come from `ports/prometheus` and the snapshot; the decision goes to `core/plan` and,
as a record, to status, Event and log. The operator, the simulator and the tests call this function.
"""

from dataclasses import replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling import explain
from argosy_operator.core.scaling.decision import Candidate, Decision, RoleTarget, Rule
from argosy_operator.core.scaling.estimate import capacity, demand
from argosy_operator.core.scaling.estimate.cold_start import cold_start_s
from argosy_operator.core.scaling.estimate.demand import Demand
from argosy_operator.core.scaling.goals import SLO, Goals
from argosy_operator.core.scaling.observe import FleetMetrics, Observations, RoleSupply, Value
from argosy_operator.core.scaling.pace import holds
from argosy_operator.core.scaling.signals import validity
from argosy_operator.core.scaling.size import budget
from argosy_operator.core.scaling.size.sizing import Limits, Size, model_of, size
from argosy_operator.core.scaling.state import RoleState, ScalingState, idle, restarted

__all__ = ["Candidate", "Decision", "RoleTarget", "Rule", "ScalingState", "decide"]

# A role kept by one of these is not known well enough to take GPUs from it for another role.
UNSURE = (
    Rule.JUST_STARTED,
    Rule.METRICS_UNAVAILABLE,
    Rule.CAPACITY_GUESSED,
    Rule.ROLLOUT_IN_PROGRESS,
    Rule.SCALE_UP_PENDING,
)


def decide(
    state: ScalingState, observations: Observations, goals: Goals, now: float
) -> tuple[ScalingState, Decision]:
    """The scaling law. Pure: equal arguments give equal answers."""
    metrics, windows, slo = validity.validated(observations.metrics), goals.windows, goals.slo
    observations = replace(observations, metrics=metrics)
    if slo is None or goals.policy == "None":
        return state, explain.at_minimum(observations, goals, now)
    blind = validity.why_unavailable(metrics, windows)
    if blind is not None:
        return state, explain.held(observations, goals, now, blind)
    if state.last_valid_at is not None and now < state.last_valid_at - windows.fresh_s:
        state = restarted(state)
    state = validity.mark_valid(state, metrics, goals, slo, now)
    horizon_s = max(cold_start_s(s, windows) for s in observations.supply)
    horizon_s += windows.interval_s + windows.scrape_s
    bins = demand.remember(state.demand, metrics.bins, windows.scrape_s)
    noted, coming = demand.estimate(bins, windows, horizon_s, now)
    roles = tuple(validity.learn(r, observations, goals) for r in state.roles)
    state = replace(state, demand=noted, roles=roles)
    sizes = _sizes(state, coming, observations, goals, slo, now)
    settled = [_settle(state, r, sizes, observations, goals, now) for r in state.roles]
    kept = {t.role for t, _, keeps in settled if keeps in UNSURE}
    targets = _within_budget([t for t, _, _ in settled], kept, sizes, observations, goals)
    state = replace(state, roles=tuple(_raised(r, targets, now) for _, r, _ in settled))
    work = validity.work(state.lengths, metrics) if sizes else None
    decision = explain.decided(targets, sizes, coming, work, observations, now)
    return state, explain.relearning(decision, state)


def _sizes(
    state: ScalingState, coming: Demand, seen: Observations, goals: Goals, slo: SLO, now: float
) -> dict[RoleName, Size]:
    """Each role's size from load; empty when idle for a hold window."""
    windows, work = goals.windows, validity.work(state.lengths, seen.metrics)
    if idle(state, windows, now):
        return {}
    transfer_s = (state.lengths.transfer_s or 0.0) / max(work.output - 1, 1.0)
    joint = goals.mode == "disaggregated"
    limits = Limits(
        ttft_s=slo.ttft_s - goals.control_round_trip_s,
        tpot_s=slo.tpot_s - (transfer_s if joint else 0.0),
        goal=slo.attainment,
    )
    sizes = {}
    for role in state.roles:
        supply = seen.of(role.role)
        replica = capacity.replica(role.estimate, role.gauges.kv_capacity_tokens or 0.0)
        sizes[role.role] = size(
            model_of(role.role, replica, work, limits),
            work,
            coming.planned * role.headroom,
            role.gauges,
            supply,
            goal=limits.goal,
            cold_s=cold_start_s(supply, windows),
            drain_s=windows.rate_s,
        )
    return sizes


def _settle(
    state: ScalingState,
    role: RoleState,
    sizes: dict[RoleName, Size],
    seen: Observations,
    goals: Goals,
    now: float,
) -> tuple[RoleTarget, RoleState, Rule | None]:
    """Holds, steps, then the user's min and max; and why nothing may be removed now."""
    windows, goal = goals.windows, goals.role(role.role)
    supply = seen.of(role.role)
    current = supply.desired
    got = sizes.get(role.role)
    up, down, rule = (got.up, got.down, got.rule) if got else (goal.min, goal.min, Rule.IDLE)
    hold_s = max(windows.down_hold_s, 2 * cold_start_s(supply, windows))
    hold_state = holds.record(
        role.holds, up, down, now, holds.HoldWindows(windows.up_hold_s, hold_s)
    )
    kept_by = _kept_by(state, role, sizes, supply, seen.metrics, goals, now)
    replicas, rule = holds.apply(hold_state, current, rule, kept_by, goals.steps)
    replicas, rule = holds.clamp(replicas, rule, goal)
    target = RoleTarget(role.role, current, replicas, up, rule, "")
    return target, replace(role, holds=hold_state), kept_by


def _kept_by(
    state: ScalingState,
    role: RoleState,
    sizes: dict[RoleName, Size],
    supply: RoleSupply,
    metrics: FleetMetrics,
    goals: Goals,
    now: float,
) -> Rule | None:
    """The first rule that forbids to remove capacity of this role now, None if none does."""
    windows, slo = goals.windows, goals.slo
    hold_s = max(windows.down_hold_s, 2 * cold_start_s(supply, windows))
    raised_at, reporting = role.holds.raised_at, metrics.role(role.role).pods_reporting
    starting = supply.pending > supply.unschedulable and raised_at is not None
    met = metrics.attainment.value if isinstance(metrics.attainment, Value) else 1.0
    got = sizes.get(role.role)
    # Attainment that no number of replicas gives is no reason to keep those that are there.
    goal = min(slo.attainment if slo else 0.0, *(s.model.reachable for s in sizes.values()), 1.0)
    measured = role.estimate.learnt and state.lengths.measured
    noise = (goal * (1 - goal) / metrics.scored) ** 0.5 if metrics.scored else 1.0
    rules = (
        (bool(metrics.silent_gateways), Rule.METRICS_UNAVAILABLE),
        (state.valid_since is None or now - state.valid_since < hold_s, Rule.JUST_STARTED),
        (supply.ready > 0 and 2 * reporting <= supply.ready, Rule.METRICS_UNAVAILABLE),
        (bool(validity.unknown_signals(role.role, metrics)), Rule.METRICS_UNAVAILABLE),
        (got is not None and not measured, Rule.CAPACITY_GUESSED),
        (supply.rolling, Rule.ROLLOUT_IN_PROGRESS),
        (starting and now - (raised_at or now) < hold_s, Rule.SCALE_UP_PENDING),
        (got is not None and got.rule is Rule.BACKLOG, Rule.BACKLOG),
        (got is not None and met + noise < goal, Rule.ATTAINMENT_BELOW_GOAL),
    )
    return next((rule for applies, rule in rules if applies), None)


def _within_budget(
    targets: list[RoleTarget],
    kept: set[RoleName],
    sizes: dict[RoleName, Size],
    seen: Observations,
    goals: Goals,
) -> tuple[RoleTarget, ...]:
    """Roles share the GPUs; where they do not suffice, the most predicted goodput that fits.

    A role in `kept` gives nothing away, any other one no more than its own load leaves over; only
    a budget below even that, which is the user's word, goes down to the minimum.
    """
    if goals.gpu_budget is None or set(sizes) != {t.role for t in targets}:
        return tuple(targets)
    gpus = {s.role: s.gpus_per_replica for s in seen.supply}
    pools = tuple(
        budget.Pool(
            goals.role(t.role).min,
            t.replicas,
            gpus[t.role],
            sizes[t.role].model,
            sizes[t.role].rate,
        )
        for t in targets
    )
    floors = tuple(
        max(p.minimum, t.current if t.role in kept else min(t.current, t.demanded))
        for p, t in zip(pools, targets, strict=True)
    )
    if budget.gpus(pools, floors) <= goals.gpu_budget:
        pools = tuple(replace(p, minimum=n) for p, n in zip(pools, floors, strict=True))
    fitted = budget.fit(pools, goals.gpu_budget)
    return tuple(
        t if n == t.replicas else replace(t, replicas=n, rule=Rule.GPU_BUDGET)
        for t, n in zip(targets, fitted, strict=True)
    )


def _raised(role: RoleState, targets: tuple[RoleTarget, ...], now: float) -> RoleState:
    target = next(t for t in targets if t.role == role.role)
    if target.replicas <= target.current:
        return role
    return replace(role, holds=replace(role.holds, raised_at=now))
