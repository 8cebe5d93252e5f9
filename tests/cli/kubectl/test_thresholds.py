"""`explain` names the rates at which the law itself would answer another number."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_law.decide import decide
from argosy_law.decision import RoleTarget, Rule
from argosy_law.record import to_json
from argosy_operator.cli.explanation import (
    FURTHEST,
    STEP,
    WHAT_TO_CHANGE,
    Threshold,
    _edge,
    _sentence,
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


@pytest.mark.parametrize("record", [{}, {"state": None}, {"now": "x", "state": {}, "goals": {}}])
def test_a_record_that_cannot_be_read_brings_no_thresholds(record: dict[str, Any]) -> None:
    assert sentences(record) == []


@given(st.floats(1.001, FURTHEST / 1.3), st.floats(1e-3, 1e3))
def test_an_edge_is_the_first_rate_with_another_answer(times: float, rate: float) -> None:
    above, below = rate * times, rate / times
    found = _edge(rate, STEP, lambda per_s: per_s >= above)
    assert found is not None
    assert above <= found <= above * 1.002
    found = _edge(rate, 1 / STEP, lambda per_s: per_s <= below)
    assert found is not None
    assert below * 0.998 <= found <= below


def test_an_edge_that_is_here_is_the_rate_itself_and_a_far_one_is_none() -> None:
    asked = list[float]()

    def never(per_s: float) -> bool:
        asked.append(per_s)
        return False

    assert _edge(7.0, STEP, lambda _: True) == 7.0
    assert _edge(7.0, STEP, never) is None
    assert 7.0 * FURTHEST / STEP < max(asked) <= 7.0 * FURTHEST
    asked.clear()
    assert _edge(7.0, 1 / STEP, never) is None
    assert 7.0 / FURTHEST <= min(asked) < 7.0 / FURTHEST * STEP


def sentence(rule: Rule, **parts: Any) -> str:
    target = RoleTarget(**{**TARGET, "rule": rule})
    whole = {"more_at": None, "more": 3, "fewer_below": None, "fewer": 3, **parts}
    return _sentence(Threshold(target, **whole), 4.0)


TARGET = {"role": "decode", "current": 3, "demanded": 5, "replicas": 3, "message": ""}


def test_a_threshold_is_a_sentence() -> None:
    rule = next(rule for rule in Rule if rule not in WHAT_TO_CHANGE)
    assert sentence(rule) == f"{rule}; no rate nearby changes it"
    assert sentence(rule, more_at=5.0, more=4) == "one more decode pod at 5 requests/s"
    assert sentence(rule, more_at=5.0, more=5) == "2 more decode pods at 5 requests/s"
    assert sentence(rule, more_at=4.0, more=5) == f"{rule}; no rate nearby changes it"
    assert sentence(rule, fewer_below=4.0, fewer=2) == "2 already now, after the hold"
    assert sentence(rule, fewer_below=3.0, fewer=2) == "2 below 3 requests/s"
    assert sentence(Rule.MAX_REPLICAS, more_at=5.0, more=4, fewer_below=2.0, fewer=1) == (
        "raise spec.roles.decode.replicas.max: the load asks for 5; one more decode pod at 5 "
        "requests/s; 1 below 2 requests/s"
    )


def test_a_fleet_without_arrivals_has_no_rates() -> None:
    idle = next(t for t in RUN.ticks if not t.decision.numbers.get("arrivals_per_s"))
    rate, found = thresholds(record_of(idle))
    assert rate == 0
    assert {(one.more_at, one.fewer_below) for one in found} == {(None, None)}
    assert sentences(record_of(idle))[:2] == ["", "What would change the number"]


def test_the_lines_name_the_rate_of_now_and_each_roles_number() -> None:
    tick = ACTIVE[len(ACTIVE) // 2]
    rate, found = thresholds(record_of(tick))
    blank, head, *lines = sentences(record_of(tick))
    assert rate == tick.decision.numbers["arrivals_per_s"]
    assert (blank, head) == ("", f"What would change the number, at {rate:.3g} requests/s")
    assert [line.partition(": ")[0] for line in lines] == [
        f"  {one.target.role} {one.target.replicas}" for one in found
    ]
