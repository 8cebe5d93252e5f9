"""Every row of the truth table can come about, and every fact it asks for can hold."""

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from argosy_operator.api.conditions import ConditionType, Reason
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet.actions import Apply, Create, ErrorKind, Outcome
from argosy_operator.core.fleet.memory import FieldConflict
from argosy_operator.core.fleet.pods import Pod
from argosy_operator.core.plan import conclude, plan
from argosy_operator.core.reconcile.failures import STUCK_S
from argosy_operator.core.reconcile.field_conflicts import FREE
from argosy_operator.core.scaling.decision import Decision, RoleTarget, Rule
from argosy_operator.core.scaling.observe import FleetMetrics, Idle, Value, unknown_metrics
from argosy_operator.core.status.facts import facts_of
from argosy_operator.core.status.findings import Findings
from argosy_operator.core.status.problems import LOAD_FAILURES
from argosy_operator.core.status.table import TABLE, ConditionRow, Fact, Facts, conditions_of
from tests.support.model import Model, converged, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
NONE = {"replicas": {"min": 0, "max": 0}}
THING = {"kind": "Service", "metadata": {"name": "chat"}}


def ruling_out(row: ConditionRow, others: Iterable[ConditionRow]) -> Facts:
    """The row's own facts, and those that keep the rows before it from applying."""
    hold = set(row.when)
    for other in others:
        if other.applies(frozenset(hold)):
            hold |= set(other.unless) - set(row.unless)
    return frozenset(hold)


ROWS = [(type_, row) for type_, rows in TABLE.items() for row in rows]


@pytest.mark.parametrize(
    ("type_", "row"), ROWS, ids=[f"{type_}-{row.status}-{row.reason}" for type_, row in ROWS]
)
def test_every_row_can_be_the_one_that_applies(type_: ConditionType, row: ConditionRow) -> None:
    before = TABLE[type_][: TABLE[type_].index(row)]
    (said,) = (c for c in conditions_of(ruling_out(row, before), {}) if c.type == type_)
    assert (said.status, said.reason) == (row.status, row.reason)


def test_every_type_has_rows_and_only_the_last_always_applies() -> None:
    assert set(TABLE) == set(ConditionType)
    for rows in TABLE.values():
        assert [row.when == row.unless == () for row in rows] == [False] * (len(rows) - 1) + [True]


def facts(model: Model, *errors: ErrorKind, pod: Pod | None = None, **draft: object) -> Facts:
    """What holds for the model in this moment; `pod` replaces its engine's pods."""
    s = model.snapshot()
    if pod is not None:
        s = replace(s, pods=(pod,))
    outcomes = tuple(Outcome(Create(THING), error, "as it says") for error in errors)
    d = replace(conclude(s, plan(s), outcomes).draft, **draft)  # type: ignore[arg-type]
    return facts_of(Findings.of(s, d, outcomes))


def sick(**looks: object) -> Pod:
    return replace(
        Pod("chat-1", "u1", "colocated", "r", ready=False, restarts=2),
        **looks,  # type: ignore[arg-type]
    )


def measured(**signals: object) -> FleetMetrics:
    return replace(FleetMetrics(at=1e6, arrivals=Value(5.0, 1e6)), **signals)  # type: ignore[arg-type]


def lawful(metrics: FleetMetrics) -> Facts:
    model = converged(slo=SLO)
    model.metrics = replace(metrics, at=model.now)
    model.memory = replace(model.memory, decide_at=0.0)
    return facts(model)


def bound_by_budget() -> Facts:
    return decided(Rule.GPU_BUDGET)


def decided(
    rule: Rule,
    *,
    reachable: bool = True,
    relearning: tuple[RoleName, ...] = (),
    unknown: tuple[str, ...] = (),
    **numbers: float,
) -> Facts:
    """The law's last word was this rule, with these numbers."""
    target = RoleTarget("colocated", 1, 1, 2, rule, "")
    known = {"colocated_planned_per_s": 1.0, "colocated_batch_limit": 9.0} | numbers
    decision = Decision(0.0, (target,), rule, "", True, reachable, known, relearning=relearning)
    decision = replace(decision, unknown=unknown)
    model = converged(slo=SLO)
    model.memory = replace(model.memory, decision=decision, decide_at=1e12)
    return facts(model)


