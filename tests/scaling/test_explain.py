"""`explain` prints the last decision for people, and its record for machines."""

import json

import pytest

from argosy_operator.cli.explain import explain, with_unit
from argosy_operator.core.scaling.record import to_json
from tests.scaling import demo


def fleet() -> dict[str, object]:
    tick = next(
        t for t in demo.ramp(7).ticks if t.decision.replicas("prefill") > t.ready["prefill"]
    )
    targets = tick.decision.targets
    last = {
        "time": "2026-01-01T00:00:00Z",
        "reason": "Scaled",
        "boundBy": str(tick.decision.rule.value),
        "from": {t.role: t.current for t in targets},
        "to": {t.role: t.replicas for t in targets},
        "record": {"decision": to_json(tick.decision), "goals": to_json(demo.goals())},
    }
    return {"metadata": {"name": "a"}, "status": {"autoscaling": {"lastDecision": last}}}


def test_text_says_what_moved_by_which_rule_and_why_not_fewer_nor_more() -> None:
    text = explain(fleet())
    assert "prefill 1 → 2" in text
    assert "Demand" in text
    assert "why not fewer: below the goal of 90%" in text
    assert "why not more: fewer suffice" in text


def test_json_is_the_status_as_it_stands() -> None:
    given = fleet()
    assert json.loads(explain(given, "json")) == given["status"]["autoscaling"]  # type: ignore[index]


def test_a_fleet_without_a_decision_says_when_one_will_come() -> None:
    assert "No decision yet" in explain({"metadata": {"name": "a"}})


def test_another_output_is_refused_with_the_two_that_exist() -> None:
    with pytest.raises(ValueError, match="write text or json"):
        explain({}, "yaml")


def test_numbers_have_units() -> None:
    assert with_unit("arrivals_per_s", 11.2) == "arrivals: 11.2/s"
    assert with_unit("prompt_tokens", 1200.0) == "prompt: 1200 tokens"
