"""Status: what the fleet's conditions say, from one truth table, and its numbers.

`facts_of` turns snapshot, draft and outcomes into named facts; `TABLE` says which fact makes which
condition what (first row of a type that applies wins). The documentation prints the table, a test
walks through it. Numbers are written only when they moved by more than their step, so that a quiet
fleet writes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy_operator.api.conditions import MEANING, Statement, Truth, upsert
from argosy_operator.api.conditions import ConditionType as About
from argosy_operator.api.conditions import Reason as Why
from argosy_operator.api.status import ServingDeploymentStatus
from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.actions import Outcome
from argosy_operator.core.fleet.events import rfc3339
from argosy_operator.core.fleet.snapshot import Snapshot
from argosy_operator.core.reconcile import contests
from argosy_operator.core.reconcile.draft import Draft
from argosy_operator.core.reconcile.failures import is_stuck
from argosy_operator.core.reconcile.targets import by_law, goals_of
from argosy_operator.core.scaling.decision import Decision, Rule
from argosy_operator.core.scaling.explain import again_sentence
from argosy_operator.core.scaling.observe import Idle
from argosy_operator.core.scaling.signals.validity import blindness
from argosy_operator.core.status.numbers import (
    autoscaling_status,
    columns,
    goodput,
    roles_status,
    slo_word,
)
from argosy_operator.core.status.problems import (
    CAPACITY,
    LOAD_FAILURES,
    conflicts_of,
    failed_writes,
    problems_of,
)

SKEWS = (
    (86_400.0, "1 day"),
    (3600.0, "1 hour"),
    (600.0, "10 minutes"),
    (120.0, "2 minutes"),
    (30.0, "30 seconds"),
)
"""Differences of clocks that are named, s; a query's own time-out is well below the last."""


@dataclass(frozen=True, slots=True)
class Row:
    """When all facts `when` hold (`!x`: x does not), `type` is `truth` because of `reason`."""

    type: About
    truth: Truth
    reason: Why
    when: tuple[str, ...] = ()


_BLOCKING = (
    Why.INVALID_SPEC,
    Why.FORBIDDEN,
    Why.DELETING,
    Why.CLAIM_NOT_FOUND,
    Why.IMAGE_PULL_FAILED,
    *(Why(reason) for reason in LOAD_FAILURES),
    Why.CONTAINER_CRASHING,
)

# Why the law is blind: the first word of what the adapter or the law's own check says.
_BLINDNESS: dict[str, Why] = {
    "NoPrometheus": Why.NO_PROMETHEUS,
    "PrometheusNotAllowed": Why.PROMETHEUS_NOT_ALLOWED,
    "PrometheusAway": Why.PROMETHEUS_UNREACHABLE,
    "PrometheusTimeout": Why.PROMETHEUS_UNREACHABLE,
    "NoGatewayTarget": Why.NO_TARGETS,
    "GatewayDown": Why.NO_TARGETS,
    "GatewaySilent": Why.GATEWAY_SILENT,
    "NoTargets": Why.NO_TARGETS,
    "Stale": Why.STALE,
    "NotANumber": Why.NOT_A_NUMBER,
}
_UNSEEING = tuple(dict.fromkeys(_BLINDNESS.values()))

