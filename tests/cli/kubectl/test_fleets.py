"""`kubectl argosy status` shows what serves, what clients get, and only what is not fine."""

from typing import Any

import pytest

from argosy_operator.api.conditions import ConditionType
from argosy_operator.cli.explanation import WELL_WHEN_FALSE
from argosy_operator.cli.kubectl.status import (
    ALSO_WELL_WHEN_FALSE,
    HARMLESS,
    WELL_EITHER_WAY,
    age,
    fine,
    fleet_text,
    fleets_table,
    wide_of,
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
    fleet = chat()
    fleet["status"]["roles"]["decode"] |= {"draining": 3, "gpus": 4, "revision": "0a1b"}
    text = fleet_text(fleet, NOW)
    (row,) = (line.split() for line in text.splitlines() if line.startswith("decode"))
    assert row == ["decode", "2", "1", "1", "1", "3", "4", "0a1b"]
    assert "0.95 of requests met it, of 3.5 requests/s; goal: 90% within TTFT 500ms" in text
    assert "Progressing=True PodsStarting: m" in text
    assert "Ready" not in text.partition("Not fine")[2]
    assert "http://chat.a.svc/v1" in text


def test_one_fleet_shows_the_newer_images_that_it_does_not_take() -> None:
    newer = {"engine": "engine:2", "gateway": "gateway:2"}
    assert (
        "Newer images: engine engine:2, gateway gateway:2. spec.imageUpdates: Follow takes them."
    ) in fleet_text(chat(newerImages=newer), NOW).splitlines()
    assert "Newer images" not in fleet_text(chat(), NOW)


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


@pytest.mark.parametrize(
    ("passed", "shown"),
    [(0, "0s"), (-5, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"),
     (172799, "47h"), (172800, "2d"), (1e6, "11d")],
)  # fmt: skip
def test_an_age_goes_on_to_the_next_unit_at_two_of_it(passed: float, shown: str) -> None:
    assert age("2027-01-15T08:00:00Z", NOW + passed) == shown


@pytest.mark.parametrize(
    ("type_", "status", "well"),
    [
        ("Ready", "True", True),
        ("Ready", "False", False),
        ("Ready", "Unknown", False),
        ("Stalled", "False", True),
        ("Stalled", "True", False),
        ("Stalled", "Unknown", False),
        ("ErrorBudgetBurning", "True", False),
        ("ErrorBudgetBurning", "False", True),
        ("ErrorBudgetBurning", "Unknown", True),
        *((type_, "False", True) for type_ in WELL_EITHER_WAY),
    ],
)
def test_what_is_fine_depends_on_the_condition(type_: str, status: str, well: bool) -> None:
    assert fine({"type": type_, "status": status, "reason": "Any"}) is well
    assert fine({"type": type_, "status": status}) is well


def test_a_choice_of_the_spec_is_no_trouble() -> None:
    for reason in HARMLESS:
        assert fine({"type": "SLOMet", "status": "Unknown", "reason": reason})


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_every_cell_of_the_wide_table_stands_under_its_head() -> None:
    fleet = chat(revision="r7")
    fleet["status"]["goodput"]["tpotP90"] = "31ms"
    fleet["status"]["conditions"] *= 2
    head, line = words(fleets_table([fleet], NOW, wide=True, everywhere=True))
    found = dict(zip(head[:11] + head[12:], line, strict=True))  # NOT FINE is two words
    assert found == {
        "NAMESPACE": "a", "NAME": "chat", "MODE": "disaggregated", "P": "1/1", "D": "1/2",
        "GPUS": "0", "SLO": "Met", "ATTAIN": "0.95", "TTFT90": "400ms", "TPOT90": "31ms",
        "NOT": "PodsStarting", "AGE": "60m", "URL": "http://chat.a.svc",
        "MODEL": "sim://opt-13b-a100", "REVISION": "r7", "POLICY": "Goodput",
    }  # fmt: skip


def test_a_fleet_without_any_field_has_empty_cells() -> None:
    bare = {"metadata": {"name": "chat", "namespace": "a"}}
    _, line = words(fleets_table([bare], NOW, wide=True))
    assert line == ["chat", *["-"] * 8, *["no", "operator", "has", "seen", "it"], *["-"] * 5]
    _, seen = words(fleets_table([{**bare, "status": {"mode": "colocated"}}], NOW))
    assert seen == ["chat", "colocated", *["-"] * 9]


def test_the_details_of_a_fleet_are_these_lines() -> None:
    fleet = chat()
    fleet["status"]["roles"]["prefill"] = {"serving": 1, "draining": 2, "revision": "r7"}
    fleet["status"]["conditions"].append({"type": "Stalled", "status": "True", "reason": "Bad"})
    _, _, *lines = fleet_text(fleet, NOW).splitlines()
    assert [line.split() for line in lines[:5]] == [
        [],
        ["ROLE", "WANTED", "SERVING", "READY", "PENDING", "DRAINING", "GPUS", "REVISION"],
        ["decode", "2", "1", "1", "1", "0", "0", "-"],
        ["prefill", "0", "1", "0", "0", "2", "0", "r7"],
        [],
    ]
    assert lines[5:] == [
        "SLO  0.95 of requests met it, of 3.5 requests/s; goal: 90% within TTFT 500ms and TPOT "
        "50ms",
        "",
        "Not fine",
        "  Progressing=True PodsStarting: m",
        "  Stalled=True Bad: ",
        "",
        "URL  http://chat.a.svc/v1  (inside the cluster)",
    ]


def test_a_goal_without_measurements_says_so() -> None:
    fleet = chat(goodput={"attainment": "0.9"}, url="", conditions=[])
    del fleet["spec"]["slo"]["attainment"]
    goal = "goal: 90% within TTFT 500ms and TPOT 50ms"
    assert fleet_text(fleet, NOW).splitlines()[-3:] == [
        f"SLO  0.9 of requests met it; {goal}", "", "All conditions are fine",
    ]  # fmt: skip
    fleet["status"]["goodput"] = {}
    assert f"\n\nSLO  not measured yet; {goal}\n\n" in fleet_text(fleet, NOW)
    fleet["spec"]["slo"] = None
    assert "\n\nNo spec.slo: replicas follow no SLO.\n\n" in fleet_text(fleet, NOW)


def test_what_a_fleet_does_not_say_is_an_empty_cell_of_the_wide_table() -> None:
    assert wide_of({}) == ("", "", "", "")
    assert wide_of({"spec": {"model": {}, "autoscaling": {}}, "status": {}}) == ("", "", "", "")


def test_the_goal_has_the_attainment_of_the_spec_or_the_default() -> None:
    asked = chat()
    asked["spec"]["slo"]["attainment"] = "95%"
    assert "goal: 95% within TTFT 500ms and TPOT 50ms" in fleet_text(asked, NOW)
    del asked["spec"]["slo"]["attainment"]
    assert "goal: 90% within TTFT 500ms and TPOT 50ms" in fleet_text(asked, NOW)
