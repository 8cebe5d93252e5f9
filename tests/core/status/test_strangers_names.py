"""A stranger's object under the name of any child: named, left as it is, and nothing else stops."""

import pytest

from argosy_operator.core.snapshot.actions import Apply, Create, Delete, Scale, target
from tests.core.status.worlds import World, round_of, status

ORDERS = (Apply, Create, Delete, Scale)
FLEETS = {
    "colocated": {},
    "disaggregated": {"mode": "disaggregated"},
}


def children(spec: dict[str, object]) -> list[str]:
    """What the fleet makes, as kind/name."""
    snapshot, _, _ = round_of(World(spec))
    return sorted("/".join(key) for key in snapshot.children)


CASES = [(mode, child) for mode, spec in FLEETS.items() for child in children(spec)]


@pytest.mark.parametrize(("mode", "child"), CASES)
def test_a_strangers_object_under_a_childs_name_is_named_and_gets_no_order(
    mode: str, child: str
) -> None:
    world = World(FLEETS[mode], taken=(child,))
    _, planned, _ = round_of(world)
    orders = [a for a in planned.actions if isinstance(a, ORDERS) and target(a) == child]
    assert orders == []
    found = {c.type: c for c in status(world).conditions}
    assert found["NameConflict"].status == "True"
    assert child in found["NameConflict"].message
    assert (found["Stalled"].status, found["RolledOut"].status) == ("True", "False")


def test_every_kind_of_child_is_among_them() -> None:
    kinds = {child.partition("/")[0] for _, child in CASES}
    assert {
        "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding",
        "Service", "ServiceAccount", "ServingRole",
    } <= kinds  # fmt: skip