TABLE: tuple[Row, ...] = (
    # Ready: does the fleet answer requests?
    Row(About.READY, "True", Why.NO_PREFILL, ("alone", "gateway", "!foreign_service")),
    *(Row(About.READY, "False", r, (r, "!servable")) for r in (*_BLOCKING, *CAPACITY)),
    Row(About.READY, "True", Why.PARKED, ("parked",)),
    Row(About.READY, "False", Why.FOREIGN_OBJECT, ("foreign", "!servable")),
    Row(About.READY, "False", Why.FOREIGN_OBJECT, ("foreign_service",)),
    Row(About.READY, "False", Why.WRITE_FAILED, ("unbuilt", "!servable")),
    Row(About.READY, "False", Why.STARTING, ("!servable", "!served")),
    Row(About.READY, "False", Why.PODS_NOT_READY, ("!servable",)),
    Row(About.READY, "False", Why.GATEWAY_NOT_READY, ("!gateway",)),
    Row(About.READY, "True", Why.AS_SPECIFIED),
    # Servable: one complete pair, or one colocated pod, of one revision
    Row(About.SERVABLE, "True", Why.AS_SPECIFIED, ("servable",)),
    Row(About.SERVABLE, "False", Why.PARKED, ("parked",)),
    Row(About.SERVABLE, "False", Why.NO_PREFILL, ("disaggregated", "decode")),
    Row(About.SERVABLE, "False", Why.NO_DECODE, ("disaggregated", "prefill")),
    Row(About.SERVABLE, "False", Why.NO_PODS),
    # Reconciling (kstatus): on the way; never beside Stalled=True
    Row(About.RECONCILING, "False", Why.PAUSED, ("paused",)),
    *(Row(About.RECONCILING, "False", r, (r,)) for r in (*_BLOCKING, *CAPACITY)),
    Row(About.RECONCILING, "False", Why.FOREIGN_OBJECT, ("foreign",)),
    Row(About.RECONCILING, "False", Why.WRITE_FAILED, ("stuck",)),
    Row(About.RECONCILING, "True", Why.WRITE_FAILED, ("unwritten",)),
    Row(About.RECONCILING, "True", Why.ROLLING_OUT, ("rolling",)),
    Row(About.RECONCILING, "True", Why.SCALING, ("leaving",)),
    Row(About.RECONCILING, "True", Why.STARTING, ("pending",)),
    Row(About.RECONCILING, "True", Why.GATEWAY_NOT_READY, ("!gateway",)),
    Row(About.RECONCILING, "False", Why.AS_SPECIFIED),
    # Stalled (kstatus): a person must act
    *(Row(About.STALLED, "True", r, (r,)) for r in (*_BLOCKING, *CAPACITY)),
    Row(About.STALLED, "True", Why.FOREIGN_OBJECT, ("foreign",)),
    Row(About.STALLED, "True", Why.WRITE_FAILED, ("stuck",)),
    Row(About.STALLED, "False", Why.NOT_STALLED),
    # Progressing: pods are being added, replaced or removed
    Row(About.PROGRESSING, "False", Why.PAUSED, ("paused",)),
    Row(About.PROGRESSING, "True", Why.ROLLING_OUT, ("rolling",)),
    Row(About.PROGRESSING, "True", Why.SCALING, ("leaving",)),
    Row(About.PROGRESSING, "True", Why.STARTING, ("pending",)),
    Row(About.PROGRESSING, "False", Why.AS_SPECIFIED),
    # SLOMet: what users got
    Row(About.SLO_MET, "Unknown", Why.NO_SLO, ("!slo",)),
    Row(About.SLO_MET, "Unknown", Why.EXTERNAL_OWNER, ("external",)),
    Row(About.SLO_MET, "Unknown", Why.POLICY_NONE, ("policy_none",)),
    Row(About.SLO_MET, "Unknown", Why.METRICS_UNAVAILABLE, ("blind",)),
    Row(About.SLO_MET, "Unknown", Why.NO_TRAFFIC, ("!scored",)),
    Row(About.SLO_MET, "True", Why.TARGETS_MET, ("met",)),
    Row(About.SLO_MET, "False", Why.TARGETS_MISSED),
    # SLOFeasible: could it be met at all?
    Row(About.SLO_FEASIBLE, "Unknown", Why.NO_SLO, ("!slo",)),
    Row(About.SLO_FEASIBLE, "Unknown", Why.EXTERNAL_OWNER, ("external",)),
    Row(About.SLO_FEASIBLE, "Unknown", Why.POLICY_NONE, ("policy_none",)),
    Row(About.SLO_FEASIBLE, "Unknown", Why.METRICS_UNAVAILABLE, ("blind",)),
    Row(About.SLO_FEASIBLE, "Unknown", Why.NO_TRAFFIC, ("!sized",)),
    Row(About.SLO_FEASIBLE, "Unknown", Why.NO_TRAFFIC, ("!scored",)),  # as SLOMet: in one write
    Row(About.SLO_FEASIBLE, "False", Why.TTFT_FLOOR_ABOVE_TARGET, ("ttft_floor",)),
    Row(About.SLO_FEASIBLE, "False", Why.TPOT_FLOOR_ABOVE_TARGET, ("tpot_floor",)),
    Row(About.SLO_FEASIBLE, "False", Why.BUDGET_BOUND, ("budget",)),
    Row(About.SLO_FEASIBLE, "False", Why.MAX_REPLICAS_BOUND, ("most",)),
    Row(About.SLO_FEASIBLE, "True", Why.WITHIN_REACH),
    # ScalingActive: who turns the replicas
    Row(About.SCALING_ACTIVE, "False", Why.PAUSED, ("paused",)),
    Row(About.SCALING_ACTIVE, "False", Why.EXTERNAL_OWNER, ("external",)),
    Row(About.SCALING_ACTIVE, "False", Why.POLICY_NONE, ("policy_none",)),
    Row(About.SCALING_ACTIVE, "False", Why.NO_SLO, ("!slo",)),
    Row(About.SCALING_ACTIVE, "False", Why.ROLLING_OUT, ("rolling",)),
    Row(About.SCALING_ACTIVE, "False", Why.METRICS_UNAVAILABLE, ("blind",)),
    Row(About.SCALING_ACTIVE, "True", Why.CAPACITY_RELEARNT, ("relearning",)),
    Row(About.SCALING_ACTIVE, "True", Why.SIGNALS_UNKNOWN, ("unknown",)),
    Row(About.SCALING_ACTIVE, "True", Why.FOLLOWING_GOODPUT),
    # MetricsAvailable: only asked for under policy Goodput with an SLO
    Row(About.METRICS_AVAILABLE, "Unknown", Why.EXTERNAL_OWNER, ("external",)),
    Row(About.METRICS_AVAILABLE, "Unknown", Why.POLICY_NONE, ("policy_none",)),
    Row(About.METRICS_AVAILABLE, "Unknown", Why.NO_SLO, ("!law",)),
    Row(About.METRICS_AVAILABLE, "Unknown", Why.UNKNOWN, ("!asked",)),
    *(Row(About.METRICS_AVAILABLE, "False", r, ("blind", r)) for r in _UNSEEING),
    Row(About.METRICS_AVAILABLE, "False", Why.METRICS_UNAVAILABLE, ("blind",)),
    Row(About.METRICS_AVAILABLE, "False", Why.GATEWAY_SILENT, ("silent",)),
    Row(About.METRICS_AVAILABLE, "True", Why.IDLE, ("idle",)),
    Row(About.METRICS_AVAILABLE, "True", Why.MEASURED),
    # CapacityLimited: pods or GPUs that are wanted and cannot be had
    *(Row(About.CAPACITY_LIMITED, "True", r, (r,)) for r in CAPACITY),
    Row(About.CAPACITY_LIMITED, "True", Why.GPU_BUDGET, ("budget",)),
    Row(About.CAPACITY_LIMITED, "Unknown", Why.UNREADABLE_NUMBER, (Why.UNREADABLE_NUMBER,)),
    Row(About.CAPACITY_LIMITED, "False", Why.ENOUGH),
    # Draining, NameConflict, FieldConflict
    Row(About.DRAINING, "True", Why.PODS_LEAVING, ("leaving",)),
    Row(About.DRAINING, "False", Why.NOTHING_LEAVES),
    Row(About.NAME_CONFLICT, "True", Why.FOREIGN_OBJECT, ("foreign",)),
    Row(About.NAME_CONFLICT, "False", Why.NO_CONFLICT),
    Row(About.FIELD_CONFLICT, "True", Why.PUT_BACK_AGAIN, ("contested",)),
    Row(About.FIELD_CONFLICT, "False", Why.NO_CONTEST),
)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that hold, by name, and the sentence that goes with a reason."""

    hold: frozenset[str]
    says: Mapping[Why, str] = field(default_factory=dict)


def statements(facts: Facts) -> list[Statement]:
    """One statement per condition type: the first row of the table whose facts hold."""
    said: dict[About, Statement] = {}
    for row in TABLE:
        if row.type not in said and _applies(row, facts.hold):
            message = facts.says.get(row.reason) or MEANING[row.reason]
            said[row.type] = Statement(row.type, row.truth, row.reason, message)
    return list(said.values())


def _applies(row: Row, hold: frozenset[str]) -> bool:
    return all((w[1:] not in hold) if w.startswith("!") else (w in hold) for w in row.when)


def facts_of(s: Snapshot, d: Draft, outcomes: tuple[Outcome, ...]) -> Facts:
    """What holds now. Says nothing about what it follows from; that is the table's part."""
    spec, roles = s.fleet.spec, [name for name, _ in s.fleet.spec.active_roles()]
    serving = {(pod.role, pod.revision) for pod in s.pods if pod.serving}
    short: dict[str, int] = {role: _short(s, d, role) for role in roles}
    problems = problems_of(s, d.memory.failed)
    unwritten = failed_writes(d.memory.failed)
    conflicts = conflicts_of(d, outcomes)
    decision = _decision(s, d)
    learnt = _of_decision(decision)
    blind = learnt["blind"]
    figures = goodput(s, due=d.figures_due)
    attained = (figures or {}).get("attainment")
    word = slo_word(s, figures, blind)
    decode, whole = any(role == "decode" for role, _ in serving), _whole(serving)
    served = _served(s)
    hold: dict[str, bool] = {
        "paused": spec.paused,
        "parked": all(d.targets.get(role, spec.role(role).replicas.max) == 0 for role in roles),
        "servable": whole,
        "served": served,
        "prefill": any(role == "prefill" for role, _ in serving),
        "decode": decode,
        "alone": served and decode and spec.mode == "disaggregated" and not whole,
        "disaggregated": spec.mode == "disaggregated",
        "gateway": any(pod.serving and pod.role == names.GATEWAY_ROLE for pod in s.pods),
        "foreign": bool(conflicts),
        "foreign_service": f"Service/{s.fleet.name}" in conflicts,
        "unwritten": bool(unwritten),
        "unbuilt": any(failure.builds for failure in unwritten),
        "stuck": any(is_stuck(failure, s.monotonic) for failure in unwritten),
        "contested": bool(contests.shown(d.memory.contests)),
        "rolling": d.rolling,
        "leaving": bool(d.leaving),
        "pending": any(short.values()),
        "slo": spec.slo is not None,
        "law": by_law(spec),
        "idle": _idle(s),
        "scored": word in ("Met", "Missed", "AtRisk"),
        "met": word in ("Met", "AtRisk"),
        "external": spec.autoscaling.policy == "External",
        "policy_none": spec.autoscaling.policy == "None",
    }
    hold |= learnt
    says = {problem.reason: problem.message for problem in problems}
    says |= _sentences(s, d, conflicts, short, attained)
    if blind and (unseeing := _unseeing(s)) is not None:
        says[unseeing] = says[Why.METRICS_UNAVAILABLE]
        hold[unseeing] = True
    names_that_hold = {str(name) for name, holds in hold.items() if holds}
    return Facts(frozenset(names_that_hold | {str(p.reason) for p in problems}), says)


