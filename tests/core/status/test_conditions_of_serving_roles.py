"""What the status of a ServingRole says of what it asks for."""

from typing import Any

import pytest

from argosy_operator.core.status.compose import role_status_of
from tests.support.model import Model, converged

BOUNDS = {"colocated": {"replicas": {"min": 2, "max": 4}}}


def said(model: Model) -> dict[str, Any]:
    """The status of the ServingRole after one round."""
    snapshot, planned = model.snapshot(), model.round()
    live = snapshot.children["ServingRole", "chat-colocated"]
    return role_status_of(snapshot, planned.draft, live)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


@pytest.mark.parametrize(
    ("asked", "limited"),
    [
        (9, ("True", "OutOfBounds")),
        (4, ("False", "AsSpecified")),
        (2, ("False", "AsSpecified")),
        (1, ("True", "OutOfBounds")),
    ],
)
def test_a_bound_that_binds_is_named(asked: int, limited: tuple[str, str]) -> None:
    """9 were asked for, 4 were given, and nothing said so."""
    model = converged(autoscaling={"policy": "External"}, roles=BOUNDS)
    model.scale_role("colocated", asked)
    assert conditions(said(model))["ScalingLimited"] == limited
    model.converge()
    assert conditions(said(model)) == {
        "Ready": ("True", "AsSpecified"),
        "ScalingLimited": limited,
    }


def test_a_role_is_ready_when_its_pods_serve_and_says_of_which_generation() -> None:
    model = converged(autoscaling={"policy": "External"}, roles=BOUNDS)
    model.scale_role("colocated", 4)
    model.children["ServingRole", "chat-colocated"]["metadata"]["generation"] = 7
    first = said(model)
    assert conditions(first)["Ready"] == ("False", "Starting")
    assert first["observedGeneration"] == 7
    assert {c["observedGeneration"] for c in first["conditions"]} == {7}


def test_a_number_that_argosy_writes_is_limited_by_nobody() -> None:
    model = converged(roles=BOUNDS)
    model.scale_role("colocated", 9)
    assert conditions(said(model))["ScalingLimited"] == ("False", "AsSpecified")


def role_messages() -> dict[tuple[str, str], list[str]]:
    """Types of the conditions of ServingRoles by reason and message."""
    found: dict[tuple[str, str], list[str]] = {}
    for asked in (9, 1):
        model = converged(autoscaling={"policy": "External"}, roles=BOUNDS)
        model.scale_role("colocated", asked)
        for c in said(model)["conditions"]:
            text = c["message"].removesuffix(f". See docs/runbook/{c['reason']}.md")
            found[c["reason"], text] = [c["type"]]
    return found
