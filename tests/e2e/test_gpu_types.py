"""A role leaves a GPU type whose nodes are full, on the real cluster and under traffic."""

import pytest

from tests.e2e.installed import traffic

pytestmark = [pytest.mark.cluster, pytest.mark.long]

LABEL = "gpu-of-a-test"
TYPES = [
    {"name": "h100", "costPerHour": "4.10", "nodeSelector": {LABEL: "h100"}},
    {"name": "a100", "costPerHour": "1.50", "nodeSelector": {LABEL: "a100"}},
]


@pytest.fixture(scope="module")
def nodes(argosy):
    """The node of each GPU type."""
    found = argosy.kube.get("/api/v1/nodes")["items"]
    named = dict(zip(("h100", "a100"), (n["metadata"]["name"] for n in found), strict=False))
    for gpu, node in named.items():
        argosy.kubectl("label", "node", node, f"{LABEL}={gpu}")
    yield named
    argosy.kubectl("uncordon", named["h100"])
    for node in named.values():
        argosy.kubectl("label", "node", node, f"{LABEL}-")


def spec(least):
    replicas = {"min": least, "max": 4}
    role = {"replicas": replicas, "resources": {"gpu": 1}, "gpuTypes": ["h100", "a100"]}
    roles = {"colocated": role}
    return {"gpuTypes": TYPES, "roles": roles, "autoscaling": {"gpuTypeFallback": "5s"}}


def places(argosy, fleet):
    """GPU type and node of each engine pod."""
    return {
        (pod["metadata"]["labels"]["serving.argosy.dev/gpu-type"], pod["spec"].get("nodeName"))
        for pod in argosy.pods(fleet, "colocated")
    }


def test_a_full_type_is_left_for_the_next_one_and_no_request_is_lost(argosy, nodes):
    argosy.apply("typed", **spec(1))
    argosy.until_ready("typed")
    assert places(argosy, "typed") == {("h100", nodes["h100"])}
    argosy.kubectl("cordon", nodes["h100"])
    with traffic(argosy.url("typed"), "typed", per_s=6, tokens=40) as outcomes:
        argosy.apply("typed", **spec(2))
        wanted = {("a100", nodes["a100"])}
        argosy.until(
            "both pods have the other type", lambda: places(argosy, "typed") == wanted, 120
        )
        argosy.until_ready("typed")
    assert outcomes
    assert set(outcomes) == {"ok"}, outcomes
    said = argosy.until_condition("typed", "CapacityLimited", "GPUTypeFull")
    assert said.startswith("colocated runs on a100, since pods found no node with h100")

    def counted():
        role = argosy.fleet("typed")["status"]["roles"]["colocated"]
        return role if role["gpus"] == 2 else None

    role = argosy.until("the pods with the first type are gone from status", counted)
    assert (role["gpuType"], role["gpuCostPerHour"]) == ("a100", "1.50")
    assert list(role["gpuTypesWithoutRoom"]) == ["h100"]
    argosy.kubectl("delete", "sd", "typed", "--wait=false")
