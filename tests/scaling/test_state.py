"""A state that cannot be right is checked as the metrics are: the law begins anew and says so."""

import json
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from argosy_law.decide import decide
from argosy_law.decision import Decision, Rule
from argosy_law.observe import FleetMetrics, Observations, RoleMetrics, StepDelta
from argosy_law.record import from_json, to_json
from argosy_law.state import ScalingState
from tests.scaling.ramp import GOALS
from tests.scaling.test_decide import START, metrics, supply

Broken = Callable[[dict[str, Any]], None]


def taught(now: float) -> FleetMetrics:
    prefill = StepDelta(now, 1.0, 10.0, prefill_tokens=10_000.0, prefill_requests=10.0)
    decode = StepDelta(now, 1.0, 30.0, decode_sequences=60.0, context_tokens=120_000.0)
    roles = (RoleMetrics("prefill", 3, (prefill,)), RoleMetrics("decode", 3, (decode,)))
    return metrics(now, 0.5, roles=roles)


def play(state: ScalingState, begin: float, ticks: int) -> tuple[ScalingState, Decision]:
    for i in range(ticks):
        now = begin + 2 * i
        state, decision = decide(state, Observations(taught(now), supply(3, 3)), GOALS, now)
    return state, decision


def broken_estimate(field: str, value: Any) -> Broken:
    def spoil(state: dict[str, Any]) -> None:
        state["roles"][0]["estimate"][field] = value

    return spoil


def broken_count(state: dict[str, Any]) -> None:
    state["demand"]["counts"][-1] = nan


def broken_headroom(state: dict[str, Any]) -> None:
    state["roles"][1]["headroom"] = -1.0


def broken_want(state: dict[str, Any]) -> None:
    state["roles"][0]["holds"]["highs"][0]["at"] = inf


def broken_gauge(state: dict[str, Any]) -> None:
    state["roles"][1]["gauges"]["running"] = -inf


def broken_length(state: dict[str, Any]) -> None:
    state["lengths"]["prompt"] = nan


FLAT = [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
SPOILT: dict[str, Broken] = {
    "a constant is NaN": broken_estimate("theta", [nan, 1e-4, 1e-4, 1e-8]),
    "a constant is infinite": broken_estimate("theta", [inf, 1e-4, 1e-4, 1e-8]),
    "a constant is negative": broken_estimate("theta", [0.01, -1e-4, 1e-4, 1e-8]),
    "the covariance is NaN": broken_estimate("covariance", [[nan] * 4] * 4),
    "the covariance is not positive definite": broken_estimate("covariance", FLAT),
    "a count is NaN": broken_count,
    "the headroom is negative": broken_headroom,
    "a want is for ever": broken_want,
    "a length is NaN": broken_length,
    "a gauge is infinite": broken_gauge,
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_state_that_is_read_back_and_cannot_be_right_goes_back_to_the_prior_and_says_so(
    spoil: Broken,
) -> None:
    state, before = play(ScalingState(), START, 30)
    assert before.targets[0].replicas == 2
    data = json.loads(json.dumps(to_json(state)))
    spoil(data)
    state, decision = play(from_json(ScalingState, data), START + 60, 1)
    assert [t.replicas for t in decision.targets] == [3, 3]
    assert {t.rule for t in decision.targets} == {Rule.JUST_STARTED}
    assert not any(r.estimate.learnt for r in state.roles)
    assert decision.relearning == ("prefill", "decode")
    assert "measured again" in decision.message
    _, later = play(state, START + 62, 30)
    assert later.relearning == ()
    assert later.targets[0].replicas == 2


def test_a_state_in_order_is_left_as_it_is() -> None:
    state, decision = play(ScalingState(), START, 30)
    again = from_json(ScalingState, json.loads(json.dumps(to_json(state))))
    assert again == state
    assert decision.relearning == ()
    _, other = play(again, START + 60, 1)
    assert other.targets[0].rule is not Rule.JUST_STARTED
