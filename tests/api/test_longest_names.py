"""Names as long as Kubernetes takes them: the API server takes the fleet and all that it is made
into. A fleet's own name ends at 40 characters; tests/api/refused.py has longer ones."""

import json
from typing import Any

import pytest

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot.snapshot import Clock, LoopMemory
from argosy_operator.shell.gather import Observed, compose
from tests.api.test_api_server import Kubectl, kubectl
from tests.support.model import IMAGES, ISSUER

pytestmark = [pytest.mark.cluster, pytest.mark.long]
__all__ = ["kubectl"]  # the fixture: the CRDs are there

NAMESPACE, NAME = "n" * 63, "a" * 40
LABEL, SUBDOMAIN = "l" * 63, "s" * 253
KEY = f"{'d' * 253}/{'k' * 63}"
DATA = "k" * 253
REFERENCE = {"name": SUBDOMAIN, "key": DATA}
ENV = {
    "env": [
        {"name": "S" * 128, "valueFrom": {"secretKeyRef": REFERENCE}},
        {"name": "C" * 128, "valueFrom": {"configMapKeyRef": REFERENCE}},
    ],
    "envFrom": [{"secretRef": {"name": SUBDOMAIN}}, {"configMapRef": {"name": SUBDOMAIN}}],
}
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {KEY: LABEL}, "annotations": {KEY: "x"}},
    "spec": {
        "nodeSelector": {KEY: LABEL},
        "priorityClassName": SUBDOMAIN,
        "runtimeClassName": SUBDOMAIN,
        "serviceAccountName": SUBDOMAIN,
        "imagePullSecrets": [{"name": SUBDOMAIN}],
        "containers": [{"name": name, **ENV} for name in ("engine", "gateway", "fetch")],
        "volumes": [{"name": "a" * 63, "secret": {"secretName": SUBDOMAIN}}],
    },
}
FETCH = {"claimName": SUBDOMAIN, "serviceAccountName": SUBDOMAIN}
SLO = {"ttft": {"target": "1s"}, "tpot": {"target": "40ms"}}
SPECS: dict[str, dict[str, Any]] = {
    "mounted": {
        "model": {"uri": f"pvc://{SUBDOMAIN}/weights", "servedNames": ["m" * 128]},
        "mode": "disaggregated",
        "security": {"tls": {"secretName": SUBDOMAIN}},
        "template": TEMPLATE,
        "slo": SLO | {"classes": [{"name": "c" * 32, **SLO}]},
    },
    "fetched": {
        "model": {"uri": "s3://bucket/prefix", "fetch": FETCH},
        "template": TEMPLATE,
    },
    "fetched into a claim of its own": {
        "model": {
            "uri": "hf://org/name@main",
            "fetch": {"size": "1Gi", "storageClassName": SUBDOMAIN},
        },
    },
}


@pytest.fixture(scope="module")
def there(kubectl: Kubectl) -> Any:
    """The namespace, and what admission looks for before it takes a pod."""
    inside = {"namespace": NAMESPACE}
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name} | inside}
            for name in (SUBDOMAIN, f"{NAME}-engine", f"{NAME}-gateway", "default")
        ),
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": SUBDOMAIN},
            "value": 1000,
        },
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": SUBDOMAIN},
            "handler": "h" * 63,
        },
    ]
    given = {"apiVersion": "v1", "kind": "List", "items": objects}
    code, output = kubectl("apply", "-f", "-", given=given)
    assert code == 0, output
    yield kubectl
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    kubectl("delete", f"priorityclass/{SUBDOMAIN}", f"runtimeclass/{SUBDOMAIN}")


def manifest(spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": NAME, "namespace": NAMESPACE}
    version, kind = "serving.argosy.dev/v1alpha1", "ServingDeployment"
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def pods_of(obj: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod of a Deployment or Job, under the longest name that its controller gives."""
    template = obj["spec"].get("template") if obj["kind"] in ("Deployment", "Job") else None
    if template is None:
        return []
    name = f"{obj['metadata']['name']}-{'0' * 10}-"[:58] + "x" * 5
    meta = template["metadata"] | {"name": name, "namespace": NAMESPACE}
    return [{"apiVersion": "v1", "kind": "Pod", **template, "metadata": meta}]


@pytest.mark.parametrize("case", SPECS)
def test_the_longest_names_are_taken_from_the_fleet_to_its_pods(there: Kubectl, case: str) -> None:
    words = ("create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-")
    code, output = there(*words, given=manifest(SPECS[case]))
    assert code == 0, output
    stored = json.loads(output)
    fleet = ServingDeployment.model_validate(stored | {"status": status_of(case)})
    seen = Observed(claim_of(fleet), (), {}, None, ISSUER)
    snapshot = compose(fleet, IMAGES, seen, LoopMemory(), Clock(1e6, 1e6))
    made = [*snapshot.wanted, *snapshot.engines.values()]
    made += [] if snapshot.fetch_job is None else [snapshot.fetch_job]
    assert {obj["kind"] for obj in made} >= {"Deployment", "Service", "ConfigMap", "ServingRole"}
    assert len(snapshot.engines) == (2 if case == "mounted" else 1)
    items = [*made, *(pod for obj in made for pod in pods_of(obj))]
    given = {"apiVersion": "v1", "kind": "List", "items": items}
    words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    code, output = there(*words, given=given)
    assert code == 0, output
    assert output.count("serverside-applied") == len(items)


def status_of(case: str) -> dict[str, Any]:
    """Of a fleet whose model was fetched, so that its engines are rendered, too."""
    spec = SPECS[case]["model"]
    if "fetch" not in spec:
        return {}
    claim = spec["fetch"].get("claimName", f"{NAME}-model")
    place = {"path": "hf/org--name/c", "bytes": 1, "claimName": claim, "claimUid": "uid"}
    return {"model": {"uri": spec["uri"], "commit": "c" * 40, **place}}


def claim_of(fleet: ServingDeployment) -> dict[tuple[str, str], Any]:
    kind, name = "PersistentVolumeClaim", fleet.model_claim
    claim = {"kind": kind, "metadata": {"name": name, "uid": "uid"}}
    return {} if name is None else {(kind, name): claim}
