"""What stands in place of a gateway: an InferencePool of the fleet's engines, and its picker."""

import json
from typing import Any

import kubernetes_validate
import pytest

from argosy_operator.core.snapshot import names
from argosy_operator.render import network, pool
from argosy_operator.render.engines.kind import EnginePod
from argosy_operator.render.workload import deployment
from tests.render.fleets import IMAGES, fleet
from tests.render.restricted import offences

OPEN = {"verifyPeers": False, "networkPolicy": False}
POOL: dict[str, Any] = {"mode": "colocated", "routing": {"gateway": "epp"}, "security": OPEN}
ONE = fleet(**POOL, drain={"timeout": "31500ms"})
KINDS = ("ServiceAccount", "Role", "RoleBinding", "Service", "InferencePool", "Deployment")


@pytest.fixture
def objects() -> dict[str, Any]:
    """Return what is rendered, by kind."""
    return {child["kind"]: child for child in pool.objects(ONE, IMAGES)}


def test_a_pool_has_these_objects(objects: dict[str, Any]) -> None:
    assert tuple(objects) == KINDS


def engine_of(one: Any) -> Any:
    return deployment(EnginePod.of(one, "colocated", "0" * 8, IMAGES, verifies=False), 1)


def test_the_pool_selects_the_engine_pods_of_every_revision_and_asks_the_picker(
    objects: dict[str, Any],
) -> None:
    found = objects["InferencePool"]
    assert (found["apiVersion"], found["metadata"]["name"]) == (
        "inference.networking.k8s.io/v1",
        "chat",
    )
    assert found["spec"] == {
        "selector": {
            "matchLabels": {
                "serving.argosy.dev/fleet": "chat",
                "serving.argosy.dev/role": "colocated",
            }
        },
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {
            "kind": "Service",
            "name": "chat-picker",
            "port": {"number": 9002},
            "failureMode": "FailOpen",
        },
    }
    labels = engine_of(ONE)["spec"]["template"]["metadata"]["labels"]
    assert found["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_pickers_service_selects_the_picker_and_no_engine(objects: dict[str, Any]) -> None:
    service, picker = objects["Service"], objects["Deployment"]
    labels = picker["spec"]["template"]["metadata"]["labels"]
    assert service["metadata"]["name"] == "chat-picker"
    assert service["spec"]["selector"].items() <= labels.items()
    assert labels[names.ROLE] == "endpoint-picker"
    assert service["spec"]["ports"] == [
        {"name": "grpc-ext-proc", "port": 9002, "targetPort": 9002, "protocol": "TCP"}
    ]


def test_the_picker_reads_the_metrics_that_engines_have_where_they_have_them(
    objects: dict[str, Any],
) -> None:
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry.example/epp:1"
    assert "command" not in container
    flags = dict(argument.split("=", 1) for argument in container["args"])
    assert json.loads(flags.pop("--config-text")) == pool.PLUGINS
    assert flags == {
        "--pool-name": "chat",
        "--pool-namespace": "prod",
        "--model-server-metrics-port": "8001",
        "--kv-cache-usage-percentage-metric": "vllm:kv_cache_usage_perc",
        "--lora-info-metric": "",
        "--refresh-metrics-interval": "200ms",
        "--metrics-port": "9090",
        "--metrics-endpoint-auth": "false",
        "--enable-pprof": "false",
        "--tracing": "false",
        "--zap-encoder": "json",
    }
    assert pod["terminationGracePeriodSeconds"] == 32 + 10
    assert pod["serviceAccountName"] == "chat-picker"


def test_the_picker_is_asked_over_grpc_whether_it_serves(objects: dict[str, Any]) -> None:
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    found = {kind: container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}
    asks = {"grpc": {"port": 9003, "service": "inference-extension"}}
    assert found == {
        "startup": {**asks, "periodSeconds": 1, "failureThreshold": 60},
        "readiness": {**asks, "periodSeconds": 2, "failureThreshold": 2},
        "liveness": {**asks, "periodSeconds": 10, "failureThreshold": 3},
    }


def test_the_picker_may_read_three_kinds_of_its_namespace_and_write_nothing(
    objects: dict[str, Any],
) -> None:
    rules = objects["Role"]["rules"]
    assert {tuple(rule["verbs"]) for rule in rules} == {("get", "list", "watch")}
    assert [(*rule["apiGroups"], *rule["resources"]) for rule in rules] == [
        ("", "pods"),
        ("inference.networking.k8s.io", "inferencepools"),
        ("inference.networking.x-k8s.io", "inferenceobjectives"),
    ]
    (subject,) = objects["RoleBinding"]["subjects"]
    assert (subject["name"], subject["namespace"]) == ("chat-picker", "prod")
    assert objects["RoleBinding"]["roleRef"]["name"] == objects["Role"]["metadata"]["name"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_object_is_valid_and_owned_by_the_fleet(objects: dict[str, Any], kind: str) -> None:
    child = objects[kind]
    if kind != "InferencePool":
        kubernetes_validate.validate(child, "1.36", strict=True)
    (owner,) = child["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == (
        "ServingDeployment",
        "1234-5678",
        True,
    )


def test_the_picker_passes_the_restricted_profile(objects: dict[str, Any]) -> None:
    assert offences(objects["Deployment"]["spec"]["template"]["spec"]) == []


def test_an_engine_takes_requests_until_the_picker_has_seen_its_deletion() -> None:
    pod = engine_of(ONE)["spec"]["template"]["spec"]
    assert pod["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod["terminationGracePeriodSeconds"] == 5 + 32 + 10
    plain = engine_of(fleet(mode="colocated", drain={"timeout": "31500ms"}))
    assert "lifecycle" not in plain["spec"]["template"]["spec"]["containers"][0]
    assert plain["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 32 + 10


def test_no_policy_of_ours_shuts_the_gateway_out() -> None:
    assert network.objects(ONE) == []
