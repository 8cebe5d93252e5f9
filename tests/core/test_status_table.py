"""Every row of the truth table can come about, and every fact it asks for can hold."""

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from argosy_operator.api.conditions import MEANING, ConditionType, Reason
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.fleet.actions import Apply, Contest, Create, ErrorKind, Outcome
from argosy_operator.core.fleet.pods import Pod
from argosy_operator.core.plan import after, plan
from argosy_operator.core.reconcile.contests import FREE
from argosy_operator.core.reconcile.failures import STUCK_S
from argosy_operator.core.scaling.decision import Decision, RoleTarget, Rule
from argosy_operator.core.scaling.observe import FleetMetrics, Idle, Value, blind_metrics
from argosy_operator.core.status.compose import TABLE, Facts, Row, facts_of, statements
from argosy_operator.core.status.problems import LOAD_FAILURES
from tests.core.model import Model, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
NONE = {"replicas": {"min": 0, "max": 0}}
THING = {"kind": "Service", "metadata": {"name": "chat"}}


def ruling_out(row: Row, others: Iterable[Row]) -> frozenset[str]:
    """The row's own facts, and those that keep the rows before it from applying."""
    hold = {fact for fact in row.when if not fact.startswith("!")}
    never = {fact[1:] for fact in row.when if fact.startswith("!")}
    for other in others:
        if all((f[1:] not in hold) if f.startswith("!") else (f in hold) for f in other.when):
            hold |= {f[1:] for f in other.when if f.startswith("!")} - never
    return frozenset(hold)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.type}-{row.truth}-{row.reason}")
def test_every_row_can_be_the_one_that_speaks(row: Row) -> None:
    before = [other for other in TABLE[: TABLE.index(row)] if other.type == row.type]
    said = {s.type: s for s in statements(Facts(ruling_out(row, before)))}
    assert (said[row.type].status, said[row.type].reason) == (row.truth, row.reason)


def test_every_type_has_a_last_word_or_is_not_spoken_of() -> None:
    spoken = {row.type for row in TABLE}
    assert {row.type for row in TABLE if not row.when} == spoken
    assert spoken == set(ConditionType)


def settled(**spec: object) -> Model:
    model = Model(fleet(**spec))
    model.settle()
    return model


def facts(model: Model, *errors: ErrorKind, pod: Pod | None = None, **draft: object) -> set[str]:
    """What holds for the model in this moment; `pod` stands for its engine's pods."""
    s = model.snapshot()
    if pod is not None:
        s = replace(s, pods=(pod,))
    outcomes = tuple(Outcome(Create(THING), error, "as it says") for error in errors)
    d = replace(after(s, plan(s), outcomes).draft, **draft)  # type: ignore[arg-type]
    return {str(fact) for fact in facts_of(s, d, outcomes).hold}


def sick(**looks: object) -> Pod:
    return replace(
        Pod("chat-1", "u1", "colocated", "r", ready=False, restarts=2),
        **looks,  # type: ignore[arg-type]
    )


def measured(**signals: object) -> FleetMetrics:
    return replace(FleetMetrics(at=1e6, arrivals=Value(5.0, 1e6)), **signals)  # type: ignore[arg-type]


def lawful(metrics: FleetMetrics) -> set[str]:
    model = settled(slo=SLO)
    model.metrics = replace(metrics, at=model.now)
    model.memory = replace(model.memory, decide_at=0.0)
    return facts(model)


def bound_by_budget() -> set[str]:
    return decided(Rule.BUDGET)


def decided(
    rule: Rule,
    *,
    reachable: bool = True,
    relearning: tuple[RoleName, ...] = (),
    unknown: tuple[str, ...] = (),
    **numbers: float,
) -> set[str]:
    """The law's last word was this rule, with these numbers."""
    target = RoleTarget("colocated", 1, 1, 2, rule, "")
    known = {"colocated_planned_per_s": 1.0, "colocated_batch_limit": 9.0} | numbers
    decision = Decision(0.0, (target,), rule, "", True, reachable, known, relearning=relearning)
    decision = replace(decision, unknown=unknown)
    model = settled(slo=SLO)
    model.memory = replace(model.memory, decision=decision, decide_at=1e12)
    return facts(model)


def foreign() -> set[str]:
    model = Model(fleet())
    model.children["Service", "chat"] = {**THING, "metadata": {"name": "chat", "uid": "x"}}
    return facts(model)


def failing(kind: str, for_s: float = 0.0) -> set[str]:
    """The first order for an object of this kind has failed for so long."""
    model = Model(fleet())
    orders = (a for a in model.round().actions if isinstance(a, Create | Apply))
    order = next(a for a in orders if a.obj["kind"] == kind)
    del model.children[kind, order.obj["metadata"]["name"]]
    outcome = Outcome(order, ErrorKind.FAILED, "a webhook fails")
    model.memory = after(model.snapshot(), plan(model.snapshot()), (outcome,)).memory
    model.now += for_s
    return facts(model)


def contested() -> set[str]:
    model = settled()
    told = Contest("alice changed spec.ports of Service chat", FREE, model.now, model.now)
    model.memory = replace(model.memory, contests={"Apply Service/chat": told})
    return facts(model)


def edited(**spec: object) -> set[str]:
    model = settled()
    model.turn(**spec)
    return facts(model)


def fewer() -> set[str]:
    model = settled(roles={"colocated": {"replicas": {"min": 2, "max": 2}}})
    model.turn(roles={"colocated": {"replicas": {"min": 1, "max": 2}}})
    model.round()  # asks the engines how busy they are
    return facts(model)


