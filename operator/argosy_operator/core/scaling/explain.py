"""The sentences and numbers of a decision: what people read in status, Events and `explain`.

`decide` brings targets whose `message` is the reason; here each becomes a whole sentence.
"""

from dataclasses import replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import (
    MEANING,
    Candidate,
    Decision,
    RoleTarget,
    Rule,
    meaning_of,
)
from argosy_operator.core.scaling.estimate.demand import Demand
from argosy_operator.core.scaling.goals import Goals, Inputs
from argosy_operator.core.scaling.observe import (
    NOT_ASKED,
    FleetMetrics,
    Observations,
    RoleSupply,
    Value,
)
from argosy_operator.core.scaling.signals import lengths, validity
from argosy_operator.core.scaling.size.colocated import ColocatedModel
from argosy_operator.core.scaling.size.decode import DecodeModel
from argosy_operator.core.scaling.size.prefill import PrefillModel
from argosy_operator.core.scaling.size.sizing import HYSTERESIS, Size
from argosy_operator.core.scaling.size.work import Work
from argosy_operator.core.scaling.state import ScalingState

MOST_BETWEEN = 12
"""Candidates listed between two numbers of replicas: the record must fit into status."""


def at_minimum(seen: Observations, goals: Goals, now: float) -> Decision:
    """No SLO to size by, or a policy that sizes nothing."""
    rule = Rule.POLICY_NONE if goals.policy == "None" else Rule.NO_SLO
    targets = tuple(_target(supply, goals.role(supply.role).min, rule) for supply in seen.supply)
    return _inactive(targets, seen, now, rule, MEANING[rule])


def held(seen: Observations, goals: Goals, now: float, why: str) -> Decision:
    """Metrics are unavailable (`why`), or not due in this round: only min and max act."""
    targets = []
    for supply in seen.supply:
        goal = goals.role(supply.role)
        replicas = min(max(supply.desired, goal.min), goal.max)
        rule = Rule.METRICS_UNAVAILABLE
        if replicas != supply.desired:
            rule = Rule.MIN_REPLICAS if replicas > supply.desired else Rule.MAX_REPLICAS
        targets.append(_target(supply, replicas, rule))
    sentences = [_sentence(target, None) for target in targets if target.replicas != target.current]
    if seen.metrics.arrivals != NOT_ASKED:
        sentences.append(f"{MEANING[Rule.METRICS_UNAVAILABLE]} ({why})")
    return _inactive(tuple(targets), seen, now, Rule.METRICS_UNAVAILABLE, "; ".join(sentences))


def _target(supply: RoleSupply, replicas: int, rule: Rule) -> RoleTarget:
    why = meaning_of(rule, supply.role)
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
        silent_gateways=seen.metrics.silent_gateways,
    )


def decided(
    targets: tuple[RoleTarget, ...],
    sizes: dict[RoleName, Size],
    demand: Demand,
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
    relearning = tuple(role.role for role in state.roles if role.estimate.renewed)
    if relearning:
        sentences.append(relearning_sentence(relearning))
    return Decision(
        at=inputs.now,
        targets=targets,
        rule=lead.rule,
        message="; ".join(sentences),
        active=True,
        reachable=all(size.reachable for size in sizes.values()),
        numbers=_numbers(sizes, demand, lengths.work(state.lengths, metrics), metrics),
        clock_skew_s=metrics.clock_skew_s,
        silent_gateways=metrics.silent_gateways,
        relearning=relearning,
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
    if sizes:
        numbers["prompt_tokens"] = work.prompt
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
    for role, size in sizes.items():
        numbers[f"{role}_planned_per_s"] = size.rate
        numbers[f"{role}_load_replicas"] = size.model.load(size.rate)
        numbers |= {f"{role}_{name}": number for name, number in _capacity(size).items()}
    return {name: float(f"{number:.6g}") for name, number in numbers.items()}


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