def _whole(serving: set[tuple[str, str]]) -> bool:
    """Is there a colocated pod, or a pair of one revision, among (role, revision)?"""
    return any(
        ("colocated", revision) in serving
        or {("prefill", revision), ("decode", revision)} <= serving
        for _, revision in serving
    )


def _sentences(
    s: Snapshot,
    d: Draft,
    conflicts: tuple[str, ...],
    short: Mapping[str, int],
    attained: str | None,
) -> dict[Why, str]:
    missing = ", ".join(f"{n} {role}" for role, n in short.items() if n)
    policy, decision = s.fleet.spec.autoscaling.policy, _decision(s, d)
    says = {
        Why.FOREIGN_OBJECT: f"{', '.join(conflicts)}: there already, and somebody else's; left "
        "untouched. Delete what is in the way, or rename the fleet",
        Why.PUT_BACK_AGAIN: f"{'; '.join(contests.shown(d.memory.contests))}: again and again, and "
        "Argosy puts it back more and more slowly. Stop the other side, or change the "
        "ServingDeployment",
        Why.PODS_LEAVING: "pods finish their answers and then leave: "
        + ", ".join(sorted(pod.name for pod in d.leaving)),
        Why.PAUSED: "spec.paused is true: nothing is written but status",
        Why.NO_SLO: "spec.slo is not set"
        + (": replicas stay at their minimum" if policy != "External" else ""),
        Why.EXTERNAL_OWNER: "replicas follow the ServingRoles, which others turn",
        Why.POLICY_NONE: "spec.autoscaling.policy is None: replicas stay at their minimum",
        Why.ROLLING_OUT: f"revision {s.revision} comes up; older pods leave when it serves",
        Why.GATEWAY_NOT_READY: "no gateway pod is ready",
        **dict.fromkeys(
            (Why.GPU_BUDGET, Why.BUDGET_BOUND),
            "more replicas are needed than spec.autoscaling.gpuBudget.max allows",
        ),
        Why.MAX_REPLICAS_BOUND: "more replicas are needed than the roles' replicas.max allows",
        Why.TTFT_FLOOR_ABOVE_TARGET: "a prompt alone takes longer than spec.slo.ttft.target: the "
        "replicas carry the load, and more would not help. Raise the target, or serve on faster "
        "GPUs",
        Why.TPOT_FLOOR_ABOVE_TARGET: "a lone answer takes longer per token than "
        "spec.slo.tpot.target: the replicas carry the load, and more would not help. Raise the "
        "target, or serve on faster GPUs",
    }
    if missing:
        says[Why.STARTING] = f"waiting for pods to become ready: {missing}"
        says[Why.PODS_NOT_READY] = says[Why.STARTING]
    if decision is not None:
        says |= _sentences_of_law(decision)
    if attained is not None and s.fleet.spec.slo is not None:
        goal = s.fleet.spec.slo.attainment
        says[Why.TARGETS_MET] = says[Why.TARGETS_MISSED] = f"{attained} of requests, goal {goal}"
    return {reason: text for reason, text in says.items() if text}