def foreign() -> Facts:
    model = Model(fleet())
    model.children["Service", "chat"] = {**THING, "metadata": {"name": "chat", "uid": "x"}}
    return facts(model)


def failing(kind: str, for_s: float = 0.0) -> Facts:
    """The first action for an object of this kind has failed for so long."""
    model = Model(fleet())
    actions = (a for a in model.round().actions if isinstance(a, Create | Apply))
    action = next(a for a in actions if a.obj["kind"] == kind)
    del model.children[kind, action.obj["metadata"]["name"]]
    outcome = Outcome(action, ErrorKind.FAILED, "a webhook fails")
    model.memory = conclude(model.snapshot(), plan(model.snapshot()), (outcome,)).memory
    model.now += for_s
    return facts(model)


def contested() -> Facts:
    model = converged()
    told = FieldConflict("alice changed spec.ports of Service chat", FREE, model.now, model.now)
    model.memory = replace(model.memory, field_conflicts={"Apply Service/chat": told})
    return facts(model)


def edited(**spec: object) -> Facts:
    model = converged()
    model.edit(**spec)
    return facts(model)


def fewer() -> Facts:
    model = converged(roles={"colocated": {"replicas": {"min": 2, "max": 2}}})
    model.edit(roles={"colocated": {"replicas": {"min": 1, "max": 2}}})
    model.round()  # asks the engines how busy they are
    return facts(model)


def engine_said(reason: str) -> Facts:
    text = json.dumps({"reason": reason, "message": "why"})
    return facts(Model(fleet()), pod=sick(terminated=("Error", text)))


def split() -> Facts:
    return facts(converged(mode="disaggregated"))


def alone() -> Facts:
    """The prefill pods of a fleet that served are gone; its decode pods are not."""
    model = converged(mode="disaggregated")
    model.pods = {
        u: replace(p, ready=False) if p.role == "prefill" else p for u, p in model.pods.items()
    }
    return facts(model)


