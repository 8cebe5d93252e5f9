"""A fleet behind a gateway of the cluster: what is made for it, and how its pods leave."""

from typing import Any

from argosy_operator.core.plan import conclude, plan
from argosy_operator.core.snapshot.actions import (
    Apply,
    ErrorKind,
    HastenDrain,
    Outcome,
    Scale,
    key_of,
    needs,
)
from argosy_operator.core.snapshot.revision import revision
from argosy_operator.core.status.compose import status_of
from tests.support.model import Model, condition, converged, fleet

OPEN = {"verifyPeers": False, "networkPolicy": False}
POOL: dict[str, Any] = {"routing": {"gateway": "epp"}, "security": OPEN}
EXTERNAL: dict[str, Any] = {
    "roles": {"colocated": {"replicas": {"min": 1, "max": 4}}},
    "autoscaling": {"policy": "External"},
}


def test_it_gets_a_pool_and_a_picker_and_nothing_of_a_gateway() -> None:
    model = converged(**POOL)
    assert {key for key in model.children if key[1] == "chat-picker"} == {
        (kind, "chat-picker")
        for kind in ("ServiceAccount", "Role", "RoleBinding", "Service", "Deployment")
    }
    assert ("InferencePool", "chat") in model.children
    assert not [key for key in model.children if "gateway" in key[1] or key == ("Service", "chat")]
    assert {pod.role for pod in model.pods.values()} == {"colocated", "endpoint-picker"}


def test_it_is_ready_without_an_address_of_its_own() -> None:
    model = converged(**POOL)
    assert condition(model, "Ready").status == "True"
    assert condition(model, "Stalled").status == "False"
    assert model.fleet.status.url is None
    assert converged().fleet.status.url == "http://chat.ns.svc"


def test_its_pods_are_another_revision_than_those_behind_a_gateway() -> None:
    behind = revision(fleet(**POOL), engine_image="e")
    assert behind != revision(fleet(security=OPEN), engine_image="e")


def test_a_leaving_pod_goes_at_once_because_its_picker_sees_only_deletions() -> None:
    """Its engine takes requests until SIGTERM, and finishes its answers after that."""
    model = converged(**POOL, **EXTERNAL)
    model.scale_role("colocated", 2)
    model.converge()
    model.requests = {pod.uid: 99 for pod in model.pods.values() if pod.role == "colocated"}
    model.scale_role("colocated", 1)
    actions = list[Any]()
    for _ in range(6):
        actions += model.round().actions
    assert [a.replicas for a in actions if isinstance(a, Scale)] == [1]
    assert not [a for a in actions if isinstance(a, HastenDrain)]
    assert [pod.cost for pod in model.pods.values() if pod.victim] == [-1000]


def test_behind_a_gateway_of_the_fleet_such_a_pod_waits_for_its_answers() -> None:
    model = converged(**EXTERNAL)
    model.scale_role("colocated", 2)
    model.converge()
    model.requests = {pod.uid: 99 for pod in model.pods.values() if pod.role == "colocated"}
    model.scale_role("colocated", 1)
    actions = list[Any]()
    for _ in range(6):
        actions += model.round().actions
    assert not [a for a in actions if isinstance(a, Scale)]
    assert [a for a in actions if isinstance(a, HastenDrain)]


def refusing_pools(model: Model) -> list[str]:
    """A round in which the API server does not know InferencePools; what was carried out."""
    snapshot = model.snapshot()
    planned, outcomes, undone = plan(snapshot), list[Outcome](), set[str | None]()
    for action in planned.actions:
        if needs(action) in undone:
            undone.add(key_of(action))
        elif isinstance(action, Apply) and action.obj["kind"] == "InferencePool":
            undone.add(key_of(action))
            outcomes.append(Outcome(action, ErrorKind.NOT_FOUND, "404 page not found"))
        else:
            outcomes.append(model.do(action))
    concluded = conclude(snapshot, planned, tuple(outcomes))
    model.memory = concluded.memory
    status = status_of(snapshot, concluded.draft, tuple(outcomes))
    model.fleet = model.fleet.model_copy(update={"status": status})
    return [key_of(o.action) for o in outcomes if o.error is None]


def test_without_pools_in_the_cluster_engines_run_and_no_picker_crashes() -> None:
    model = Model(fleet(**POOL))
    done = list[str]()
    for _ in range(5):
        done += refusing_pools(model)
        model.tick()
    assert "Apply Service/chat-picker" in done
    assert "Apply Deployment/chat-picker" not in done
    assert condition(model, "Servable").status == "True"
    for type_, status in (("Ready", "False"), ("Stalled", "True"), ("Reconciling", "False")):
        found = condition(model, type_)
        assert (found.status, found.reason) == (status, "InferencePoolsUnknown")
        assert "kubectl apply -f https://" in found.message
    model.converge()
    assert condition(model, "Ready").status == "True"
    assert ("Deployment", "chat-picker") in model.children