def _sentences_of_law(decision: Decision) -> dict[Why, str]:
    """What the law's last decision lets the conditions say."""
    says: dict[Why, str] = {}
    if decision.relearning:
        says[Why.CAPACITY_RELEARNT] = again_sentence(decision.relearning)
    if _is_blind(decision):
        says[Why.METRICS_UNAVAILABLE] = decision.message
    if decision.unknown:
        says[Why.SIGNALS_UNKNOWN] = (
            f"Prometheus has no samples of {', '.join(decision.unknown)}: replicas are added as "
            "before, and none is removed from these roles"
        )
    if decision.silent_gateways:
        silent = ", ".join(decision.silent_gateways)
        says[Why.GATEWAY_SILENT] = (
            f"gateway pods are Ready and Prometheus has no fresh samples of them: {silent}; no "
            "replica is removed until it has. Check that Prometheus reaches port 8081 of each and "
            "that its relabelling sets the label pod"
        )
    if clock := _clock_sentence(decision.clock_skew_s):
        says[Why.MEASURED] = says[Why.IDLE] = clock
        if Why.METRICS_UNAVAILABLE in says:
            says[Why.METRICS_UNAVAILABLE] += f"; {clock}"
    return says


def _decision(s: Snapshot, d: Draft) -> Decision | None:
    """What the law said last; nothing where it no longer turns the fleet."""
    return d.memory.decision if by_law(s.fleet.spec) else None


