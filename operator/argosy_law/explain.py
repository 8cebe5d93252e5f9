"""The sentences and numbers of a decision: what people read in status, Events and `explain`.

`decide` brings targets whose `message` is the reason; here each becomes a whole sentence.
"""

from dataclasses import replace

from argosy_law.decision import (
    MEANING,
    Candidate,
    Decision,
    Lack,
    RoleTarget,
    Rule,
    bounded,
    why_bounded,
)
from argosy_law.estimate.demand import Demand
from argosy_law.goals import Goals, Inputs, RoleGoal
from argosy_law.observe import (
    NOT_ASKED,
    FleetMetrics,
    Observations,
    RoleName,
    RoleSupply,
    Value,
)
from argosy_law.signals import validity
from argosy_law.signals.learning import SCORED_ENOUGH
from argosy_law.size.pools import ColocatedModel, DecodeModel, PrefillModel
from argosy_law.size.sizing import HYSTERESIS, Size, reach_of
from argosy_law.size.work import Work
from argosy_law.state import ScalingState

MOST_BETWEEN = 12
"""Candidates listed between two numbers of replicas: the record must fit into status."""
HOUR_S = 3600.0


def at_minimum(seen: Observations, goals: Goals, now: float) -> Decision:
    """No SLO to size by, or a policy that sizes nothing."""
    rule = Rule.POLICY_NONE if goals.policy == "None" else Rule.NO_SLO
    targets = tuple(_at_minimum(supply, goals.role(supply.role), rule) for supply in seen.supply)
    scheduled = [f"{t.role}: {t.message}" for t in targets if t.rule is Rule.SCHEDULE]
    return _inactive(targets, seen, now, rule, "; ".join([MEANING[rule], *scheduled]))


def _at_minimum(supply: RoleSupply, goal: RoleGoal, rule: Rule) -> RoleTarget:
    rule = Rule.SCHEDULE if goal.min_schedule else rule
    return _target(supply, goal.min, rule, goal)


def without_load(seen: Observations, goals: Goals, now: float, rule: Rule, why: str) -> Decision:
    """A fleet at zero, or one that starts from there with its minimum."""
    targets = []
    for supply in seen.supply:
        goal = goals.role(supply.role)
        replicas = 0 if rule is Rule.SCALED_TO_ZERO else goal.min
        targets.append(RoleTarget(supply.role, supply.desired, replicas, replicas, rule, why))
    sentences = [_sentence(target, None) for target in targets if target.replicas != target.current]
    return _inactive(tuple(targets), seen, now, rule, "; ".join(sentences) or why)


def held(seen: Observations, goals: Goals, now: float, why: str) -> Decision:
    """Metrics are unavailable (`why`), or not due in this round: only min and max act."""
    targets = []
    for supply in seen.supply:
        goal = goals.role(supply.role)
        replicas, rule = bounded(supply.desired, Rule.METRICS_UNAVAILABLE, goal)
        targets.append(_target(supply, replicas, rule, goal))
    sentences = [_sentence(target, None) for target in targets if target.replicas != target.current]
    if seen.metrics.arrivals != NOT_ASKED:
        sentences.append(f"{MEANING[Rule.METRICS_UNAVAILABLE]} ({why})")
    return _inactive(tuple(targets), seen, now, Rule.METRICS_UNAVAILABLE, "; ".join(sentences))


def _target(supply: RoleSupply, replicas: int, rule: Rule, goal: RoleGoal) -> RoleTarget:
    why = why_bounded(rule, goal, replicas)
    return RoleTarget(supply.role, supply.desired, replicas, replicas, rule, why)


def _inactive(
    targets: tuple[RoleTarget, ...], seen: Observations, now: float, rule: Rule, message: str
) -> Decision:
    return Decision(
        at=now,
        targets=targets,
        rule=rule,
        message=message,
        active=False,
        reachable=True,
        numbers={},
        clock_skew_s=seen.metrics.clock_skew_s,
        scraped_twice=seen.metrics.scraped_twice,
        silent_gateways=seen.metrics.silent_gateways,
    )