def engine_said(reason: str) -> set[str]:
    text = json.dumps({"reason": reason, "message": "why"})
    return facts(Model(fleet()), pod=sick(ended=("Error", text)))


def split() -> set[str]:
    return facts(settled(mode="disaggregated"))


def alone() -> set[str]:
    """The prefill pods of a fleet that served are gone; its decode pods are not."""
    model = settled(mode="disaggregated")
    model.pods = {
        u: replace(p, ready=False) if p.role == "prefill" else p for u, p in model.pods.items()
    }
    return facts(model)


WORLDS = {
    "servable": lambda: facts(settled()),
    "served": lambda: facts(settled()),
    "gateway": lambda: facts(settled()),
    "pending": lambda: facts(Model(fleet())),
    "parked": lambda: facts(Model(fleet(roles={"colocated": NONE}))),
    "paused": lambda: edited(paused=True),
    "unwritten": lambda: facts(Model(fleet()), ErrorKind.FAILED),
    "unbuilt": lambda: failing("Deployment"),
    "stuck": lambda: failing("PodDisruptionBudget", for_s=STUCK_S),
    "contested": contested,
    "rolling": lambda: edited(engine={"image": "engine:2"}),
    "leaving": fewer,
    "foreign": foreign,
    "foreign_service": foreign,
    "disaggregated": split,
    "alone": alone,
    "prefill": split,
    "decode": split,
    "external": lambda: facts(Model(fleet(autoscaling={"policy": "External"}))),
    "policy_none": lambda: facts(Model(fleet(autoscaling={"policy": "None"}))),
    "slo": lambda: lawful(measured()),
    "law": lambda: lawful(measured()),
    "asked": lambda: lawful(measured()),
    "scored": lambda: lawful(measured(attainment=Value(0.5, 1e6))),
    "met": lambda: lawful(measured(attainment=Value(0.99, 1e6))),
    "idle": lambda: lawful(measured(arrivals=Idle(1e6))),
    "blind": lambda: lawful(blind_metrics(1e6, "FirstSample: one is no rate")),
    "NoPrometheus": lambda: lawful(blind_metrics(1e6, "NoPrometheus: set it")),
    "PrometheusNotAllowed": lambda: lawful(blind_metrics(1e6, "PrometheusNotAllowed: x")),
    "PrometheusUnreachable": lambda: lawful(blind_metrics(1e6, "PrometheusTimeout: 2 s")),
    "NoTargets": lambda: lawful(blind_metrics(1e6, "GatewayDown: none answers")),
    "silent": lambda: lawful(measured(silent_gateways=("gateway-b",))),
    "GatewaySilent": lambda: lawful(blind_metrics(1e6, "GatewaySilent: gateway-b")),
    "Stale": lambda: lawful(measured(arrivals=Value(1.0, 1.0))),
    "NotANumber": lambda: lawful(blind_metrics(1e6, "NotANumber: NaN")),
    "budget": bound_by_budget,
    "sized": lambda: decided(Rule.DEMAND),
    "most": lambda: decided(Rule.MAX),
    "unknown": lambda: decided(Rule.BLIND, unknown=("colocated running",)),
    "relearning": lambda: decided(Rule.LEARNING, relearning=("colocated",)),
    "ttft_floor": lambda: decided(Rule.UNREACHABLE, reachable=False),
    "tpot_floor": lambda: decided(Rule.UNREACHABLE, reachable=False, colocated_batch_limit=0.5),
    "InvalidSpec": lambda: facts(Model(fleet()), ErrorKind.INVALID),
    "Forbidden": lambda: facts(Model(fleet()), ErrorKind.FORBIDDEN),
    "Deleting": lambda: facts(Model(fleet()), ErrorKind.TERMINATING),
    "QuotaExceeded": lambda: facts(Model(fleet()), ErrorKind.QUOTA),
    "ClaimNotFound": lambda: facts(
        Model(fleet()), pod=sick(unschedulable='persistentvolumeclaim "m" not found')
    ),
    "UnreadableNumber": lambda: facts(Model(fleet()), pod=sick(unreadable="gpu: many")),
    "Unschedulable": lambda: facts(Model(fleet()), pod=sick(unschedulable="0/3 nodes")),
    "ImagePullFailed": lambda: facts(Model(fleet()), pod=sick(trouble=("ErrImagePull", "no"))),
    "ContainerCrashing": lambda: facts(Model(fleet()), pod=sick(ended=("Error", "exit code 1"))),
    **{str(reason): lambda reason=reason: engine_said(reason) for reason in LOAD_FAILURES},
}


@pytest.mark.parametrize(
    "fact", sorted({str(fact).removeprefix("!") for row in TABLE for fact in row.when})
)
def test_every_fact_of_the_table_can_hold(fact: str) -> None:
    assert fact in WORLDS[fact]()


def test_every_condition_has_a_sentence() -> None:
    """`explain` printed "FollowingGoodput: " and nothing behind it."""
    model = settled(slo=SLO)
    model.round()
    assert [c.type for c in model.fleet.status.conditions if not c.message] == []
    assert [row.reason for row in TABLE if not MEANING.get(row.reason)] == []


def test_no_fact_is_only_a_tests_own() -> None:
    asked = {str(fact).removeprefix("!") for row in TABLE for fact in row.when}
    assert set(WORLDS) == asked


def test_every_reason_of_the_table_is_in_the_vocabulary() -> None:
    assert {row.reason for row in TABLE} <= set(Reason)