def _is_blind(decision: Decision | None) -> bool:
    """The law did not run for want of metrics; a role that is kept for its silent pods is less."""
    return decision is not None and not decision.active and decision.rule is Rule.BLIND


def _of_decision(decision: Decision | None) -> dict[str, bool]:
    """Facts of the law's last word."""
    if decision is None:
        return dict.fromkeys(
            ("asked", "blind", "silent", "budget", "sized", "most", "relearning", "unknown"), False
        )
    rules, numbers = {t.rule for t in decision.targets}, decision.numbers
    slow = any(n < 1 for name, n in numbers.items() if name.endswith("_batch_limit"))
    return {
        "asked": True,
        "blind": _is_blind(decision),
        "silent": bool(decision.silent_gateways),
        "budget": Rule.BUDGET in rules,
        "most": Rule.MAX in rules,
        "relearning": bool(decision.relearning),
        "unknown": bool(decision.unknown),
        "sized": any(name.endswith("_planned_per_s") for name in numbers),
        "ttft_floor": not decision.reachable and not slow,
        "tpot_floor": not decision.reachable and slow,
    }


def _short(s: Snapshot, d: Draft, role: Any) -> int:
    serving = sum(pod.serving for pod in s.current(role))
    return max(0, d.targets.get(role, 0) - serving)


