"""Templates of users are in the pods, beside all that the operator writes."""

import copy
import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from argosy_operator.api.model import PodTemplate
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.cli.run import _pod_template
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import differences
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import revision
from argosy_operator.render import fetch, gateway, workload
from argosy_operator.render.common import PEERS_FILE, Images, installed_by_gateways
from argosy_operator.render.engines import EnginePod
from argosy_operator.render.fleet import Callers, render_callers
from tests.render.fleets import IMAGES, fleet
from tests.support.model import ISSUER

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIM = {"uri": "sim://llama-70b-h100-tp4"}
CONTAINER: Any = {
    "env": [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        {"name": "HOME", "value": "/cache"},
    ],
    "envFrom": [{"secretRef": {"name": "all"}}],
    "resources": {
        "requests": {"cpu": 8, "memory": "64Gi"},
        "limits": {"cpu": 8, "memory": "64Gi", "rdma/hca": 1},
        "claims": [{"name": "nic"}],
    },
    "volumeMounts": [
        {"name": "cache", "mountPath": "/cache"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ],
}
SPEC: Any = {
    "nodeSelector": {"pool": "llm"},
    "tolerations": [{"key": "pool", "operator": "Exists", "effect": "NoSchedule"}],
    "topologySpreadConstraints": [
        {
            "topologyKey": "topology.kubernetes.io/zone",
            "maxSkew": 1,
            "whenUnsatisfiable": "DoNotSchedule",
        }
    ],
    "priorityClassName": "serving",
    "schedulerName": "volcano",
    "serviceAccountName": "llm",
    "imagePullSecrets": [{"name": "registry"}],
    "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "one-nic"}],
    "securityContext": {"runAsUser": None, "runAsGroup": None},
    "initContainers": [
        {"name": "mesh", "image": "mesh:1", "restartPolicy": "Always"},
    ],
    "volumes": [
        {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
    ],
}
WHOLE: Any = {
    "metadata": {"labels": {"team": "search"}, "annotations": {"example.com/a": "b"}},
    "spec": {
        **SPEC,
        "containers": [{"name": name, **CONTAINER} for name in ("engine", "gateway")],
    },
}


def engine(one: Any, role: Any = "decode", live: Any = None, images: Images = IMAGES) -> Any:
    return workload.deployment(EnginePod.of(one, role, "0" * 8, images, live))


def template(made: Any) -> Any:
    return made["spec"]["template"]


def pod(made: Any) -> Any:
    return template(made)["spec"]


def container(made: Any) -> Any:
    return pod(made)["containers"][0]


def front(one: Any, images: Images = IMAGES) -> Any:
    return gateway.objects(one, images)[-1]


def installed(**spec: Any) -> Images:
    return Images("e:1", "g:1", template=PodTemplate(spec=spec), fetch="f:1")


def revision_of(**spec: Any) -> str:
    return revision(fleet(**spec), engine_image="e:1")


def test_pods_are_placed_and_equipped_as_asked() -> None:
    one = fleet(template=WHOLE)
    for made in (engine(one), front(one)):
        kubernetes_validate.validate(made, "1.36", strict=True)
        spec, meta, only = pod(made), template(made)["metadata"], container(made)
        assert meta["labels"]["team"] == "search"
        assert meta["annotations"]["example.com/a"] == "b"
        assert spec["nodeSelector"] == {"pool": "llm"}
        assert spec["tolerations"][-1] == SPEC["tolerations"][0]
        zone = spec["topologySpreadConstraints"][-1]
        assert zone["labelSelector"] == {"matchLabels": made["spec"]["selector"]["matchLabels"]}
        for field in ("priorityClassName", "schedulerName", "serviceAccountName", "resourceClaims"):
            assert spec[field] == SPEC[field]
        assert "runAsUser" not in spec["securityContext"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        limits = {"cpu": "8", "memory": "64Gi"}
        assert only["resources"]["requests"] == limits
        assert only["resources"]["limits"].items() >= {**limits, "rdma/hca": "1"}.items()
        env = {item["name"]: item for item in only["env"]}
        assert env["HF_TOKEN"] == CONTAINER["env"][0]
        assert env["HOME"] == CONTAINER["env"][1]
        assert only["envFrom"] == CONTAINER["envFrom"]
        mounts = {item["name"]: item["mountPath"] for item in only["volumeMounts"]}
        assert (mounts["cache"], mounts["shm"]) == ("/cache", "/dev/shm")
        assert spec["volumes"][-2:] == SPEC["volumes"]
        assert [one["name"] for one in spec["initContainers"]] == ["mesh"]


def test_what_is_applied_twice_has_no_drift() -> None:
    made = engine(fleet(template=WHOLE))
    assert list(differences(made, copy.deepcopy(made))) == []
    read = copy.deepcopy(made)
    container(read)["resources"]["requests"]["memory"] = "65536Mi"
    pod(read)["volumes"][-1]["emptyDir"]["sizeLimit"] = "8192Mi"
    assert list(differences(made, read)) == []
    pod(read)["tolerations"].pop()
    assert len(list(differences(made, read))) == 1


def test_the_template_of_a_role_comes_over_that_of_all_pods() -> None:
    far = {"spec": {"nodeSelector": {"pool": "a", "zone": "z"}, "priorityClassName": "low"}}
    near = {"spec": {"nodeSelector": {"pool": "b"}, "priorityClassName": None}}
    one = fleet(template=far, roles={"decode": {"template": near}})
    assert pod(engine(one))["nodeSelector"] == {"pool": "b", "zone": "z"}
    assert "priorityClassName" not in pod(engine(one))
    for other in (engine(one, "prefill"), front(one)):
        assert pod(other)["nodeSelector"] == {"pool": "a", "zone": "z"}
        assert pod(other)["priorityClassName"] == "low"


def test_a_template_of_gateways_changes_no_engine() -> None:
    one = fleet(routing={"template": WHOLE})
    assert pod(front(one))["schedulerName"] == "volcano"
    assert engine(one) == engine(fleet())
    assert revision_of(routing={"template": WHOLE}) == revision_of()


def test_a_revision_does_not_depend_on_the_order_of_keys_or_on_how_amounts_are_written() -> None:
    def asked(requests: dict[str, Any]) -> str:
        items = [{"name": "engine", "resources": {"requests": requests}}]
        return revision_of(template={"spec": {"containers": items}})

    assert asked({"cpu": 8, "memory": "1Gi"}) == asked({"memory": "1Gi", "cpu": "8"})


def test_engines_that_ask_for_nothing_are_not_the_first_to_be_ended() -> None:
    """A pod without requests is BestEffort."""
    one = fleet(model=SIM, roles={"decode": {"resources": {"gpu": 0}}})
    assert container(engine(one))["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}}
    assert container(front(one))["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}}


def test_a_template_comes_over_the_roles_own_resources_and_variables_of_the_engine() -> None:
    items = [
        {
            "name": "engine",
            "env": [{"name": "A", "value": "template"}],
            "resources": {"limits": {"memory": "32Gi"}},
        }
    ]
    own = {"gpu": 2, "gpuResource": "amd.com/gpu", "cpu": 4, "memory": "16Gi"}
    one = fleet(
        roles={"decode": {"resources": own, "template": {"spec": {"containers": items}}}},
        engine={"env": [{"name": "A", "value": "engine"}, {"name": "B", "value": "engine"}]},
    )
    made = engine(one)
    assert container(made)["resources"] == {
        "requests": {"cpu": "4", "memory": "16Gi"},
        "limits": {"memory": "32Gi", "amd.com/gpu": "2"},
    }
    env = {item["name"]: item.get("value") for item in container(made)["env"]}
    assert (env["A"], env["B"]) == ("template", "engine")
    assert pod(made)["tolerations"][0]["key"] == "amd.com/gpu"
    assert template(made)["metadata"]["annotations"][names.GPU_RESOURCE] == "amd.com/gpu"


@pytest.mark.parametrize("gpus", [1, 2])
def test_gpus_that_come_with_claims_are_counted_and_asked_for_once(gpus: int) -> None:
    claim = {"name": "gpus", "resourceClaimTemplateName": "some-gpus"}
    asked = {"resources": {"gpu": gpus, "gpuFrom": "Claims"}}
    spec = {
        "resourceClaims": [claim],
        "containers": [{"name": "engine", "resources": {"claims": [{"name": "gpus"}]}}],
    }
    made = engine(fleet(roles={"decode": {**asked, "template": {"spec": spec}}}))
    assert "limits" not in container(made)["resources"]
    assert pod(made)["resourceClaims"] == [claim]
    assert template(made)["metadata"]["annotations"][names.GPUS_CLAIMED] == str(gpus)


def test_another_template_of_the_installation_replaces_no_engine_pod() -> None:
    """A chart's new value, or a newer operator: the Deployment keeps what it was made with."""
    for first in (installed(), installed(schedulerName="volcano")):
        before = engine(fleet(), images=first)
        later = installed(schedulerName="other")
        assert template(engine(fleet(), live=before, images=later)) == template(before)
        assert pod(engine(fleet(), images=later))["schedulerName"] == "other"


def test_a_fleet_keeps_the_template_that_its_gateways_note() -> None:
    now = PodTemplate(spec={"schedulerName": "a"})
    noted = front(fleet(), installed(schedulerName="c"))
    decode = engine(fleet(), images=installed(schedulerName="b"))
    assert installed_by_gateways([decode, noted], now).spec == {"schedulerName": "c"}
    assert installed_by_gateways([decode], now) == now


def example(name: str) -> Any:
    body = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text("utf-8"))
    meta = body["metadata"] | {"namespace": "prod", "uid": "1234-5678"}
    return ServingDeployment.model_validate({**body, "metadata": meta})


def test_the_example_of_a_node_pool_places_engines_and_gateways_apart() -> None:
    one = example("node-pool")
    for role in ("prefill", "decode"):
        made = engine(one, role)
        kubernetes_validate.validate(made, "1.36", strict=True)
        assert pod(made)["nodeSelector"] == {"pool": "llm"}
        resources = container(made)["resources"]
        assert resources["limits"] == {**resources["requests"], "nvidia.com/gpu": "1"}
    made = front(one)
    kubernetes_validate.validate(made, "1.36", strict=True)
    assert pod(made)["nodeSelector"] == {"pool": "general"}
    assert container(made)["resources"]["limits"] == {"cpu": "2", "memory": "512Mi"}
    assert template(made)["metadata"]["labels"]["cost-center"] == "search"


def test_pods_of_a_named_account_may_call_engines_as_those_of_ours_did() -> None:
    """While it changes, pods of the old account still run."""
    one = fleet(template={"spec": {"serviceAccountName": "llm"}})
    old = (
        Pod("g", "1", "gateway", "", account="chat-gateway"),
        Pod("e", "2", "decode", "0" * 8, account="chat-engine"),
        Pod("gone", "3", "decode", "0" * 8, account="older", phase="Succeeded"),
    )
    callers = Callers.of(one, IMAGES, old)
    assert callers.engines == {"llm", "chat-engine"}
    assert callers.gateways == {"llm", "chat-gateway"}
    assert subjects(gateway.objects(one, IMAGES, callers=callers)) == ["chat-gateway", "llm"]
    (_, file) = render_callers(one, ISSUER, callers, required=True)
    found = json.loads(file["data"][PEERS_FILE])["callers"]
    assert found["kv"] == [f"system:serviceaccount:prod:{n}" for n in ("chat-engine", "llm")]
    assert found["api"] == [f"system:serviceaccount:prod:{n}" for n in ("chat-gateway", "llm")]


@pytest.mark.parametrize(
    "text", ["{", "7", '{"spec": {"containers": [{"name": "engine", "command": ["sh"]}]}}']
)
def test_the_operator_does_not_start_with_a_template_that_no_pod_can_have(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        _pod_template(text)


def subjects(objects: list[Any]) -> list[str]:
    (binding,) = (o for o in objects if o["kind"] == "RoleBinding")
    return [subject["name"] for subject in binding["subjects"]]


def test_children_carry_the_labels_that_kubernetes_recommends() -> None:
    one = fleet()
    recommended = {
        "app.kubernetes.io/name": "argosy",
        "app.kubernetes.io/instance": "chat",
        "app.kubernetes.io/part-of": "argosy",
        "app.kubernetes.io/managed-by": "argosy",
    }
    for child in (engine(one), *gateway.objects(one, IMAGES)):
        assert child["metadata"]["labels"].items() >= recommended.items()
        selector = json.dumps(child.get("spec", {}).get("selector", {}))
        assert "app.kubernetes.io" not in selector
    fetched = fleet(model={"uri": "hf://org/tiny@main", "fetch": {"size": "1Gi"}})
    job = fetch.job(fetched, IMAGES)
    assert job is not None
    components = {}
    for child in (engine(one), front(one), job):
        labels = template(child)["metadata"]["labels"]
        assert labels.items() >= recommended.items()
        components[child["metadata"]["name"]] = labels["app.kubernetes.io/component"]
    assert components == {
        "chat-decode-00000000": "engine",
        "chat-gateway": "gateway",
        "chat-fetch": "fetch",
    }
