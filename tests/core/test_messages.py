"""Conditions, Events and problems have the right reason and message, and appear once."""

from dataclasses import replace

import pytest

from argosy_law.decision import Decision, RoleTarget, Rule
from argosy_law.observe import FleetMetrics, Idle, RoleMetrics, Value
from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.actions import (
    Create,
    ErrorKind,
    Event,
    EventReason,
    Outcome,
    unpublished,
)
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.status.compose import status_of
from argosy_operator.core.status.problems import problems_of
from argosy_operator.core.steps.failures import learn_failures
from tests.support.model import Model, condition, converged, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
WIDE = {"colocated": {"replicas": {"min": 1, "max": 4}}}


@pytest.mark.parametrize(
    ("policy", "reason"), [("External", "ExternalOwner"), ("None", "PolicyNone")]
)
@pytest.mark.parametrize("type_", ["SLOMet", "MetricsAvailable"])
def test_an_slo_under_another_policy_is_not_called_missing(
    policy: str, reason: str, type_: str
) -> None:
    model = converged(slo=SLO, autoscaling={"policy": policy})
    said = condition(model, type_)
    assert (said.status, said.reason) == ("Unknown", reason)
    assert "spec.slo is not set" not in said.message
    assert model.fleet.status.columns.slo == "None"


def test_a_fleet_scaled_by_others_does_not_claim_to_stay_at_its_minimum() -> None:
    model = converged(autoscaling={"policy": "External"})
    assert "minimum" not in condition(model, "SLOMet").message


def test_the_last_decision_is_dropped_when_the_law_no_longer_scales_the_fleet() -> None:
    model = converged(slo=SLO, roles=WIDE)
    target = RoleTarget("colocated", 1, 1, 2, Rule.GPU_BUDGET, "")
    decision = Decision(0.0, (target,), Rule.GPU_BUDGET, "", True, True, {})
    model.memory = replace(model.memory, decision=decision, decide_at=1e12)
    model.round()
    assert condition(model, "CapacityLimited").reason == "GPUBudget"
    model.edit(autoscaling={"policy": "External"})
    model.round()
    assert condition(model, "CapacityLimited").status == "False"


@pytest.mark.parametrize("arrivals", [Idle(1e6), Value(2.0, 1e6)])
def test_jobs_that_scrape_the_same_pods_are_named_where_metrics_are_available(
    arrivals: Idle | Value,
) -> None:
    model = converged(slo=SLO)
    jobs = ("fleets", "kubernetes-pods")
    model.metrics = FleetMetrics(at=1e6, arrivals=arrivals, scraped_twice=jobs)
    model.memory = replace(model.memory, decide_at=0.0)
    model.round()
    said = condition(model, "MetricsAvailable")
    assert said.status == "True"
    assert ", ".join(jobs) in said.message
    model.metrics = FleetMetrics(at=1e6, arrivals=arrivals)
    model.memory = replace(model.memory, decide_at=0.0)
    model.round()
    assert "kubernetes-pods" not in condition(model, "MetricsAvailable").message


def test_silent_engines_do_not_hide_what_the_gateways_measured() -> None:
    """Half of the engines are not scraped yet: nothing is removed, and the SLO is known."""
    model = converged(slo=SLO, roles={"colocated": {"replicas": {"min": 3, "max": 4}}})
    model.metrics = FleetMetrics(
        at=model.now,
        arrivals=Value(5.0, model.now),
        attainment=Value(0.99, model.now),
        scored=50.0,
        roles=(RoleMetrics("colocated", 1),),
    )
    target = RoleTarget("colocated", 3, 3, 1, Rule.METRICS_UNAVAILABLE, "")
    decision = Decision(
        model.now, (target,), Rule.METRICS_UNAVAILABLE, "half is silent", True, True, {}
    )
    model.memory = replace(model.memory, decision=decision, decide_at=1e12)
    s = replace(model.snapshot(), metrics=model.metrics)
    d = replace(plan(s).draft, memory=model.memory)
    said = {c.type: c for c in status_of(s, d, ()).conditions}
    assert (said["SLOMet"].status, said["MetricsAvailable"].status) == ("True", "True")


