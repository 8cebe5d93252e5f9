"""status.goodput and the columns of `kubectl get` are filled, and stay while little changes."""

from dataclasses import replace

import pytest

from argosy_law.observe import FleetMetrics, Idle, Value
from argosy_operator.core.status.numbers import goodput_status
from tests.support.model import Model, fleet

SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}


def measured(ttft_s: float, tpot_s: float, rate: float = 8.0) -> FleetMetrics:
    return FleetMetrics(
        at=0.0,
        arrivals=Value(rate, 0.0),
        attainment=Value(0.95, 0.0),
        ttft_p90_s=Value(ttft_s, 0.0),
        tpot_p90_s=Value(tpot_s, 0.0),
    )


@pytest.fixture
def model() -> Model:
    model = Model(fleet(slo=SLO))
    model.converge()
    model.pods = {
        u: replace(p, gpus=4 if p.role == "colocated" else 0) for u, p in model.pods.items()
    }
    return model


def figures(model: Model, metrics: FleetMetrics) -> dict[str, str]:
    """What stands in status after the law saw these metrics."""
    found = goodput_status(replace(model.snapshot(), metrics=metrics)) or {}
    status = model.fleet.status.model_copy(update={"goodput": None})
    body = status.model_dump(by_alias=True) | {"goodput": found or None}
    model.fleet = model.fleet.model_copy(update={"status": type(status).model_validate(body)})
    return found


def test_percentiles_and_goodput_per_gpu_are_shown(model: Model) -> None:
    assert figures(model, measured(1.617, 0.0412)) == {
        "attainment": "0.950",
        "offeredRps": "8.0",
        "rps": "7.6",
        "perGPU": "1.90",
        "ttftP90": "1.62s",
        "tpotP90": "41ms",
    }


def test_percentiles_disappear_with_attainment_in_one_write(model: Model) -> None:
    figures(model, measured(1.0, 0.04))
    late = replace(measured(1.0, 0.04), arrivals=Idle(0.0), attainment=Idle(0.0))
    assert figures(model, late) == {}


def test_a_malformed_attainment_in_status_is_ignored() -> None:
    slo = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
    model = Model(fleet(slo=slo))
    model.converge()
    body = model.fleet.status.model_dump(by_alias=True) | {"goodput": {"attainment": "good"}}
    status = type(model.fleet.status).model_validate(body)
    model.fleet = model.fleet.model_copy(update={"status": status})
    model.memory = replace(model.memory, decide_at=1e12)
    model.round()
    assert model.fleet.status.columns.slo in ("Idle", "Unknown")


def test_why_requests_missed_is_shown_as_shares_of_the_judged_ones(model: Model) -> None:
    seen = replace(measured(1.0, 0.04), scored=200.0)
    found = (("queue", 18.0), ("decode", 1.0), ("retry", 0.9))
    assert figures(model, replace(seen, misses=found))["misses"] == {
        "queue": "0.090",
        "decode": "0.005",
    }
    again = replace(seen, misses=(("queue", 19.0), ("prompt", 40.0)))
    assert figures(model, again)["misses"] == {"queue": "0.090", "prompt": "0.200"}
    assert "misses" not in figures(model, seen)


def test_of_few_requests_no_shares_are_shown(model: Model) -> None:
    few = replace(measured(1.0, 0.04), scored=19.0, misses=(("queue", 5.0),))
    assert "misses" not in figures(model, few)
    assert "misses" in figures(model, replace(few, scored=20.0))
