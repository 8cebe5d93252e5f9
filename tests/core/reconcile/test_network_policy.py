"""The NetworkPolicy of the engine pods: there by default, gone when it is turned off."""

from tests.support.model import Model, converged, fleet

POLICY = ("NetworkPolicy", "chat-engine")


def test_a_fleet_has_a_policy_from_its_first_round_before_its_pods() -> None:
    model = Model(fleet())
    kinds = [action.obj["kind"] for action in model.round().actions]
    assert kinds.index("NetworkPolicy") < kinds.index("Deployment")
    assert POLICY in model.children


def test_a_policy_that_is_turned_off_is_deleted_and_comes_back_without_new_pods() -> None:
    model = converged()
    pods = set(model.pods)
    model.edit(security={"networkPolicy": False})
    model.converge()
    assert POLICY not in model.children
    model.edit(security={"networkPolicy": True})
    model.converge()
    assert POLICY in model.children
    assert set(model.pods) == pods


def test_a_policy_of_another_owner_is_not_deleted() -> None:
    model = converged(security={"networkPolicy": False})
    labels = {"serving.argosy.dev/fleet": "chat"}
    theirs = {"kind": "NetworkPolicy", "metadata": {"name": "theirs", "uid": "x", "labels": labels}}
    model.children["NetworkPolicy", "theirs"] = {**theirs, "spec": {}}
    assert model.round().actions == ()
