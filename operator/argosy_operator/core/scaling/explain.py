"""The words and numbers of a decision: what people read in status, Events and `explain`."""

from dataclasses import replace

from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.scaling.decision import (
    MEANING,
    Candidate,
    Decision,
    RoleTarget,
    Rule,
)
from argosy_operator.core.scaling.estimate.demand import Demand
from argosy_operator.core.scaling.goals import Goals
from argosy_operator.core.scaling.observe import NOT_ASKED, Observations, RoleSupply, Value
from argosy_operator.core.scaling.signals import validity
from argosy_operator.core.scaling.size.formulas import (
    ColocatedModel,
    DecodeModel,
    PrefillModel,
    Work,
)
from argosy_operator.core.scaling.size.sizing import Size
from argosy_operator.core.scaling.state import ScalingState

MOST_BETWEEN = 12


def at_minimum(seen: Observations, goals: Goals, now: float) -> Decision:
    """No SLO to size by, or a policy that sizes nothing."""
    rule = Rule.POLICY_NONE if goals.policy == "None" else Rule.NO_SLO
    targets = tuple(_target(s, goals.role(s.role).min, rule) for s in seen.supply)
    return _inactive(targets, seen, now, rule, MEANING[rule])


def held(seen: Observations, goals: Goals, now: float, why: str) -> Decision:
    """Unknown, or not asked in this round: what is there stays; only the user's own limits act."""
    targets = []
    for supply in seen.supply:
        goal = goals.role(supply.role)
        replicas = min(max(supply.desired, goal.min), goal.max)
        rule = Rule.METRICS_UNAVAILABLE
        if replicas != supply.desired:
            rule = Rule.MIN_REPLICAS if replicas > supply.desired else Rule.MAX_REPLICAS
        targets.append(_target(supply, replicas, rule))
    said = [_sentence(t, None, seen) for t in targets if t.replicas != t.current]
    if seen.metrics.arrivals != NOT_ASKED:
        said.append(f"{MEANING[Rule.METRICS_UNAVAILABLE]} ({why})")
    return _inactive(tuple(targets), seen, now, Rule.METRICS_UNAVAILABLE, "; ".join(said))


def _target(supply: RoleSupply, replicas: int, rule: Rule) -> RoleTarget:
    return RoleTarget(supply.role, supply.desired, replicas, replicas, rule, MEANING[rule])


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
    coming: Demand,
    work: Work | None,
    seen: Observations,
    now: float,
) -> Decision:
    """Put numbers and a sentence to every target."""
    told = tuple(replace(t, message=_sentence(t, sizes.get(t.role), seen)) for t in targets)
    lead = next((t for t in told if t.replicas != t.current), None)
    lead = lead or next((t for t in told if t.rule is Rule.SLO_UNREACHABLE), told[0])
    gpus = {s.role: s.gpus_per_replica for s in seen.supply}
    return Decision(
        at=now,
        targets=told,
        rule=lead.rule,
        message="; ".join(t.message for t in told),
        active=True,
        reachable=all(s.reachable for s in sizes.values()),
        numbers=_numbers(sizes, coming, work, seen),
        clock_skew_s=seen.metrics.clock_skew_s,
        silent_gateways=seen.metrics.silent_gateways,
        unknown=tuple(
            f"{s.role} {name}"
            for s in seen.supply
            if s.ready > 0
            for name in validity.unknown_signals(s.role, seen.metrics)
        ),
        candidates=tuple(
            Candidate(
                t.role,
                n,
                round(sizes[t.role].model.attainment(n, sizes[t.role].rate), 4),
                n * gpus[t.role],
            )
            for t in told
            if t.role in sizes
            for n in _weighed(t)
        ),
    )


def _weighed(target: RoleTarget) -> list[int]:
    """Numbers from the one that was taken to the one that load asks for, and one more at each end;
    only those next to the two where many lie between: the record goes into status."""
    ends = sorted((target.replicas, target.demanded))
    near = {n + d for n in ends for d in (-1, 0, 1)}
    between = range(ends[0], ends[1]) if ends[1] - ends[0] <= MOST_BETWEEN else ()
    return sorted(n for n in {*near, *between} if n >= 1)


def relearning(decision: Decision, state: ScalingState) -> Decision:
    """The decision, which also says what is measured again because it was not usable."""
    again = tuple(r.role for r in state.roles if r.estimate.renewed)
    if not again:
        return decision
    said = f"{decision.message}; {again_sentence(again)}"
    return replace(decision, message=said, relearning=again)


def again_sentence(roles: tuple[RoleName, ...]) -> str:
    """For the decision and for the condition ScalingActive."""
    return (
        f"what was learnt about a replica ({', '.join(roles)}) was not usable and is measured "
        "again: until then nothing is removed"
    )


def _sentence(target: RoleTarget, got: Size | None, seen: Observations) -> str:
    move = f"{target.role} {target.current} → {target.replicas}"
    if target.replicas == target.current:
        move = f"{target.role} stays {target.current}"
    load = ""
    if target.rule is Rule.METRICS_UNAVAILABLE and (
        unknown := validity.unknown_signals(target.role, seen.metrics)
    ):
        load = f", unknown: {', '.join(unknown)}"
    if got is not None:
        load += f", {got.rate:.3g} requests/s planned need {target.demanded} replicas"
    return f"{move} ({target.rule}: {MEANING[target.rule]}{load})"


def _numbers(
    sizes: dict[RoleName, Size], coming: Demand, work: Work | None, seen: Observations
) -> dict[str, float]:
    numbers = {
        "arrivals_per_s": coming.rate,
        "arrivals_error_per_s": coming.error,
        "forecast_per_s": coming.forecast,
        "margin": coming.margin,
        "dispersion": coming.dispersion,
        "bins": float(coming.bins),
    }
    if work is not None:
        numbers["prompt_tokens"] = work.prompt
        numbers["output_tokens"] = work.output
    metrics = seen.metrics
    shares = {
        "attainment": metrics.attainment,
        "ttft_attainment": metrics.ttft_attainment,
        "tpot_attainment": metrics.tpot_attainment,
    }
    numbers.update((k, s.value) for k, s in shares.items() if isinstance(s, Value))
    for role, got in sizes.items():
        numbers[f"{role}_planned_per_s"] = got.rate
        numbers[f"{role}_load_replicas"] = got.model.load(got.rate)
        numbers |= {f"{role}_{k}": v for k, v in _capacity(got).items()}
    return {k: float(f"{v:.6g}") for k, v in numbers.items()}


def _capacity(got: Size) -> dict[str, float]:
    match got.model:
        case PrefillModel() as model:
            return {"service_s": model.mean_s, "backlog_s": got.backlog_s}
        case DecodeModel() as model:
            return {"batch_limit": min(model.batch_limit, 1e6), "step_base_s": model.base_s}
        case ColocatedModel() as model:
            return {
                "service_s": model.prefill.mean_s,
                "batch_limit": min(model.decode.batch_limit, 1e6),
            }
