"""Conditions, Events and problems have the right reason and message, and appear once."""

from dataclasses import replace

import pytest

from argosy_law.decision import Decision, RoleTarget, Rule
from argosy_law.observe import FleetMetrics, Idle, RoleMetrics, Value
from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.actions import (
    Event,
    EventReason,
    unpublished,
)
from argosy_operator.core.status.compose import status_of
from tests.support.model import Model, condition, converged, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
WIDE = {"colocated": {"replicas": {"min": 1, "max": 4}}}


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


def test_a_fleet_that_lost_its_pods_keeps_saying_so() -> None:
    model = converged()
    for _ in range(3):
        model.pods = {u: replace(p, ready=False) for u, p in model.pods.items()}
        s = model.snapshot()
        status = status_of(s, plan(s).draft, ())
        model.fleet = model.fleet.model_copy(update={"status": status})
        assert condition(model, "Ready").reason == "PodsNotReady"


def test_a_fleet_that_starts_is_not_ready_by_its_decode_pods_alone() -> None:
    """Who waits for Ready waits for the fleet that the spec asks for."""
    model = Model(fleet(mode="disaggregated"))
    model.broken_roles = frozenset({"prefill"})
    for _ in range(6):
        model.round()
        model.tick()
    assert any(p.serving for p in model.pods.values() if p.role == "decode")
    assert condition(model, "Ready").status == "False"


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