def decided(
    targets: tuple[RoleTarget, ...],
    sizes: dict[RoleName, Size],
    demand: Demand,
    work: Work,
    state: ScalingState,
    inputs: Inputs,
) -> Decision:
    """The decision, with numbers and a sentence for every target."""
    seen, metrics = inputs.observations, inputs.metrics
    targets = tuple(
        replace(target, message=_sentence(target, sizes.get(target.role))) for target in targets
    )
    lead = next((target for target in targets if target.replicas != target.current), None)
    lead = lead or next(
        (target for target in targets if target.rule is Rule.SLO_UNREACHABLE), targets[0]
    )
    sentences = [target.message for target in targets]
    if metrics.gateways_alone:
        sentences.append(alone_sentence(metrics.gateways_alone))
    relearning = tuple(role.role for role in state.roles if role.estimate.renewed)
    if relearning:
        sentences.append(relearning_sentence(relearning))
    lack = _lack(targets, inputs)
    return Decision(
        at=inputs.now,
        targets=targets,
        rule=lead.rule,
        message="; ".join(sentences),
        active=True,
        reachable=reachable(sizes, inputs),
        numbers=_numbers(sizes, demand, work, metrics)
        | ({"gpus_missing": float(lack.gpus)} if lack else {})
        | _costs(targets, sizes, demand, work, inputs),
        clock_skew_s=metrics.clock_skew_s,
        scraped_twice=metrics.scraped_twice,
        silent_gateways=metrics.silent_gateways,
        gateways_alone=metrics.gateways_alone,
        relearning=relearning,
        lack=lack,
        unknown=tuple(
            f"{supply.role} {name}"
            for supply in seen.supply
            if supply.ready > 0
            for name in validity.unknown_signals(supply.role, metrics)
        ),
        candidates=tuple(
            candidate
            for target in targets
            if target.role in sizes
            for candidate in _weighed(target, sizes, seen)
        ),
    )


def reachable(sizes: dict[RoleName, Size], inputs: Inputs) -> bool:
    """Whether some number of replicas meets the SLO: by the model, or because it was met.

    What binds the number now, such as a queue or `max`, does not matter. A measured share that
    meets the goal is the truth, whatever the model says of lengths that it knows too little of.
    """
    goal, metrics = inputs.slo.attainment, inputs.metrics
    measured = isinstance(metrics.attainment, Value) and metrics.attainment.value >= goal
    if measured and metrics.scored >= SCORED_ENOUGH:
        return True
    return reach_of(size.model for size in sizes.values()).both >= goal


def _weighed(
    target: RoleTarget, sizes: dict[RoleName, Size], seen: Observations
) -> list[Candidate]:
    """The numbers from the one that was taken to the one that load asks for, and one beyond each.

    Only those next to the two if many lie between.
    """
    size, gpus = sizes[target.role], seen.of(target.role).gpus_per_replica
    ends = sorted((target.replicas, target.demanded))
    near = {end + step for end in ends for step in (-1, 0, 1)}
    between = range(ends[0], ends[1]) if ends[1] - ends[0] <= MOST_BETWEEN else ()
    return [
        Candidate(target.role, n, round(size.model.attainment(n, size.rate), 4), n * gpus)
        for n in sorted({*near, *between})
        if n >= 1
    ]


def budget_in_force(goals: Goals) -> str:
    """Whose GPU budget bounds the fleet, and to how many GPUs."""
    match goals.gpus_of:
        case "object":
            return f"spec.autoscaling.gpuBudget.max is {goals.gpu_budget}"
        case "namespace":
            return f"the GPU budget of the namespace leaves {goals.gpu_cap} GPUs to this fleet"
        case "operator":
            return (
                f"the operator's GPU budget for all fleets leaves {goals.gpu_cap} GPUs to this one"
            )


def _lack(targets: tuple[RoleTarget, ...], inputs: Inputs) -> Lack | None:
    """GPUs that are wanted and not in the budget."""
    seen = inputs.observations
    gpus = sum(t.over_budget * seen.of(t.role).gpus_per_replica for t in targets)
    return Lack(gpus, inputs.goals.gpus_of) if gpus > 0 else None


def alone_sentence(why: str) -> str:
    """For the decision and for the conditions ScalingActive and MetricsAvailable."""
    return (
        f"Prometheus has no usable metrics ({why}): this stands on what the gateways say of their "
        "own load, by which replicas are added and none is removed"
    )


