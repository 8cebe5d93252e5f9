"""`explain` names the rates at which the law itself would answer another number."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.decide import decide
from argosy_law.record import to_json
from argosy_operator.cli.explanation import (
    FURTHEST,
    STEP,
    _edge,
    sentences,
    thresholds,
)
from tests.scaling import demo

RUN = demo.ramp(7)
ACTIVE = [t for t in RUN.ticks if t.decision.active and t.decision.numbers.get("arrivals_per_s")]


def record_of(tick: Any, **bounds: Any) -> dict[str, Any]:
    goals = demo.goals()
    if bounds:
        goals = replace(goals, roles=tuple(replace(role, **bounds) for role in goals.roles))
    return {
        "state": to_json(tick.before),
        "observations": to_json(tick.observations),
        "goals": to_json(goals),
        "now": tick.at,
        "decision": to_json(decide(tick.before, tick.observations, goals, tick.at)[1]),
    }


@given(st.sampled_from(ACTIVE))
def test_more_replicas_come_above_the_rate_of_now_and_fewer_below_it(tick: Any) -> None:
    rate, found = thresholds(record_of(tick))
    for one in found:
        if one.more_at is not None:
            assert one.more_at >= rate
            assert one.more > one.target.replicas
        if one.fewer_below is not None:
            assert one.fewer_below <= rate
            assert one.fewer < one.target.replicas


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_a_busy_role_has_a_rate_at_which_one_more_pod_comes(role: str) -> None:
    lines = (line for tick in ACTIVE for line in sentences(record_of(tick)))
    assert any(f"one more {role} pod at" in line for line in lines)


def test_a_bound_that_binds_is_named_with_the_field_to_change() -> None:
    busiest = max(ACTIVE, key=lambda tick: tick.decision.numbers["arrivals_per_s"])
    text = "\n".join(sentences(record_of(busiest, max=1)))
    assert "raise spec.roles.prefill.replicas.max: the load asks for" in text


@given(st.floats(1.001, FURTHEST / 1.3), st.floats(1e-3, 1e3))
def test_an_edge_is_the_first_rate_with_another_answer(times: float, rate: float) -> None:
    above, below = rate * times, rate / times
    found = _edge(rate, STEP, lambda per_s: per_s >= above)
    assert found is not None
    assert above <= found <= above * 1.002
    found = _edge(rate, 1 / STEP, lambda per_s: per_s <= below)
    assert found is not None
    assert below * 0.998 <= found <= below