def test_a_paused_fleet_says_so_in_the_column_and_does_not_wait_for_pods() -> None:
    """Two pods are wanted, one is there, and the other is not created."""
    model = converged()
    model.edit(paused=True, roles={"colocated": {"replicas": {"min": 2, "max": 4}}})
    model.round()
    assert model.fleet.status.columns.reason == "Paused"
    progressing = condition(model, "Progressing")
    assert (progressing.status, progressing.reason) == ("False", "Paused")


def test_a_fleet_that_lost_its_pods_keeps_saying_so() -> None:
    model = converged()
    for _ in range(3):
        model.pods = {u: replace(p, ready=False) for u, p in model.pods.items()}
        s = model.snapshot()
        status = status_of(s, plan(s).draft, ())
        model.fleet = model.fleet.model_copy(update={"status": status})
        assert condition(model, "Ready").reason == "PodsNotReady"


def test_a_fleet_whose_prefill_pods_are_gone_answers_by_decode_and_stays_ready() -> None:
    """The gateway sends prompts to decode at once, which computes them."""
    model = converged(mode="disaggregated")
    for _ in range(3):
        model.pods = {
            u: replace(p, ready=False) if p.role == "prefill" else p for u, p in model.pods.items()
        }
        s = model.snapshot()
        status = status_of(s, plan(s).draft, ())
        model.fleet = model.fleet.model_copy(update={"status": status})
        ready, servable = condition(model, "Ready"), condition(model, "Servable")
        assert (ready.status, ready.reason) == ("True", "NoPrefill")
        assert (servable.status, servable.reason) == ("False", "NoPrefill")
        assert "decode" in ready.message
    model.pods = {
        u: replace(p, ready=False) if p.role == "decode" else p for u, p in model.pods.items()
    }
    s = model.snapshot()
    ended = {c.type: c for c in status_of(s, plan(s).draft, ()).conditions}
    assert (ended["Ready"].status, ended["Ready"].reason) == ("False", "PodsNotReady")


def test_a_fleet_that_starts_is_not_ready_by_its_decode_pods_alone() -> None:
    """Who waits for Ready waits for the fleet that the spec asks for."""
    model = Model(fleet(mode="disaggregated"))
    model.broken_roles = frozenset({"prefill"})
    for _ in range(6):
        model.round()
        model.tick()
    assert any(p.serving for p in model.pods.values() if p.role == "decode")
    assert condition(model, "Ready").status == "False"


@pytest.mark.parametrize("policy", ["External", "None"])
def test_a_fleet_with_zero_replicas_is_parked_and_not_starting(policy: str) -> None:
    none = {"colocated": {"replicas": {"min": 0, "max": 4}}}
    model = converged(roles=none, autoscaling={"policy": policy})
    ready = condition(model, "Ready")
    assert (ready.status, ready.reason) == ("True", "Parked")


def test_every_change_of_replicas_sends_an_event_even_if_it_happened_before() -> None:
    scaled = Event(EventReason.SCALED, "decode 2 → 1: Idle: no request for a whole hold window")
    _, said = unpublished([scaled], {}, 1000.0)
    again, _ = unpublished([scaled], said, 1600.0)
    assert again == (scaled,)


def test_a_lasting_conflict_sends_one_event_an_hour() -> None:
    quarrel = Event(EventReason.PUT_BACK, "alice changed it", warning=True)
    _, said = unpublished([quarrel], {}, 1000.0)
    assert unpublished([quarrel], said, 4000.0)[0] == ()
    assert unpublished([quarrel], said, 5000.0)[0] == (quarrel,)


def test_a_gateway_whose_image_is_missing_does_not_blame_the_engines() -> None:
    model = converged()
    s = model.snapshot()
    lost = Pod("g", "g", "gateway", "", ready=False, waiting=("ErrImagePull", "no such image"))
    (problem,) = problems_of(replace(s, pods=(*s.pods, lost)), {})
    assert "spec.engine.image" not in problem.message
    assert "images.gateway" in problem.message


def feasible(
    rule: Rule, *, reachable: bool = True, attained: str | None = "0.95", **numbers: float
):
    """The SLOFeasible condition after the law said this last, and users got that much."""
    model = converged(slo=SLO, roles=WIDE)
    body = model.fleet.status.model_dump(by_alias=True)
    body["goodput"] = {"attainment": attained} if attained else None
    status = type(model.fleet.status).model_validate(body)
    model.fleet = model.fleet.model_copy(update={"status": status})
    target = RoleTarget("colocated", 1, 1, 2, rule, "")
    decision = Decision(0.0, (target,), rule, "", True, reachable, numbers)
    model.memory = replace(model.memory, decision=decision, decide_at=1e12)
    model.round()
    return condition(model, "SLOFeasible")


