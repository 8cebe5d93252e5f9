"""Every example is accepted by the models and by the CRD, and names no unknown field."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from argosy_operator.api.crd import serving_deployments
from argosy_operator.api.v1alpha1 import ServingDeployment
from tests.api.crd_reading import defaulted, refusals, schema_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCHEMA = schema_of(serving_deployments())
OBJECTS = [
    pytest.param(item, id=f"{path.name}: {item['kind']}")
    for path in sorted(EXAMPLES.glob("*.yaml"))
    for item in yaml.safe_load_all(path.read_text("utf-8"))
]


def unknown_fields(schema, value, path=""):
    """Paths that the schema does not have: kubectl would refuse them."""
    if isinstance(value, list):
        items = schema.get("items", {})
        return [u for i, v in enumerate(value) for u in unknown_fields(items, v, f"{path}[{i}]")]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    found = [f"{path}.{name}" for name in value if name not in schema["properties"]]
    for name, child in schema["properties"].items():
        if name in value and path + name != "metadata":
            found += unknown_fields(child, value[name], f"{path}.{name}")
    return found


@pytest.mark.parametrize("item", OBJECTS)
def test_an_example_is_valid(item):
    if item["kind"] == "ServingDeployment":
        assert unknown_fields(SCHEMA, item) == []
        assert refusals(SCHEMA, defaulted(SCHEMA, item)) == []
        ServingDeployment.model_validate(item)
    elif item["apiVersion"].split("/")[0] in {"v1", "apps", "autoscaling", "networking.k8s.io"}:
        kubernetes_validate.validate(item, "1.36", strict=True)


@pytest.mark.parametrize("name", ["ingress", "httproute"])
def test_a_route_leads_to_the_gateways_service_of_an_example(name):
    text = (EXAMPLES / f"{name}.yaml").read_text("utf-8")
    (rule,) = yaml.safe_load(text)["spec"]["rules"]
    if name == "ingress":
        service = rule["http"]["paths"][0]["backend"]["service"]
        service = {"name": service["name"], "port": service["port"]["number"]}
    else:
        (service,) = rule["backendRefs"]
        # https://gateway-api.sigs.k8s.io: a duration of 0 is no limit, where others cut streams.
        assert rule["timeouts"] == {"request": "0s"}
    fleet = yaml.safe_load((EXAMPLES / "five-lines.yaml").read_text("utf-8"))
    assert service == {"name": fleet["metadata"]["name"], "port": 80}


def test_the_demos_ramp_finds_the_fields_that_it_reads():
    fleet = ServingDeployment.model_validate(
        yaml.safe_load((EXAMPLES / "sim-70b.yaml").read_text("utf-8"))
    )
    assert fleet.spec.slo is not None
    assert fleet.spec.metrics.rate_window_s == 5
    assert fleet.spec.autoscaling.scale_down.stabilization.seconds == 15
    assert [role.resources.gpu for _, role in fleet.spec.active_roles()] == [4, 4]