def relearning_sentence(roles: tuple[RoleName, ...]) -> str:
    """For the decision and for the condition ScalingActive."""
    return (
        f"what was learnt about a replica ({', '.join(roles)}) was not usable and is measured "
        "again: until then nothing is removed"
    )


def _sentence(target: RoleTarget, size: Size | None) -> str:
    """`target` with its reason, and with what the load needs if it was sized."""
    move = f"{target.role} {target.current} → {target.replicas}"
    if target.replicas == target.current:
        move = f"{target.role} stays {target.current}"
    load = ""
    if size is not None:
        count = "1 replica" if target.demanded == 1 else f"{target.demanded} replicas"
        load = f"; {count} needed for {size.rate:.3g} requests/s"
        if target.replicas > target.demanded and size.down > size.up:
            load += f", {size.down} for {HYSTERESIS - 1:.0%} more before one is removed"
    return f"{move} ({target.rule}: {target.message}{load})"


def _numbers(
    sizes: dict[RoleName, Size], demand: Demand, work: Work, metrics: FleetMetrics
) -> dict[str, float]:
    """What was used, by name with unit. Without sizes the fleet is idle and brings no work."""
    numbers = {
        "arrivals_per_s": demand.rate,
        "arrivals_error_per_s": demand.error,
        "forecast_per_s": demand.forecast,
        "margin": demand.margin,
        "dispersion": demand.dispersion,
        "bins": float(demand.bins),
    }
    if demand.season is not None:
        numbers["season_per_s"] = demand.season
    longer = {"longer_prompts": demand.longer_prompts, "longer_answers": demand.longer_answers}
    numbers |= {name: factor for name, factor in longer.items() if factor > 1}
    if sizes:
        numbers["prompt_tokens"] = work.prompt
        numbers["cached_share"] = work.cached
        numbers["output_tokens"] = work.output
        numbers["context_tokens"] = work.context
    shares = {
        "attainment": metrics.attainment,
        "ttft_attainment": metrics.ttft_attainment,
        "tpot_attainment": metrics.tpot_attainment,
    }
    numbers.update(
        (name, share.value) for name, share in shares.items() if isinstance(share, Value)
    )
    if sizes:
        reach = reach_of(size.model for size in sizes.values())
        numbers |= {"ttft_reachable": reach.ttft, "tpot_reachable": reach.tpot}
    for role, size in sizes.items():
        numbers[f"{role}_planned_per_s"] = size.rate
        numbers[f"{role}_load_replicas"] = size.model.load(size.rate)
        numbers |= {f"{role}_{name}": number for name, number in _capacity(size).items()}
    return {name: float(f"{number:.6g}") for name, number in numbers.items()}


def _costs(
    targets: tuple[RoleTarget, ...],
    sizes: dict[RoleName, Size],
    demand: Demand,
    work: Work,
    inputs: Inputs,
) -> dict[str, float]:
    """What the decided replicas cost, if all roles' costs are known; without load per hour only."""
    hourly = 0.0
    for target in targets:
        cost = inputs.goals.role(target.role).gpu_cost_per_hour
        if cost is None:
            return {}
        gpus = target.replicas * inputs.observations.of(target.role).gpus_per_replica
        hourly += gpus * cost
    costs = {"cost_per_hour": hourly}
    tokens = demand.rate * work.output if sizes else 0.0
    if tokens > 0:
        costs["cost_per_million_tokens"] = hourly / HOUR_S / tokens * 1e6
    share = inputs.metrics.attainment
    good = demand.rate * share.value if sizes and isinstance(share, Value) else 0.0
    if good > 0:
        costs["cost_per_thousand_good"] = hourly / HOUR_S / good * 1e3
    return {name: float(f"{number:.6g}") for name, number in costs.items()}


def _capacity(size: Size) -> dict[str, float]:
    """What one replica can do, by name with unit."""
    match size.model:
        case PrefillModel() as model:
            return {"service_s": model.mean_s, "backlog_s": size.backlog_s}
        case DecodeModel() as model:
            return {"batch_limit": min(model.batch_limit, 1e6), "step_base_s": model.base_s}
        case ColocatedModel() as model:
            return {
                "service_s": model.prefill.mean_s,
                "batch_limit": min(model.decode.batch_limit, 1e6),
            }
