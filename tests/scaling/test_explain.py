"""`explain` prints the last decision for people, and its record for machines."""

import json
import re
from pathlib import Path

import pytest

from argosy_law.decision import MEANING, Decision, Rule
from argosy_law.record import to_json
from argosy_operator.api.conditions import ConditionType
from argosy_operator.cli.explanation import explanation, label_of, labelled
from tests.scaling import demo
from tests.support.model import Model
from tests.support.model import fleet as a_fleet


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


def test_json_is_the_status_unchanged() -> None:
    given = fleet()
    assert json.loads(explanation(given, "json")) == given["status"]["autoscaling"]  # type: ignore[index]


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


def test_without_a_change_the_text_speaks_of_changes_only() -> None:
    assert "changed replicas" in explanation({"metadata": {"name": "a"}})


def test_conditions_that_are_well_are_left_out() -> None:
    well = {
        "Ready": "True", "Servable": "True", "Reconciling": "False", "Progressing": "False",
        "Stalled": "False", "CapacityLimited": "False", "Draining": "False",
        "NameConflict": "False", "SLOMet": "True", "MetricsAvailable": "True",
        "ErrorBudgetBurning": "False",
    }  # fmt: skip
    said = [{"type": t, "status": s, "reason": "Fine"} for t, s in well.items()]
    said.append({"type": "ScalingActive", "status": "True", "reason": "AsSpecified"})
    said[5] |= {"status": "True", "reason": "GPUBudget"}
    said.append({"type": "ErrorBudgetBurning", "status": "True", "reason": "BurningFast"})
    text = explanation({"metadata": {"name": "a"}, "status": {"conditions": said}})
    assert [line.split()[0] for line in text.partition("Conditions\n")[2].splitlines()] == [
        "CapacityLimited=True",
        "ScalingActive=True",
        "ErrorBudgetBurning=True",
    ]


def test_a_fleet_without_an_slo_shows_only_why_it_is_not_scaled() -> None:
    """Every type of condition that a fleet has, as it is where it serves without an SLO."""
    model = Model(a_fleet())
    model.converge()
    conditions = [c.model_dump(by_alias=True) for c in model.fleet.status.conditions]
    assert {c["type"] for c in conditions} == set(ConditionType) - {ConditionType.SCALING_LIMITED}
    text = explanation({"metadata": {"name": "chat"}, "status": {"conditions": conditions}})
    said = [line.split("=")[0].strip() for line in text.partition("Conditions\n")[2].splitlines()]
    assert said == ["SLOMet", "SLOFeasible", "ScalingActive", "MetricsAvailable"]


def test_another_output_is_refused_with_the_two_that_exist() -> None:
    with pytest.raises(ValueError, match="write text or json"):
        explanation({}, "yaml")


def test_rules_name_fields_that_exist() -> None:
    """They said minReplicas; the field is spec.roles.<role>.replicas.min."""
    schema = (Path(__file__).parents[2] / "docs/reference/api.md").read_text()
    named = {word for text in MEANING.values() for word in re.findall(r"spec[.][\w.<>]+", text)}
    assert "spec.roles.<role>.replicas.min" in named
    for field in named:
        path = field.replace("<role>", "prefill").rstrip(".:")
        assert f"`{path}`" in schema, field


def test_numbers_have_units() -> None:
    assert labelled("arrivals_per_s", 11.2).split() == ["arriving", "11.2", "requests/s"]
    assert labelled("prompt_tokens", 1200.0).split() == ["mean", "prompt", "1200", "tokens"]
    assert labelled("attainment", 0.973).endswith("97.3%")
    assert labelled("a_new_s", 1.0).split() == ["a", "new", "s", "1", "s"]


def test_every_number_of_a_decision_has_a_label() -> None:
    names = {name for tick in demo.ramp(7).ticks for name in tick.decision.numbers}
    assert len(names) > 10
    assert [name for name in sorted(names) if label_of(name) is None] == []


def test_why_requests_missed_the_slo_is_said_in_words_the_largest_share_first() -> None:
    shares = {"decode": "0.011", "queue": "0.062"}
    text = explanation({"metadata": {"name": "chat"}, "status": {"goodput": {"misses": shares}}})
    lines = text.splitlines()
    begin = lines.index("Requests that missed the SLO lately")
    assert lines[begin + 1 : begin + 3] == [
        "  queue      6.2% waited in the gateway for a free place",
        "  decode     1.1% got their tokens too slowly: the decode steps take too long",
    ]
    assert "missed the SLO" not in explanation({"metadata": {"name": "chat"}, "status": {}})
