"""Pods with and without a template before the API server's own admission of Pod Security."""

from typing import Any

import pytest
import yaml

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.render import fetch, gateway, workload
from argosy_operator.render.engines import EnginePod
from tests.api.test_api_server import Kubectl
from tests.render.fleets import IMAGES

pytestmark = pytest.mark.cluster

MOUNT = {"volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}
TEMPLATES: dict[str, Any] = {
    "none": {},
    "user ids of the platform": {
        "spec": {
            "securityContext": {
                "$patch": "replace",
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            }
        }
    },
    "placed and equipped": {
        "spec": {
            "priorityClassName": "serving",
            "runtimeClassName": "nvidia",
            "containers": [{"name": name, **MOUNT} for name in ("engine", "gateway", "fetch")],
            "volumes": [{"name": "cache", "emptyDir": {}}],
        }
    },
}


@pytest.fixture(scope="module")
def kubectl(cluster: Any) -> Any:
    """With a namespace that enforces the restricted profile."""
    run = Kubectl(cluster.kubeconfig)
    inside = {"namespace": "pods"}
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    given = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "pods", "labels": labels},
    }
    assert run("apply", "-f", "-", given=given)[0] == 0
    for _ in range(100):  # the token controller makes it within a second
        if run("-n", "pods", "get", "serviceaccount", "default")[0] == 0:
            break
    classes = [
        *(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, **inside}}
            for name in ("chat-engine", "chat-gateway")
        ),
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "serving"},
            "value": 1000,
        },
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        },
    ]
    given = {"apiVersion": "v1", "kind": "List", "items": classes}
    assert run("apply", "-f", "-", given=given)[0] == 0
    yield run
    run("delete", "namespace", "pods", "--wait=false")
    run("delete", "priorityclass/serving", "runtimeclass/nvidia")


def fleet(template: dict[str, Any], **model: Any) -> ServingDeployment:
    model = model or {"uri": "pvc://models/a"}
    spec = {"model": model, "mode": "disaggregated", "template": template}
    meta = {"name": "chat", "namespace": "pods", "uid": "1234-5678"}
    return ServingDeployment.model_validate({"metadata": meta, "spec": spec})


def templates(template: dict[str, Any]) -> dict[str, Any]:
    """What has pods: the objects by their containers."""
    one = fleet(template)
    engine = workload.deployment(EnginePod.of(one, "decode", "0" * 8, IMAGES), 1)
    fetched = {"uri": "hf://org/tiny@v1", "fetch": {"claimName": "models"}}
    job = fetch.job(fleet(template, **fetched), IMAGES)
    return {"engine": engine, "gateway": gateway.objects(one, IMAGES)[-1], "fetch": job}


@pytest.mark.parametrize("case", TEMPLATES)
def test_the_api_server_admits_the_pods_as_restricted(kubectl: Any, case: str) -> None:
    """A Deployment and a Job are only warned about; their pods are refused."""
    items = []
    for name, owner in templates(TEMPLATES[case]).items():
        template = owner["spec"]["template"]
        meta = {**template["metadata"], "name": name, "namespace": "pods"}
        items += [owner, {"apiVersion": "v1", "kind": "Pod", **template, "metadata": meta}]
    given = {"apiVersion": "v1", "kind": "List", "items": items}
    code, output = kubectl("create", "--dry-run=server", "-f", "-", given=given)
    assert code == 0, output
    assert output.count("created") == 6
    assert "Warning" not in output


@pytest.mark.long
def test_that_admission_refuses_what_is_not_restricted(kubectl: Any) -> None:
    """So the test above would notice."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bare", "namespace": "pods"},
        "spec": {"containers": [{"name": "a", "image": "a:1"}]},
    }
    code, output = kubectl("create", "--dry-run=server", "-f", "-", given=pod)
    assert code != 0
    assert "violates PodSecurity" in output


@pytest.mark.parametrize(
    ("affinity", "says"),
    [
        (
            {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
            "nodeSelectorTerms",
        ),
        ({"nodeAfinity": {}}, "nodeAfinity"),
    ],
    ids=["half", "misspelt"],
)
def test_an_affinity_that_is_none_is_refused_where_it_is_written(
    kubectl: Any, affinity: Any, says: str
) -> None:
    """The CRD does not know its fields. The write of the Deployment names them."""
    deployment = templates({"spec": {"affinity": affinity}})["engine"]
    words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    code, output = kubectl(*words, given=yaml.safe_load(yaml.safe_dump(deployment)))
    assert code != 0
    assert says in output
