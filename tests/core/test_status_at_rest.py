"""A fleet with a lasting problem writes its status once, even while its pods keep changing."""

from dataclasses import replace

import pytest

from argosy_law.observe import FleetMetrics, Idle, Value, unknown_metrics
from argosy_law.slo import Verdicts
from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.actions import Event, stalled
from argosy_operator.core.status.compose import status_of
from tests.support.model import Model, condition, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
PULL = 'rpc error: no such image "none:1"'


def look(model: Model, **pod: object):
    """A round after which every pod looks like this; the status that follows."""
    model.pods = {uid: replace(p, ready=False, **pod) for uid, p in model.pods.items()}
    s = model.snapshot()
    status = status_of(s, plan(s).draft, ())
    model.fleet = model.fleet.model_copy(update={"status": status})
    model.now += 7
    return status


@pytest.fixture
def broken() -> Model:
    model = Model(fleet())
    model.converge()
    return model


def test_an_image_that_cannot_be_pulled_changes_status_once(broken: Model) -> None:
    backed_off = f'Back-off pulling image "none:1": ErrImagePull: {PULL}'
    first = look(broken, waiting=("ErrImagePull", PULL))
    assert look(broken, waiting=("ImagePullBackOff", backed_off)) == first
    assert look(broken, waiting=("ErrImagePull", PULL)) == first
    assert PULL in condition(broken, "Stalled").message


def test_a_crashing_container_changes_status_once(broken: Model) -> None:
    ended = ("Error", "exit code 1")
    waits = ("CrashLoopBackOff", "back-off 10s restarting failed container")
    first = look(broken, waiting=waits, terminated=ended, restarts=1)
    assert look(broken, waiting=None, terminated=ended, restarts=2, started=True) == first
    assert look(broken, waiting=None, terminated=ended, restarts=2, started=False) == first
    assert look(broken, waiting=waits, terminated=ended, restarts=3, started=False) == first
    assert condition(broken, "Stalled").reason == "ContainerCrashing"


def measured_fleet(metrics: FleetMetrics) -> Model:
    model = Model(fleet(slo=SLO))
    model.converge()
    tick(model, metrics)
    return model


def tick(model: Model, metrics: FleetMetrics) -> None:
    """A round in which the law is due."""
    model.metrics = replace(metrics, at=model.now)
    model.memory = replace(model.memory, decide_at=0.0)
    model.round()


def test_rounds_between_two_queries_of_prometheus_keep_idle() -> None:
    model = measured_fleet(FleetMetrics(at=0.0, arrivals=Idle(1e12)))
    stood = model.fleet.status
    assert condition(model, "MetricsAvailable").reason == "Idle"
    model.memory = replace(model.memory, decide_at=model.now + 60)
    assert model.snapshot().metrics is None
    model.round()
    assert model.fleet.status == stood


def test_the_write_at_the_end_of_traffic_has_the_last_figures_of_the_budget() -> None:
    """They came up to 30 s later, in a write of their own: `make demo` saw it in an idle fleet."""
    busy = FleetMetrics(0.0, Value(3.0, 1e12), attainment=Value(0.99, 1e12))
    model = measured_fleet(replace(busy, verdicts=(Verdicts(1_000_000.0, 90.0, 100.0),)))
    assert model.fleet.status.error_budget is not None
    first = model.fleet.status.error_budget.used
    model.now += 10
    tick(model, replace(busy, verdicts=(Verdicts(1_000_010.0, 100.0, 100.0),)))
    budget = model.fleet.status.error_budget
    assert budget is not None
    assert budget.used == first, "it may move only every 30 s"
    model.now += 10
    tick(model, FleetMetrics(0.0, Idle(1e12), attainment=Idle(1e12)))
    at_rest = model.fleet.status
    assert at_rest.error_budget is not None
    assert at_rest.error_budget.used != first
    for _ in range(6):
        model.now += 10
        tick(model, FleetMetrics(0.0, Idle(1e12), attainment=Idle(1e12)))
    assert model.fleet.status == at_rest


def test_an_unreachable_prometheus_stays_the_reason_between_queries() -> None:
    model = measured_fleet(unknown_metrics(0.0, "PrometheusAway: http://p: ConnectionError"))
    stood = model.fleet.status
    assert condition(model, "MetricsAvailable").reason == "PrometheusUnreachable"
    model.memory = replace(model.memory, decide_at=model.now + 60)
    model.round()
    assert model.fleet.status == stood


def test_stale_samples_change_status_once() -> None:
    old = FleetMetrics(at=0.0, arrivals=Value(1.0, 900_000.0))
    model = measured_fleet(old)
    assert condition(model, "MetricsAvailable").reason == "Stale"
    stood = model.fleet.status
    model.now += 15
    tick(model, old)
    assert model.fleet.status == stood


def test_an_error_with_another_number_changes_the_message() -> None:
    """A 404 stayed "HTTP 400" in the condition: only its digits differ."""
    model = measured_fleet(unknown_metrics(0.0, "PrometheusError: HTTP 400, no list of results"))
    tick(model, unknown_metrics(0.0, "PrometheusError: HTTP 404, no list of results"))
    assert "HTTP 404" in condition(model, "MetricsAvailable").message


def test_a_fleet_that_stalls_sends_one_event(broken: Model) -> None:
    before = broken.fleet.status
    first = look(broken, waiting=("ErrImagePull", PULL))
    event = stalled(before, first)
    assert event is not None
    assert (event.reason, event.warning) == ("ImagePullFailed", True)
    assert PULL in event.message
    again = look(broken, waiting=("ImagePullBackOff", f"Back-off: ErrImagePull: {PULL}"))
    assert stalled(first, again) is None
    other = look(broken, waiting=None, terminated=("Error", "exit code 1"), restarts=1)
    assert stalled(again, other) == Event("ContainerCrashing", message(other), warning=True)


def message(status) -> str:
    return next(c.message for c in status.conditions if c.type == "Stalled")