WORLDS = {
    Fact.SERVABLE: lambda: facts(converged()),
    Fact.WAS_SERVING: lambda: facts(converged()),
    Fact.GATEWAY_READY: lambda: facts(converged()),
    Fact.PODS_MISSING: lambda: facts(Model(fleet())),
    Fact.ZERO_REPLICAS: lambda: facts(Model(fleet(roles={"colocated": NONE}))),
    Fact.PAUSED: lambda: edited(paused=True),
    Fact.WRITE_FAILS: lambda: facts(Model(fleet()), ErrorKind.FAILED),
    Fact.DEPLOYMENT_WRITE_FAILS: lambda: failing("Deployment"),
    Fact.WRITE_STUCK: lambda: failing("PodDisruptionBudget", for_s=STUCK_S),
    Fact.FIELD_CONTESTED: contested,
    Fact.ROLLING_OUT: lambda: edited(engine={"image": "engine:2"}),
    Fact.PODS_LEAVING: fewer,
    Fact.NAME_TAKEN: foreign,
    Fact.SERVICE_NAME_TAKEN: foreign,
    Fact.DISAGGREGATED: split,
    Fact.DECODE_ALONE: alone,
    Fact.PREFILL_SERVES: split,
    Fact.DECODE_SERVES: split,
    Fact.POLICY_EXTERNAL: lambda: facts(Model(fleet(autoscaling={"policy": "External"}))),
    Fact.POLICY_NONE: lambda: facts(Model(fleet(autoscaling={"policy": "None"}))),
    Fact.SLO_SET: lambda: lawful(measured()),
    Fact.GOODPUT_SCALED: lambda: lawful(measured()),
    Fact.DECIDED: lambda: lawful(measured()),
    Fact.ATTAINMENT_KNOWN: lambda: lawful(measured(attainment=Value(0.5, 1e6))),
    Fact.GOAL_MET: lambda: lawful(measured(attainment=Value(0.99, 1e6))),
    Fact.NO_REQUESTS: lambda: lawful(measured(arrivals=Idle(1e6))),
    Fact.METRICS_UNAVAILABLE: lambda: lawful(unknown_metrics(1e6, "FirstSample: one is no rate")),
    Reason.NO_PROMETHEUS: lambda: lawful(unknown_metrics(1e6, "NoPrometheus: set it")),
    Reason.PROMETHEUS_NOT_ALLOWED: lambda: lawful(unknown_metrics(1e6, "PrometheusNotAllowed: x")),
    Reason.PROMETHEUS_UNREACHABLE: lambda: lawful(unknown_metrics(1e6, "PrometheusTimeout: 2 s")),
    Reason.NO_TARGETS: lambda: lawful(unknown_metrics(1e6, "GatewayDown: none answers")),
    Fact.GATEWAY_SILENT: lambda: lawful(measured(silent_gateways=("gateway-b",))),
    Reason.GATEWAY_SILENT: lambda: lawful(unknown_metrics(1e6, "GatewaySilent: gateway-b")),
    Reason.STALE: lambda: lawful(measured(arrivals=Value(1.0, 1.0))),
    Reason.NOT_A_NUMBER: lambda: lawful(unknown_metrics(1e6, "NotANumber: NaN")),
    Fact.GPU_BUDGET_BOUND: bound_by_budget,
    Fact.SIZED: lambda: decided(Rule.DEMAND),
    Fact.MAX_REPLICAS_BOUND: lambda: decided(Rule.MAX_REPLICAS),
    Fact.SIGNALS_UNKNOWN: lambda: decided(Rule.METRICS_UNAVAILABLE, unknown=("colocated running",)),
    Fact.CAPACITY_RELEARNT: lambda: decided(Rule.CAPACITY_GUESSED, relearning=("colocated",)),
    Fact.TTFT_UNREACHABLE: lambda: decided(Rule.SLO_UNREACHABLE, reachable=False),
    Fact.TPOT_UNREACHABLE: lambda: decided(
        Rule.SLO_UNREACHABLE, reachable=False, colocated_batch_limit=0.5
    ),
    Reason.INVALID_SPEC: lambda: facts(Model(fleet()), ErrorKind.INVALID),
    Reason.FORBIDDEN: lambda: facts(Model(fleet()), ErrorKind.FORBIDDEN),
    Reason.DELETING: lambda: facts(Model(fleet()), ErrorKind.TERMINATING),
    Reason.QUOTA_EXCEEDED: lambda: facts(Model(fleet()), ErrorKind.QUOTA),
    Reason.CLAIM_NOT_FOUND: lambda: facts(
        Model(fleet()), pod=sick(unschedulable='persistentvolumeclaim "m" not found')
    ),
    Reason.UNREADABLE_NUMBER: lambda: facts(Model(fleet()), pod=sick(unreadable="gpu: many")),
    Reason.UNSCHEDULABLE: lambda: facts(Model(fleet()), pod=sick(unschedulable="0/3 nodes")),
    Reason.IMAGE_PULL_FAILED: lambda: facts(
        Model(fleet()), pod=sick(waiting=("ErrImagePull", "no"))
    ),
    Reason.CONTAINER_CRASHING: lambda: facts(
        Model(fleet()), pod=sick(terminated=("Error", "exit code 1"))
    ),
    **{reason: lambda reason=reason: engine_said(reason) for reason in LOAD_FAILURES},
}


FACTS = {fact for _, row in ROWS for fact in (*row.when, *row.unless)}


@pytest.mark.parametrize("fact", sorted(FACTS), ids=lambda fact: fact.name)
def test_every_fact_of_the_table_can_hold(fact: Fact | Reason) -> None:
    assert fact in WORLDS[fact]()


def test_every_condition_has_a_sentence() -> None:
    """`explain` printed "FollowingGoodput: " and nothing behind it."""
    model = converged(slo=SLO)
    model.round()
    assert [c.type for c in model.fleet.status.conditions if not c.message] == []


def test_every_reason_is_in_the_table_and_has_a_meaning() -> None:
    """A reason that nothing sets would stand in alerts and in the runbook for nothing."""
    assert {row.reason for _, row in ROWS} == set(Reason)
    assert [reason for reason in Reason if not reason.meaning] == []


def test_every_fact_is_used_by_the_table() -> None:
    assert set(WORLDS) == FACTS
    assert {fact for fact in FACTS if isinstance(fact, Fact)} == set(Fact)
