"""Conditions of a fleet of which there is no round: its spec, or its objects, cannot be read."""

from typing import Any

import pytest

from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.status.compose import list_forbidden, unreadable_fleet
from argosy_operator.core.status.facts import Standing
from tests.core.status.worlds import GATEWAY, LONG_AGO, NOW, pod, unready

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


def service(owner: str) -> dict[str, Any]:
    return {"kind": "Service", "metadata": {"name": "chat", "ownerReferences": [{"uid": owner}]}}


OURS = service("fleet-1")


def standing(*pods: Pod, service: Any = OURS, **more: Any) -> Standing:
    shape = {"needs_service": True, "disaggregated": False} | more
    return Standing("fleet-1", 4, pods, service, **shape)


SAYS = "spec.mode: write colocated"
SERVES = (pod("colocated"), GATEWAY)
PAIR = (pod("prefill"), pod("decode"), GATEWAY)


def test_a_spec_that_cannot_be_read_is_stalled_while_its_pods_serve() -> None:
    found = unreadable_fleet(standing(*SERVES), BEFORE, SAYS, NOW)
    assert said(found) == {
        "Ready": "True InvalidSpec",
        "RolledOut": "False InvalidSpec",
        "Servable": "True AsSpecified",
        "Reconciling": "False InvalidSpec",
        "Stalled": "True InvalidSpec",
    }
    assert {c["message"] for c in found if c["reason"] == "InvalidSpec"} == {
        "spec.mode: write colocated. See docs/runbook/InvalidSpec.md"
    }
    assert {c["observedGeneration"] for c in found} == {4}
    assert {c["type"]: c["lastTransitionTime"] for c in found} == {
        "Ready": LONG_AGO,
        "RolledOut": "2026-01-01T00:00:00Z",
        "Servable": LONG_AGO,
        "Reconciling": LONG_AGO,
        "Stalled": "2026-01-01T00:00:00Z",
    }


@pytest.mark.parametrize(
    ("left", "ready", "message"),
    [
        (standing(unready("colocated"), GATEWAY), "False InvalidSpec", SAYS),
        (standing(), "False InvalidSpec", SAYS),
        (standing(SERVES[0]), "False GatewayNotReady", "no gateway pod is ready"),
        (standing(*SERVES, service=None), "False GatewayNotReady", "the fleet's Service is gone"),
        (
            standing(*SERVES, service=service("another")),
            "False ForeignObject",
            "Service/chat already exists with another owner",
        ),
        (standing(*PAIR, disaggregated=True), "True InvalidSpec", SAYS),
        (standing(*PAIR[1:], disaggregated=True), "True NoPrefill", "no prefill pod is ready"),
    ],
    ids=[
        "not ready", "no pods", "no gateway", "no Service", "a stranger's Service", "a pair",
        "decode alone",
    ],
)  # fmt: skip
def test_ready_says_whether_a_fleet_answers_whose_spec_cannot_be_read(
    left: Standing, ready: str, message: str
) -> None:
    found = unreadable_fleet(left, BEFORE, SAYS, NOW)
    assert said(found) | {"Ready": ready, "Stalled": "True InvalidSpec"} == said(found)
    (condition,) = (c for c in found if c["type"] == "Ready")
    assert condition["message"].startswith(message)


@pytest.mark.parametrize(
    ("generation", "rolled_out"), [(4, "True RolledOut"), (3, "False InvalidSpec")]
)
def test_what_was_rolled_out_before_a_rule_existed_stays_so_until_an_edit(
    generation: int, rolled_out: str
) -> None:
    done = {**BEFORE[0], "type": "RolledOut", "observedGeneration": generation}
    found = unreadable_fleet(standing(*SERVES), [*BEFORE, done], SAYS, NOW)
    assert said(found)["RolledOut"] == rolled_out


def test_a_long_reason_why_a_spec_cannot_be_read_leaves_room_for_the_runbook() -> None:
    (ready, *_) = unreadable_fleet(standing(), [], "x" * 5000, NOW)
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
