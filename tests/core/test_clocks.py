"""Clocks that are set or differ: pauses go on, decisions are made, and the skew has a name."""

from dataclasses import replace

from argosy_law.decide import decide
from argosy_law.decision import Rule
from argosy_law.observe import FleetMetrics, Idle, Observations, Value
from argosy_law.state import ScalingState
from tests.scaling.ramp import GOALS
from tests.scaling.test_decide import metrics, supply
from tests.support.model import Model, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
HOUR_S = 3600.0
START = 1e6


def running(skew_s: float = 0.0) -> Model:
    """A fleet whose law has just decided."""
    model = Model(fleet(slo=SLO))
    model.converge()
    model.metrics = FleetMetrics(at=1e6, arrivals=Idle(1e6), clock_skew_s=skew_s)
    model.memory = replace(model.memory, decide_at=0.0)
    model.round()
    return model


def message(model: Model) -> str:
    found = (c for c in model.fleet.status.conditions if c.type == "MetricsAvailable")
    return next(found).message


def test_a_wall_clock_that_is_set_back_an_hour_delays_no_decision() -> None:
    model = running()
    model.tick(5.0)
    assert model.snapshot().metrics is None
    model.set_back(HOUR_S)
    model.tick(60.0)
    assert model.snapshot().metrics is not None


def test_a_samples_clock_that_goes_back_begins_the_holds_anew_and_nothing_longer() -> None:
    state, supplies = ScalingState(), supply(2, 2)
    for i in range(10):
        seen = Observations(metrics(START + 2 * i, 0.5), supplies)
        state, _ = decide(state, seen, GOALS, START + 2 * i)
    back = START - HOUR_S
    for i in range(30):
        now = back + 2 * i
        state, decision = decide(state, Observations(metrics(now, 0), supplies), GOALS, now)
        if i == 0:
            assert {t.rule for t in decision.targets} <= {
                Rule.JUST_STARTED,
                Rule.HOLD,
                Rule.CAPACITY_GUESSED,
            }
    assert [t.replicas for t in decision.targets] == [1, 1]


def test_demand_is_followed_at_once_after_the_samples_clock_went_back() -> None:
    state, _ = decide(ScalingState(), Observations(metrics(START, 0.5), supply(1, 1)), GOALS, START)
    back = START - HOUR_S
    _, decision = decide(state, Observations(metrics(back, 12), supply(1, 1)), GOALS, back)
    assert decision.numbers["bins"] > 1
    assert decision.replicas("prefill") > 1


def test_two_servers_a_second_apart_do_not_begin_the_holds_anew() -> None:
    """Prometheus in pairs behind one Service: each answers by its own clock."""
    state, supplies = ScalingState(), supply(2, 2)
    for i in range(40):
        now = START + 2 * i - (2.5 if i % 2 else 0.0)
        state, decision = decide(state, Observations(metrics(now, 0), supplies), GOALS, now)
    assert [t.replicas for t in decision.targets] == [1, 1]


def test_traffic_on_a_clock_that_differs_is_measured() -> None:
    model = running(skew_s=HOUR_S)
    model.metrics = FleetMetrics(at=5e5, arrivals=Value(2.0, 5e5), clock_skew_s=5e5)
    model.memory = replace(model.memory, decide_at=0.0)
    model.round()
    found = next(c for c in model.fleet.status.conditions if c.type == "MetricsAvailable")
    assert found.status == "True"
