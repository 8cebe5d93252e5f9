"""Conditions of a fleet of which there is no round: its spec, or its objects, cannot be read."""

from typing import Any

from argosy_operator.core.status.compose import list_forbidden, unreadable_fleet
from tests.core.status.worlds import LONG_AGO, NOW

BEFORE = [
    {
        "type": type_,
        "status": status,
        "reason": "AsSpecified",
        "message": "",
        "observedGeneration": 3,
        "lastTransitionTime": LONG_AGO,
    }
    for type_, status in (("Ready", "True"), ("Reconciling", "False"), ("Servable", "True"))
]


def said(conditions: list[dict[str, Any]]) -> dict[str, str]:
    return {c["type"]: f"{c['status']} {c['reason']}" for c in conditions}


def test_a_spec_that_cannot_be_read_is_not_ready_and_stalled() -> None:
    found = unreadable_fleet(4, BEFORE, "spec.mode: write colocated", NOW)
    assert said(found) == {
        "Ready": "False InvalidSpec",
        "Servable": "True AsSpecified",
        "Reconciling": "False InvalidSpec",
        "Stalled": "True InvalidSpec",
    }
    ours = [c for c in found if c["type"] != "Servable"]
    assert {c["message"] for c in ours} == {
        "spec.mode: write colocated. See docs/runbook/InvalidSpec.md"
    }
    assert {c["observedGeneration"] for c in ours} == {4}
    assert {c["type"]: c["lastTransitionTime"] for c in found} == {
        "Ready": "2026-01-01T00:00:00Z",
        "Servable": LONG_AGO,
        "Reconciling": LONG_AGO,
        "Stalled": "2026-01-01T00:00:00Z",
    }


def test_a_long_reason_why_a_spec_cannot_be_read_leaves_room_for_the_runbook() -> None:
    (ready, *_) = unreadable_fleet(4, [], "x" * 5000, NOW)
    assert ready["message"] == "x" * 991 + ". See docs/runbook/InvalidSpec.md"


def test_a_fleet_whose_objects_may_not_be_listed_keeps_ready_and_is_stalled() -> None:
    """The operator cannot tell whether the fleet serves."""
    found = list_forbidden(4, BEFORE, "it may not list pods", NOW)
    assert said(found) == {
        "Ready": "True AsSpecified",
        "Servable": "True AsSpecified",
        "Reconciling": "False Forbidden",
        "Stalled": "True Forbidden",
    }
    (stalled,) = (c for c in found if c["type"] == "Stalled")
    assert stalled["message"] == "it may not list pods. See docs/runbook/Forbidden.md"
    assert stalled["observedGeneration"] == 4
    assert stalled["lastTransitionTime"] == "2026-01-01T00:00:00Z"