@pytest.mark.parametrize(
    ("rule", "numbers", "status", "reason"),
    [
        (Rule.DEMAND, {"colocated_planned_per_s": 2.0}, "True", "AsSpecified"),
        (Rule.IDLE, {}, "Unknown", "NoTraffic"),
        (Rule.GPU_BUDGET, {"colocated_planned_per_s": 2.0}, "False", "GPUBudget"),
        (Rule.MAX_REPLICAS, {"colocated_planned_per_s": 2.0}, "False", "MaxReplicasBound"),
        (Rule.SCHEDULE, {"colocated_planned_per_s": 2.0}, "False", "MaxReplicasBound"),
    ],
)
def test_whether_the_slo_can_be_met_is_a_condition(
    rule: Rule, numbers: dict[str, float], status: str, reason: str
) -> None:
    said = feasible(rule, **numbers)
    assert (said.status, said.reason) == (status, reason)


def test_feasibility_is_unknown_when_attainment_is() -> None:
    """Both leave a fleet without traffic in the same write."""
    said = feasible(Rule.DEMAND, attained=None, colocated_planned_per_s=2.0)
    assert (said.status, said.reason) == ("Unknown", "NoTraffic")


def test_an_slo_that_a_lone_request_misses_names_the_target_to_change() -> None:
    planned = {"colocated_planned_per_s": 2.0}
    ttft = feasible(Rule.SLO_UNREACHABLE, reachable=False, ttft_reachable=0.0, **planned)
    tpot = feasible(Rule.SLO_UNREACHABLE, reachable=False, tpot_reachable=0.0, **planned)
    assert (ttft.reason, tpot.reason) == ("FloorAboveTarget", "FloorAboveTarget")
    assert "spec.slo.ttft.target" in ttft.message
    assert "spec.slo.tpot.target" in tpot.message


def test_signals_that_are_unknown_are_named_by_the_scaling_condition() -> None:
    model = converged(slo=SLO, roles=WIDE)
    model.metrics = FleetMetrics(
        at=model.now,
        arrivals=Value(1.0, model.now),
        roles=(RoleMetrics("colocated", 1, running=Value(1.0, model.now)),),
    )
    model.memory = replace(model.memory, decide_at=0.0)
    model.round()
    said = condition(model, "ScalingActive")
    assert (said.status, said.reason) == ("True", "SignalsUnknown")
    assert "colocated kv_capacity_tokens" in said.message
    assert "running" not in said.message


def test_capacity_that_is_measured_again_is_in_the_scaling_condition() -> None:
    model = converged(slo=SLO, roles=WIDE)
    target = RoleTarget("colocated", 2, 2, 2, Rule.CAPACITY_GUESSED, "")
    decision = Decision(0.0, (target,), target.rule, "", True, True, {}, relearning=("colocated",))
    model.memory = replace(model.memory, decision=decision, decide_at=1e12)
    model.round()
    said = condition(model, "ScalingActive")
    assert (said.status, said.reason) == ("True", "SignalsUnknown")
    assert "measured again" in said.message
    assert "nothing is removed" in said.message


@pytest.mark.parametrize(
    ("said", "helps"),
    [
        ('deployments.apps is forbidden: User "op" cannot create resource "deployments"', "rule"),
        ('roles "x" is forbidden: user "op" is attempting to grant RBAC permissions', "rule"),
        ('admission webhook "images.example" denied the request: no such registry', "policy"),
    ],
)
def test_the_remedy_depends_on_what_forbids_the_write(said: str, helps: str) -> None:
    thing = Create({"kind": "Deployment", "metadata": {"name": "chat-x"}})
    refused = Outcome(thing, ErrorKind.FORBIDDEN, said)
    s = converged().snapshot()
    (problem,) = problems_of(s, learn_failures(s, {}, (refused,)))
    assert problem.reason == "Forbidden"
    assert ("operator's role" in problem.message) == (helps == "rule")
    assert ("policy" in problem.message) == (helps == "policy")
