"""`explain` prints the last decision for people, and its record for machines."""

import json
import re
from pathlib import Path

import pytest

from argosy_law.decision import MEANING, Decision, Rule
from argosy_law.record import to_json
from argosy_operator.cli.explanation import explanation
from tests.scaling import demo


def by_demand(decision: Decision) -> bool:
    """Whether prefill moves to more than one replica, as many as its load asks for."""
    prefill = decision.targets[0]
    moves = prefill.replicas != prefill.current
    return moves and prefill.rule is Rule.DEMAND and prefill.replicas > 1


def fleet() -> dict[str, object]:
    tick = next(t for t in demo.ramp(7).ticks if by_demand(t.decision))
    targets = tick.decision.targets
    last = {
        "time": "2026-01-01T00:00:00Z",
        "reason": "Scaled",
        "boundBy": str(tick.decision.rule.value),
        "from": {t.role: t.current for t in targets},
        "to": {t.role: t.replicas for t in targets},
        "record": {
            "state": to_json(tick.before),
            "observations": to_json(tick.observations),
            "goals": to_json(demo.goals()),
            "now": tick.at,
            "decision": to_json(tick.decision),
        },
    }
    return {"metadata": {"name": "a"}, "status": {"autoscaling": {"lastDecision": last}}}


def test_text_says_what_moved_by_which_rule_and_why_not_fewer_nor_more() -> None:
    text = explanation(fleet())
    assert re.search("prefill [13] → 2,", text)
    assert "Demand" in text
    assert "why not fewer: below the goal of 90%" in text
    assert "why not more: fewer suffice" in text


def edited(*path: object, to: object) -> str:
    """What is printed after one value of the last decision was edited by hand."""
    found = json.loads(json.dumps(fleet()))
    part = found["status"]["autoscaling"]["lastDecision"]
    for key in path[:-1]:
        part = part[key]
    assert part[path[-1]] != to
    part[path[-1]] = to
    return explanation(found)


def test_a_record_as_the_operator_wrote_it_replays_without_a_word() -> None:
    assert "replay" not in explanation(json.loads(json.dumps(fleet())))


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("to", "prefill"), 4000, "deciding again from the record gives prefill"),
        (("record", "goals", "slo", "ttft_s"), 0.001, "deciding again from the record gives"),
        (
            ("record", "decision", "numbers", "margin"),
            9.0,
            "deciding again from the record gives other numbers",
        ),
        (("record", "observations", "metrics"), "none", "the record's inputs cannot be read"),
        (("record", "now"), None, "the record's inputs cannot be read"),
    ],
)
def test_a_record_that_was_edited_by_hand_does_not_replay_and_explain_says_so(
    path: tuple[object, ...], to: object, said: str
) -> None:
    text = edited(*path, to=to)
    assert f"This record does not replay: {said}" in text
    assert "edited by hand" in text


def test_a_fleet_without_a_decision_says_when_one_will_come() -> None:
    assert "No decision has" in explanation({"metadata": {"name": "a"}})


def test_the_last_decision_is_not_repeated_in_the_history() -> None:
    given = fleet()
    scaling = given["status"]["autoscaling"]  # type: ignore[index]
    last = {k: v for k, v in scaling["lastDecision"].items() if k != "record"}
    older = last | {"time": "2025-12-31T00:00:00Z", "reason": "Idle"}
    scaling["history"] = [last, older]
    before = explanation(given).partition("Earlier changes")[2]
    assert "2025-12-31" in before
    assert "2026-01-01" not in before


def test_rules_name_fields_that_exist() -> None:
    """They said minReplicas; the field is spec.roles.<role>.replicas.min."""
    schema = (Path(__file__).parents[2] / "docs/reference/api.md").read_text()
    named = {word for text in MEANING.values() for word in re.findall(r"spec[.][\w.<>]+", text)}
    assert "spec.roles.<role>.replicas.min" in named
    for field in named:
        path = field.replace("<role>", "prefill").rstrip(".:")
        assert f"`{path}`" in schema, field
