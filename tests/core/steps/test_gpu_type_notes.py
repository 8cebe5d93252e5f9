"""What is noted of GPU types on a ServingRole: read, written, and aged by hand."""

from typing import Any

import pytest

from argosy_law.prices import DAY_S
from argosy_operator.api.v1alpha1 import Role
from argosy_operator.core.snapshot import names
from argosy_operator.core.steps.gpu_types import Noted, as_chosen, noted
from tests.support.model import fleet

TYPES = [
    {"name": "h100", "costPerHour": "4.10", "nodeSelector": {"gpu": "h100"}},
    {"name": "a100", "costPerHour": "1.50", "gpu": 2, "nodeSelector": {"gpu": "a100"}},
    {"name": "mi300", "costPerHour": "3.00", "nodeSelector": {"gpu": "mi300"}},
]
DAY_2 = {names.GPU_TYPE: "a100 1970-01-02T00:00:00Z"}


LISTED = ["h100", "a100", "mi300"]


def role() -> Role:
    return Role.model_validate({"gpuTypes": LISTED})


def serving_role(annotations: Any) -> dict[str, Any]:
    return {"metadata": {"name": "chat-colocated", "annotations": annotations}}


def test_a_choice_and_full_types_are_read_as_they_were_written() -> None:
    choice = Noted("a100", DAY_S, {"mi300": 60.0, "h100": 2 * DAY_S})
    written = choice.annotations()
    assert written == DAY_2 | {
        names.GPU_TYPES_FULL: "h100=1970-01-03T00:00:00Z,mi300=1970-01-01T00:01:00Z"
    }
    assert noted(serving_role(written), role()) == choice
    never = Noted("a100", None, {}).annotations()
    assert never == {names.GPU_TYPE: "a100 1970-01-01T00:00:00Z", names.GPU_TYPES_FULL: ""}


@pytest.mark.parametrize("found", [None, {}, {"metadata": None}, serving_role(None)])
def test_a_serving_role_without_notes_has_chosen_nothing(found: dict[str, Any] | None) -> None:
    assert noted(found, role()) == Noted("", None, {})


def test_what_the_spec_does_not_list_is_not_read() -> None:
    full = {names.GPU_TYPES_FULL: "b200=1970-01-01T00:00:00Z,h100=1970-01-01T00:01:00Z,a100=soon"}
    assert noted(serving_role(full), role()) == Noted("", None, {"h100": 60.0})
    other = {names.GPU_TYPE: "b200 1970-01-02T00:00:00Z"}
    assert noted(serving_role(other | full), role()) == Noted("", None, {"h100": 60.0})
    assert noted(serving_role(DAY_2 | full), role()) == Noted("a100", DAY_S, {"h100": 60.0})


def test_a_type_has_no_room_for_a_day() -> None:
    one = Noted(full={"h100": 100.0})
    assert [one.shut(now) for now in (99.0, 100.0, 100.0 + DAY_S - 1, 100.0 + DAY_S)] == [
        frozenset(), {"h100"}, {"h100"}, frozenset(),
    ]  # fmt: skip


def test_a_type_that_is_left_joins_those_of_the_last_day() -> None:
    one = Noted(full={"h100": 0.0, "a100": 100.0})
    assert one.left("mi300", 200.0) == {"h100": 0.0, "a100": 100.0, "mi300": 200.0}
    assert one.left("h100", DAY_S + 50) == {"a100": 100.0, "h100": DAY_S + 50}


def test_the_chosen_type_is_the_first_of_its_role() -> None:
    roles = {"colocated": {"resources": {"gpu": 3}, "gpuTypes": LISTED}}
    asked = fleet(gpuTypes=TYPES, roles=roles)
    children = {("ServingRole", "chat-colocated"): serving_role(DAY_2)}
    chosen = as_chosen(asked, children).spec.roles.colocated
    assert list(chosen.gpu_types) == ["a100", "h100", "mi300"]
    assert chosen.resources.gpu == 2
    first = as_chosen(asked, {}).spec.roles.colocated
    assert list(first.gpu_types) == ["h100", "a100", "mi300"]
    assert first.resources.gpu == 3


def test_a_fleet_without_types_is_left_as_it_is() -> None:
    asked = fleet(roles={"colocated": {"resources": {"gpu": 3}}})
    assert as_chosen(asked, {}) is asked