def _idle(s: Snapshot) -> bool:
    """Measured at the law's last tick; rounds between ticks ask nothing and repeat what stood."""
    if s.metrics is None:
        said = (c.reason for c in s.fleet.status.conditions if c.type == About.METRICS_AVAILABLE)
        return Why.IDLE in said
    return isinstance(s.metrics.arrivals, Idle)


def _unseeing(s: Snapshot) -> Why | None:
    """Why nothing is known, at the law's last tick; None where that has no word of its own."""
    if s.metrics is None:
        said = (c.reason for c in s.fleet.status.conditions if c.type == About.METRICS_AVAILABLE)
        return next((Why(reason) for reason in said if reason in _UNSEEING), None)
    why = blindness(s.metrics, goals_of(s.fleet.spec).windows) or ""
    return _BLINDNESS.get(why.partition(":")[0])


def _clock_sentence(skew_s: float) -> str:
    """Names clocks that differ, in steps so coarse that a lasting skew writes no status."""
    least = next((words for limit_s, words in SKEWS if abs(skew_s) > limit_s), None)
    if least is None:
        return ""
    way = "ahead of" if skew_s > 0 else "behind"
    return (
        f"the operator's clock is more than {least} {way} Prometheus' clock, which is the one that "
        "decisions use: set both by NTP"
    )


def _served(s: Snapshot) -> bool:
    """The fleet answered requests before this round."""
    stood = (Why.PODS_NOT_READY, Why.NO_PREFILL)
    return _was(s, "Servable", "True") or any(_was(s, "Ready", reason) for reason in stood)


def _was(s: Snapshot, type_: str, word: str) -> bool:
    """Did the condition stand with this status or for this reason?"""
    return any(c.type == type_ and word in (c.status, c.reason) for c in s.fleet.status.conditions)


def status_of(s: Snapshot, d: Draft, outcomes: tuple[Outcome, ...]) -> ServingDeploymentStatus:
    """The status that shall stand; equal to the old one when nothing changed."""
    facts = facts_of(s, d, outcomes)
    old = [c.model_dump(mode="json", by_alias=True) for c in s.fleet.status.conditions]
    generation = s.fleet.metadata.generation
    said = upsert(old, statements(facts), generation=generation, now=rfc3339(s.now))
    roles = roles_status(s, d)
    measured = goodput(s, due=d.figures_due)
    blind = "blind" in facts.hold
    ready = next(c["reason"] for c in said if c["type"] == "Ready")
    reason = next(
        (c["reason"] for c in said if c["type"] == "Stalled" and c["status"] == "True"),
        Why.PAUSED if s.fleet.spec.paused else ready,
    )
    return ServingDeploymentStatus.model_validate(
        {
            "observedGeneration": generation,
            # a Service of another owner has this address: status does not lead users there
            "url": None
            if "foreign_service" in facts.hold
            else names.url(s.fleet.name, s.fleet.namespace),
            "mode": s.fleet.spec.mode,
            "conditions": said,
            "roles": roles,
            "goodput": measured,
            "autoscaling": autoscaling_status(s, d),
            "columns": columns(roles, slo_word(s, measured, blind), reason),
        }
    )


def refused(
    generation: int, old: list[dict[str, Any]], message: str, now: float
) -> list[dict[str, Any]]:
    """Conditions of an object that this operator cannot read (made by a newer one, or before a
    rule was added)."""
    facts = Facts(frozenset({str(Why.INVALID_SPEC)}), {Why.INVALID_SPEC: message[:1000]})
    wanted = (About.READY, About.RECONCILING, About.STALLED)
    said = [statement for statement in statements(facts) if statement.type in wanted]
    return upsert(old, said, generation=generation, now=rfc3339(now))
