"""`kubectl argosy status` shows what serves, what clients get, and only what is not fine."""

from typing import Any

from argosy_operator.api.conditions import ConditionType
from argosy_operator.cli.explanation import WELL_WHEN_FALSE
from argosy_operator.cli.kubectl.views.fleets import (
    ALSO_WELL_WHEN_FALSE,
    age,
    fleet_text,
    fleets_table,
)
from tests.support.model import Model
from tests.support.model import fleet as a_fleet

NOW = 1_800_000_000.0


def chat(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "chat", "namespace": "a", "creationTimestamp": "2027-01-15T07:00:00Z"},
        "spec": {
            "model": {"uri": "sim://opt-13b-a100"},
            "slo": {"ttft": {"target": "500ms"}, "tpot": {"target": "50ms"}, "attainment": "90%"},
            "autoscaling": {"policy": "Goodput"},
        },
        "status": {
            "mode": "disaggregated",
            "url": "http://chat.a.svc",
            "columns": {"prefill": "1/1", "decode": "1/2", "gpus": "0", "slo": "Met"},
            "goodput": {"attainment": "0.95", "ttftP90": "400ms", "offeredRps": "3.5"},
            "roles": {"decode": {"desired": 2, "serving": 1, "ready": 1, "pending": 1}},
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "Serving"},
                {"type": "Progressing", "status": "True", "reason": "PodsStarting", "message": "m"},
            ],
            **status,
        },
    }


def test_the_table_has_a_line_for_each_fleet_with_what_is_not_fine() -> None:
    head, line = fleets_table([chat()], NOW).splitlines()
    assert head.split()[:4] == ["NAME", "MODE", "P", "D"]
    assert line.split() == [
        "chat", "disaggregated", "1/1", "1/2", "0", "Met", "0.95", "400ms", "-", "PodsStarting",
        "60m",
    ]  # fmt: skip


def test_wide_adds_where_clients_reach_it_and_all_namespaces_name_theirs() -> None:
    text = fleets_table([chat()], NOW, wide=True, everywhere=True)
    assert text.startswith("NAMESPACE")
    assert "http://chat.a.svc" in text
    assert "Goodput" in text


def test_one_fleet_shows_its_roles_its_goal_its_troubles_and_its_address() -> None:
    text = fleet_text(chat(), NOW)
    assert "decode   2        1         1       1" in text
    assert "0.95 of requests met it, of 3.5 requests/s; goal: 90% within TTFT 500ms" in text
    assert "Progressing=True PodsStarting: m" in text
    assert "Ready" not in text.partition("Not fine")[2]
    assert "http://chat.a.svc/v1" in text


def test_a_fleet_that_no_operator_has_seen_says_so() -> None:
    new = chat()
    del new["status"]
    assert "no operator has seen it" in fleets_table([new], NOW)
    assert "No pods are reported yet." in fleet_text(new, NOW)


def test_a_fleet_at_rest_has_only_fine_conditions() -> None:
    model = Model(a_fleet())
    model.converge()
    conditions = [c.model_dump(by_alias=True) for c in model.fleet.status.conditions]
    text = fleet_text(chat(conditions=conditions), NOW)
    assert "All conditions are fine" in text, text


def test_conditions_that_are_well_when_false_are_conditions_that_exist() -> None:
    types = {str(type_) for type_ in ConditionType}
    assert {*WELL_WHEN_FALSE, *ALSO_WELL_WHEN_FALSE} <= types


def test_ages_are_short() -> None:
    def written(text: str) -> str:
        return age(text, NOW)

    assert written("2027-01-15T07:59:20Z") == "40s"
    assert written("2027-01-15T02:00:00Z") == "6h"
    assert written("2027-01-01T08:00:00Z") == "14d"
    assert age(None, NOW) == ""
